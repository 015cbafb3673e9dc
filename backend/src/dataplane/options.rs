//! The operator's options for the data plane, and the effective options that follow from the node's current facts.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
};

use ipnet::IpNet;
use proto::model::{ClusterInfo, IpFamily, NodeInfo, PerFamily};

use super::InterfaceName;

/// How the backend treats traffic on this node. Fixed for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataplaneOptions {
    /// How pods of this node are detected. Traffic to cluster IPs from other sources is masqueraded, and under external
    /// policy Local these pods reach all endpoints.
    pub local_detector: LocalDetector,
    /// Whether all traffic to cluster IPs is masqueraded: kube-proxy's `--masquerade-all`.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0 to 31: kube-proxy's `--iptables-masquerade-bit`.
    pub masquerade_bit: u8,
    /// The node addresses that serve node ports: kube-proxy's `--nodeport-addresses`.
    pub nodeport_addresses: NodePortAddresses,
    /// Whether 127.0.0.0/8 serves node ports too: kube-proxy's `--iptables-localhost-nodeports`. Only the iptables
    /// backend supports it.
    pub localhost_nodeports: LocalhostNodePorts,
    /// The treatment of forwarded packets that conntrack cannot assign to a connection. Only the iptables backend drops
    /// them.
    pub invalid_packets: InvalidPackets,
    /// The ports at which the backend answers `GET /drained`.
    pub drained_ports: DrainedPorts,
}

/// The ports at which the backend answers `GET /drained`, at loopback addresses too: see [`DrainedRedirect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainedPorts {
    /// The port that serves nothing else. The kernel sends no reset from it, because a `preStop` hook must wait for the
    /// next process while the backend restarts: its container ends at once when the connection is refused.
    pub own: Option<NonZeroU16>,
    /// The port of health checks, at which hooks of the release before ask. Load balancers need its resets.
    pub health: Option<NonZeroU16>,
}

/// How pods of this node are detected: kube-proxy's `--detect-local-mode`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalDetector {
    /// Not at all: no source counts as a pod, and connections to cluster IPs are not masqueraded.
    #[default]
    None,
    /// `ClusterCIDR`: by a source address in one of these ranges. In a family without a range as [`Self::None`].
    ClusterCidr(Vec<IpNet>),
    /// `NodeCIDR`: by a source address in one of the current pod CIDRs of the Node object. No source counts as a pod in
    /// a family without one.
    NodeCidr,
    /// `BridgeInterface`: by the incoming interface.
    BridgeInterface(InterfaceName),
    /// `InterfaceNamePrefix`: by the prefix of the incoming interface's name.
    InterfaceNamePrefix(InterfaceName),
}

/// The node addresses that serve node ports, loopback addresses excluded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node's primary address of each family, from the Node object.
    #[default]
    Primary,
    /// All local addresses in these ranges. A family without a range serves no node ports.
    Cidrs(Vec<IpNet>),
}

impl NodePortAddresses {
    /// All local addresses of both families.
    #[must_use]
    pub fn all() -> Self {
        let ranges = IpFamily::ALL.into_iter().filter_map(|family| IpNet::new(family.unspecified(), 0).ok());
        Self::Cidrs(ranges.collect())
    }

    /// The addresses of a Node object that serve node ports.
    pub(crate) fn of_node(&self, node: &NodeInfo) -> Vec<IpAddr> {
        match self {
            Self::Primary => IpFamily::ALL.into_iter().filter_map(|family| node.primary_address(family)).collect(),
            Self::Cidrs(_) => node.addresses.iter().copied().filter(|address| self.contain(address)).collect(),
        }
    }

    /// The families in which a Node object has addresses, but none serves node ports, because no range is of the
    /// family.
    pub(crate) fn families_without_range(&self, node: &NodeInfo) -> PerFamily<bool> {
        PerFamily::from_fn(|family| match self {
            Self::Primary => false,
            Self::Cidrs(ranges) => node.primary_address(family).is_some() && cidrs_of_family(ranges, family).is_empty(),
        })
    }

    /// Whether an address is in the ranges.
    pub(crate) fn contain(&self, address: &IpAddr) -> bool {
        matches!(self, Self::Cidrs(ranges) if ranges.iter().any(|range| range.contains(address)))
    }

    /// Whether node ports are served at an address of an interface because it is in the ranges. Loopback addresses are
    /// excluded, and IPv6 link-local addresses: a link-local address needs an interface, and each pod that starts
    /// brings another one, on the node's end of its link.
    #[must_use]
    pub fn serve(&self, address: &IpAddr) -> bool {
        let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        !address.is_loopback() && !is_link_local && self.contain(address)
    }
}

/// Whether 127.0.0.0/8 serves node ports. `::1` never does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalhostNodePorts {
    /// It does not.
    #[default]
    Closed,
    /// It does, with `net.ipv4.conf.all.route_localnet` set; packets from other hosts to 127.0.0.0/8 are dropped.
    Open,
}

/// The treatment of forwarded packets in conntrack state INVALID, for example TCP packets outside of the window. NAT
/// does not translate them: a reply to a client of a VIP has the source address of the endpoint, and the client resets
/// its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvalidPackets {
    /// They are dropped, as in kube-proxy's iptables mode.
    #[default]
    Drop,
    /// They pass. For nodes whose conntrack is liberal (`nf_conntrack_tcp_be_liberal`): it translates packets outside
    /// of the window, and those that are still invalid belong to asymmetric routes.
    Pass,
}

/// Which connections to cluster IPs are masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// None.
    Never,
    /// All.
    Always,
    /// All connections except those from pods of this node.
    UnlessPod,
}

/// How packets of pods of this node are matched in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodMatch {
    /// Not at all: there is nothing to match by.
    Unknown,
    /// By an address in one of these ranges; never empty.
    Source(Vec<IpNet>),
    /// By this interface.
    Interface(InterfaceName),
    /// By this prefix of the interface's name.
    InterfacePrefix(InterfaceName),
}

/// The TCP connections of this node to a port of its pods, which lead to the backend instead. A kubelet that executes
/// `preStop: {httpGet: {path: /drained, port: 24256}}` makes one; the backend learns the pod from its original
/// destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainedRedirect {
    /// The ports, of the pods and of the backend; never empty.
    pub ports: Vec<NonZeroU16>,
    /// The pods, by destination address or output interface; never unknown. Not only those of Services: a pod that ends
    /// leaves its Services on this node first.
    pub pods: PodMatch,
    /// The address of the backend.
    pub backend: IpAddr,
}

/// The options with the node's current facts applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveOptions {
    /// The packet mark that requests masquerading.
    pub masquerade_mark: u32,
    /// Which connections to cluster IPs are masqueraded.
    pub masquerade: PerFamily<Masquerade>,
    /// How packets from pods of this node are matched.
    pub pods: PerFamily<PodMatch>,
}

impl Default for DataplaneOptions {
    fn default() -> Self {
        Self {
            local_detector: LocalDetector::None,
            masquerade_all: false,
            masquerade_bit: 14,
            nodeport_addresses: NodePortAddresses::Primary,
            localhost_nodeports: LocalhostNodePorts::Closed,
            invalid_packets: InvalidPackets::Drop,
            drained_ports: DrainedPorts::default(),
        }
    }
}

impl DataplaneOptions {
    /// Which connections to cluster IPs are masqueraded in a family.
    #[must_use]
    pub fn masquerade(&self, family: IpFamily) -> Masquerade {
        if self.masquerade_all {
            return Masquerade::Always;
        }

        match &self.local_detector {
            LocalDetector::None => Masquerade::Never,
            LocalDetector::ClusterCidr(cidrs) => {
                let cidrs = cidrs_of_family(cidrs, family);
                let is_any_source = cidrs.iter().any(|cidr| cidr.prefix_len() == 0);
                if cidrs.is_empty() || is_any_source { Masquerade::Never } else { Masquerade::UnlessPod }
            }
            LocalDetector::NodeCidr | LocalDetector::BridgeInterface(_) | LocalDetector::InterfaceNamePrefix(_) => {
                Masquerade::UnlessPod
            }
        }
    }

    /// The ranges of a family at which node ports are served.
    #[must_use]
    pub fn node_port_ranges(&self, family: IpFamily, node: &NodeInfo) -> Vec<IpNet> {
        match &self.nodeport_addresses {
            NodePortAddresses::Primary => node.primary_address(family).into_iter().map(IpNet::from).collect(),
            NodePortAddresses::Cidrs(ranges) => cidrs_of_family(ranges, family),
        }
    }

    /// The options as they apply to a node.
    #[must_use]
    pub fn effective(&self, node: &NodeInfo) -> EffectiveOptions {
        EffectiveOptions {
            masquerade_mark: 1u32.checked_shl(self.masquerade_bit.into()).unwrap_or(1 << 31),
            masquerade: PerFamily::from_fn(|family| self.masquerade(family)),
            pods: PerFamily::from_fn(|family| self.pod_match(family, node)),
        }
    }

    /// The redirect of a family: for the pods of the local detector or, without one, of the Node's pod CIDRs. A range
    /// of all addresses, which contains other nodes, is not used.
    #[must_use]
    pub fn drained_redirect(&self, family: IpFamily, node: &NodeInfo) -> Option<DrainedRedirect> {
        let DrainedPorts { own, health } = self.drained_ports;
        let ports: Vec<_> = own.into_iter().chain(health).collect();
        if ports.is_empty() {
            return None;
        }

        let is_usable = |pods: &PodMatch| match pods {
            PodMatch::Unknown => false,
            PodMatch::Source(cidrs) => cidrs.iter().all(|cidr| cidr.prefix_len() > 0),
            PodMatch::Interface(_) | PodMatch::InterfacePrefix(_) => true,
        };
        let pods = [self.pod_match(family, node), PodMatch::within(&node.pod_cidrs, family)];
        let pods = pods.into_iter().find(is_usable)?;

        let backend = match family {
            IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        Some(DrainedRedirect { ports, pods, backend })
    }

    fn pod_match(&self, family: IpFamily, node: &NodeInfo) -> PodMatch {
        match &self.local_detector {
            LocalDetector::None => PodMatch::Unknown,
            LocalDetector::ClusterCidr(cidrs) => PodMatch::within(cidrs, family),
            LocalDetector::NodeCidr => PodMatch::within(&node.pod_cidrs, family),
            LocalDetector::BridgeInterface(interface) => PodMatch::Interface(interface.clone()),
            LocalDetector::InterfaceNamePrefix(prefix) => PodMatch::InterfacePrefix(prefix.clone()),
        }
    }
}

impl PodMatch {
    fn within(cidrs: &[IpNet], family: IpFamily) -> Self {
        match cidrs_of_family(cidrs, family) {
            cidrs if cidrs.is_empty() => Self::Unknown,
            cidrs => Self::Source(cidrs),
        }
    }
}

/// The ranges of one family, with their host bits cleared, without duplicates.
pub(super) fn cidrs_of_family(cidrs: &[IpNet], family: IpFamily) -> Vec<IpNet> {
    let mut seen = HashSet::with_capacity(cidrs.len());
    let of_family = cidrs.iter().filter(|cidr| IpFamily::of(&cidr.addr()) == family).map(IpNet::trunc);
    of_family.filter(|cidr| seen.insert(*cidr)).collect()
}

/// The service CIDRs of a family, without a range of all addresses: the rules that drop packets to addresses which no
/// Service has would apply to all other traffic.
#[must_use]
pub fn service_cidrs(cluster: &ClusterInfo, family: IpFamily) -> Vec<IpNet> {
    let mut cidrs = cidrs_of_family(&cluster.service_cidrs, family);
    cidrs.retain(|cidr| cidr.prefix_len() > 0);
    cidrs
}

/// The loopback addresses of a family, which never leave the node.
#[must_use]
pub fn loopback(family: IpFamily) -> IpNet {
    match family {
        // 127.0.0.0/8; a prefix length of 8 is never too long.
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        IpFamily::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_the_node_without_a_range_are_known() {
        let families_of = |addresses: NodePortAddresses, node: &[&str]| {
            let node_addresses = node.iter().map(|address| address.parse().unwrap()).collect();
            let node = NodeInfo { addresses: node_addresses, ..NodeInfo::unknown("node-a") };
            let PerFamily { v4, v6 } = addresses.families_without_range(&node);
            [v4, v6]
        };
        let range = || NodePortAddresses::Cidrs(vec!["192.0.2.0/24".parse().unwrap()]);
        let dual_stack = ["198.51.100.1", "fd00::1"];
        assert_eq!(families_of(range(), &dual_stack), [false, true]);
        assert_eq!(families_of(range(), &["198.51.100.1"]), [false, false]);
        assert_eq!(families_of(range(), &["fd00::1"]), [false, true]);
        assert_eq!(families_of(NodePortAddresses::Primary, &dual_stack), [false, false]);
        assert_eq!(families_of(NodePortAddresses::all(), &dual_stack), [false, false]);
    }
}
