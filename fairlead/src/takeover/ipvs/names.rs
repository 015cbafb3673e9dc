//! The names of the sets that kube-proxy creates in its IPVS mode.

use proto::model::{IpFamily, Protocol};

/// The names, without the prefix of their IP family.
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

/// The longest name of a set, `IPSET_MAXNAMELEN` without its zero byte; kube-proxy truncates longer ones.
const MAX_LEN: usize = 31;

/// The family of a set; `None` for one of another program.
pub(super) fn family(set: &str) -> Option<IpFamily> {
    for (prefix, family) in [("KUBE-", IpFamily::V4), ("KUBE-6-", IpFamily::V6)] {
        if SETS.iter().any(|name| truncate(&format!("{prefix}{name}")) == set) {
            return Some(family);
        }
    }
    None
}

/// Whether its entries are node ports that are forwarded (health-check node ports are answered by kube-proxy itself).
pub(super) fn holds_node_ports(set: &str) -> bool {
    let short = set.strip_prefix("KUBE-6-").or_else(|| set.strip_prefix("KUBE-"));
    short.is_some_and(|short| short.starts_with("NODE-PORT-"))
}

/// The protocol of the ports in such a set, whose entries do not contain it.
pub(super) fn protocol(set: &str) -> Protocol {
    if set.ends_with("-TCP") {
        Protocol::Tcp
    } else if set.ends_with("-UDP") {
        Protocol::Udp
    } else {
        Protocol::Sctp
    }
}

fn truncate(name: &str) -> &str {
    &name[..name.len().min(MAX_LEN)]
}
