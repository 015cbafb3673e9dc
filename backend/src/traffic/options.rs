//! What an operator decides once per node, and what follows from it with the node's present facts.

use ipnet::IpNet;
use proto::model::{IpFamily, NodeInfo, PerFamily};

use super::Interface;

/// How the backend treats traffic of this node. The same for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How the node's pods are told from everybody else. Traffic to cluster IPs that is not theirs is masqueraded, and under
    /// external policy Local they reach every endpoint.
    pub local_pods: LocalPods,
    /// Masquerades all traffic to cluster IPs: kube-proxy's `--masquerade-all`.
    pub masquerade_all: bool,
    /// Which bit of the packet mark says "masquerade", 0 to 31: kube-proxy's `--iptables-masquerade-bit`.
    pub masquerade_bit: u8,
    /// Where node ports answer: kube-proxy's `--nodeport-addresses`.
    pub nodeport_addresses: NodePortAddresses,
    /// Whether they answer on 127.0.0.0/8 too: kube-proxy's `--iptables-localhost-nodeports`. Only iptables can do that.
    pub localhost_nodeports: LocalhostNodePorts,
}

/// How pods of this node are recognised: kube-proxy's `--detect-local-mode`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalPods {
    /// Not at all: everything is treated as if no pod had sent it, but nothing is masqueraded on the way to cluster IPs.
    #[default]
    Unknown,
    /// By their source, in one of these ranges of either family: `ClusterCIDR`. A family without any is as [`Self::Unknown`].
    ClusterCidr(Vec<IpNet>),
    /// By their source, in one of the node's pod CIDRs as the Node object has them at present: `NodeCIDR`. As long as there is none
    /// of a family, it is as [`Self::Unknown`].
    NodeCidr,
    /// By the interface that they come in through: `BridgeInterface`.
    Bridge(Interface),
    /// By how the name of that interface begins: `InterfaceNamePrefix`.
    InterfacePrefix(Interface),
}

/// On which of the node's addresses node ports answer. Loopback addresses are never among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node's primary address of each family, as the Node object has it.
    #[default]
    Primary,
    /// All local addresses in these ranges, of either family. A family without any has no node ports.
    Cidrs(Vec<IpNet>),
}

/// Whether node ports answer on 127.0.0.0/8. On `::1` they never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalhostNodePorts {
    /// They do not.
    #[default]
    Closed,
    /// They do: the kernel routes such packets to other hosts (`net.ipv4.conf.all.route_localnet`), and from there they are dropped.
    Open,
}

/// Which connections to cluster IPs are masqueraded, whatever the node's facts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// None.
    Never,
    /// All.
    Always,
    /// All that no pod of this node makes.
    UnlessPod,
}

/// The pods of this node in one family, as they are recognised at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Nobody has said what a pod is.
    Unknown,
    /// With a source in one of these ranges: never none.
    Within(Vec<IpNet>),
    /// Who comes in through this interface.
    Behind(Interface),
    /// Who comes in through an interface whose name begins like this.
    BehindPrefix(Interface),
}

/// How traffic is treated at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The packet mark that says "masquerade".
    pub mark: u32,
    /// Which connections to cluster IPs are masqueraded.
    pub masquerade: PerFamily<Masquerade>,
    /// Who is a pod.
    pub pods: PerFamily<Pods>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            local_pods: LocalPods::Unknown,
            masquerade_all: false,
            masquerade_bit: 14,
            nodeport_addresses: NodePortAddresses::Primary,
            localhost_nodeports: LocalhostNodePorts::Closed,
        }
    }
}

impl Options {
    /// The rule for connections to cluster IPs.
    #[must_use]
    pub fn masquerade(&self, family: IpFamily) -> Masquerade {
        match &self.local_pods {
            _ if self.masquerade_all => Masquerade::Always,
            LocalPods::Unknown => Masquerade::Never,
            LocalPods::ClusterCidr(cidrs) => {
                let cidrs = of_family(cidrs, family);
                let anybody = cidrs.iter().any(|cidr| cidr.prefix_len() == 0);
                if cidrs.is_empty() || anybody { Masquerade::Never } else { Masquerade::UnlessPod }
            }
            LocalPods::NodeCidr | LocalPods::Bridge(_) | LocalPods::InterfacePrefix(_) => Masquerade::UnlessPod,
        }
    }

    /// What follows for a node.
    #[must_use]
    pub fn traffic(&self, node: &NodeInfo) -> Traffic {
        Traffic {
            mark: 1u32.checked_shl(self.masquerade_bit.into()).unwrap_or(1 << 31),
            masquerade: PerFamily::from_fn(|family| self.masquerade(family)),
            pods: PerFamily::from_fn(|family| self.pods(family, node)),
        }
    }

    fn pods(&self, family: IpFamily, node: &NodeInfo) -> Pods {
        let within = |cidrs: &[IpNet]| match of_family(cidrs, family) {
            cidrs if cidrs.is_empty() => Pods::Unknown,
            cidrs => Pods::Within(cidrs),
        };
        match &self.local_pods {
            LocalPods::Unknown => Pods::Unknown,
            LocalPods::ClusterCidr(cidrs) => within(cidrs),
            LocalPods::NodeCidr => within(&node.pod_cidrs),
            LocalPods::Bridge(interface) => Pods::Behind(interface.clone()),
            LocalPods::InterfacePrefix(prefix) => Pods::BehindPrefix(prefix.clone()),
        }
    }
}

/// Those of one family, with their host bits cleared, each once.
#[must_use]
pub fn of_family(cidrs: &[IpNet], family: IpFamily) -> Vec<IpNet> {
    let mut list = Vec::new();
    for cidr in cidrs.iter().filter(|cidr| IpFamily::of(&cidr.addr()) == family).map(IpNet::trunc) {
        if !list.contains(&cidr) {
            list.push(cidr);
        }
    }
    list
}
