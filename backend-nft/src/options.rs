//! What an operator decides once per node.

use ipnet::IpNet;
use proto::model::Family;

/// How the backend treats traffic of this node. The same for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where pods have their addresses: kube-proxy's `--cluster-cidr`, of either family, any number. Traffic from elsewhere to
    /// cluster IPs is masqueraded. Without any of a family, it never is.
    pub cluster_cidrs: Vec<IpNet>,
    /// Masquerades all traffic to cluster IPs: kube-proxy's `--masquerade-all`.
    pub masquerade_all: bool,
    /// Which bit of the packet mark says "masquerade", 0 to 31: kube-proxy's `--iptables-masquerade-bit`.
    pub masquerade_bit: u8,
    /// Where node ports answer: kube-proxy's `--nodeport-addresses`.
    pub nodeport_addresses: NodePortAddresses,
}

/// On which of the node's addresses node ports answer. Never on loopback addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node's primary address of each family, as the Node object has it.
    #[default]
    Primary,
    /// All local addresses in these ranges, of either family. A family without any has no node ports.
    Cidrs(Vec<IpNet>),
}

/// Which connections to cluster IPs are masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Masquerade {
    Never,
    Always,
    /// Those from outside these ranges; never empty, and none of them is everything.
    Outside(Vec<IpNet>),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster_cidrs: Vec::new(),
            masquerade_all: false,
            masquerade_bit: 14,
            nodeport_addresses: NodePortAddresses::Primary,
        }
    }
}

impl Options {
    /// Where pods of a family have their addresses.
    pub(crate) fn cluster_cidrs(&self, family: Family) -> Vec<IpNet> {
        of_family(&self.cluster_cidrs, family)
    }

    /// The rule for connections to cluster IPs.
    pub(crate) fn masquerade(&self, family: Family) -> Masquerade {
        let cidrs = self.cluster_cidrs(family);
        if self.masquerade_all {
            Masquerade::Always
        } else if cidrs.is_empty() || cidrs.iter().any(|cidr| cidr.prefix_len() == 0) {
            Masquerade::Never
        } else {
            Masquerade::Outside(cidrs)
        }
    }

    /// The packet mark that says "masquerade".
    pub(crate) fn masquerade_mark(&self) -> u32 {
        1u32.checked_shl(self.masquerade_bit.into()).unwrap_or(1 << 31)
    }
}

/// Those of one family, with their host bits cleared, each once.
pub(crate) fn of_family(cidrs: &[IpNet], family: Family) -> Vec<IpNet> {
    let mut list = Vec::new();
    for cidr in cidrs.iter().filter(|cidr| Family::of(&cidr.addr()) == family).map(IpNet::trunc) {
        if !list.contains(&cidr) {
            list.push(cidr);
        }
    }
    list
}
