//! The sets that kube-proxy makes in its IPVS mode, by their names.

use netlink::ipvs::IpvsProtocol;

use crate::Family;

/// Those of IPv4, without what all begin with.
const SETS: [&str; 17] = [
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-CIDR",
    "LOAD-BALANCER-SOURCE-IP",
    "LOOP-BACK",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-TCP",
    "NODE-PORT-UDP",
];

/// The longest name of a set, `IPSET_MAXNAMELEN` without its zero; kube-proxy cuts longer ones.
const MAX_LEN: usize = 31;

/// Whose set it is, if it is kube-proxy's.
pub(super) fn family(set: &str) -> Option<Family> {
    let is_one = |prefix: &str| SETS.iter().any(|name| cut(&format!("{prefix}{name}")) == set);
    [("KUBE-", Family::V4), ("KUBE-6-", Family::V6)]
        .into_iter()
        .find_map(|(prefix, family)| is_one(prefix).then_some(family))
}

/// Whether its entries are node ports that are forwarded (others are answered by kube-proxy itself).
pub(super) fn holds_node_ports(set: &str) -> bool {
    let short = set.strip_prefix("KUBE-6-").or_else(|| set.strip_prefix("KUBE-"));
    short.is_some_and(|short| short.starts_with("NODE-PORT-"))
}

/// Of the ports in such a set, where the entries do not say.
pub(super) fn protocol(set: &str) -> IpvsProtocol {
    [("-TCP", IpvsProtocol::Tcp), ("-UDP", IpvsProtocol::Udp)]
        .into_iter()
        .find_map(|(end, protocol)| set.ends_with(end).then_some(protocol))
        .unwrap_or(IpvsProtocol::Sctp)
}

fn cut(name: &str) -> &str {
    &name[..name.len().min(MAX_LEN)]
}
