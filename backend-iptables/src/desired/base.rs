//! What is always there, whatever services there are: chains with fixed rules, the ends of those that hold lines of services, and
//! the jumps from the built-in chains.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use backend::dataplane::{DataplaneOptions, LocalhostNodePorts, NodePortAddresses, PodMatch, cidrs_of_family};
use ipnet::IpNet;
use iptables::{ChainSpec, Hook, Table};
use proto::model::{ClusterInfo, IpFamily, NodeInfo, Protocol};

use super::rule::{Line, Sense};
use crate::{
    names,
    table::{Dispatch, Ends},
};

/// The fixed part of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) chains: Vec<ChainSpec>,
    /// In the order of [`Dispatch::ALL`].
    ends: Vec<Ends>,
}

/// The fixed part for a family on a node.
pub(crate) fn base(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo, cluster: &ClusterInfo) -> Base {
    let effective = options.effective(node);
    let mark = effective.masquerade_mark;
    let mut chains = vec![
        chain(Table::Nat, names::MARK_MASQ, [format!("-j MARK --set-xmark {mark:#x}/{mark:#x}")]),
        chain(
            Table::Nat,
            names::POSTROUTING,
            [
                format!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"),
                format!("-j MARK --set-xmark {mark:#x}/0x0"),
                Line::new().comment("kubernetes service traffic requiring SNAT").jump("MASQUERADE --random-fully"),
            ],
        ),
        chain(
            Table::Filter,
            names::FORWARD,
            [
                Line::new()
                    .comment("kubernetes forwarding rules")
                    .matching(&format!("-m mark --mark {mark:#x}/{mark:#x}"))
                    .jump("ACCEPT"),
                Line::new()
                    .comment("kubernetes forwarding conntrack rule")
                    .matching("-m conntrack --ctstate RELATED,ESTABLISHED")
                    .jump("ACCEPT"),
            ],
        ),
        chain(
            Table::Filter,
            names::REJECT,
            [Line::new().protocol(Protocol::Tcp).reject(family, Protocol::Tcp), Line::new().reject_any(family)],
        ),
    ];
    if let PodMatch::Source(cidrs) = &effective.pods[family]
        && cidrs.len() > 1
    {
        let mut rules: Vec<String> =
            cidrs.iter().map(|cidr| Line::new().from(Sense::Is, cidr).jump("RETURN")).collect();
        rules.push(Line::new().jump(names::MARK_MASQ));
        chains.push(chain(Table::Nat, names::MASQ_OTHERS, rules));
    }
    let ends = Dispatch::ALL.into_iter().map(|dispatch| ends(dispatch, family, options, node, cluster));
    Base { chains, ends: ends.collect() }
}

/// The jumps from the built-in chains, the same in both families. A chain that comes later in this list is asked earlier.
pub(crate) fn hooks() -> Vec<Hook> {
    let (any, new) = ("", "-m conntrack --ctstate NEW");
    [
        (
            Table::Filter,
            &["INPUT", "FORWARD", "OUTPUT"][..],
            new,
            "kubernetes externally-visible service portals",
            names::EXTERNAL_SERVICES,
        ),
        (Table::Filter, &["INPUT"], any, "kubernetes health check service ports", names::NODEPORTS),
        (Table::Filter, &["FORWARD", "OUTPUT"], new, "kubernetes service portals", names::SERVICES),
        (Table::Filter, &["FORWARD"], any, "kubernetes forwarding rules", names::FORWARD),
        (
            Table::Filter,
            &["INPUT", "OUTPUT", "FORWARD"],
            new,
            "kubernetes load balancer firewall",
            names::PROXY_FIREWALL,
        ),
        (Table::Nat, &["OUTPUT", "PREROUTING"], any, "kubernetes service portals", names::SERVICES),
        (Table::Nat, &["POSTROUTING"], any, "kubernetes postrouting rules", names::POSTROUTING),
    ]
    .into_iter()
    .flat_map(|(table, chains, state, comment, to)| {
        let line = if state.is_empty() { Line::new() } else { Line::new().matching(state) };
        let rule = line.comment(comment).jump(to);
        chains.iter().map(move |chain| Hook { table, chain, rule: rule.clone() })
    })
    .collect()
}

fn chain(table: Table, name: &str, rules: impl Into<Vec<String>>) -> ChainSpec {
    ChainSpec { table, name: name.to_owned(), rules: rules.into() }
}

fn ends(
    dispatch: Dispatch,
    family: IpFamily,
    options: &DataplaneOptions,
    node: &NodeInfo,
    cluster: &ClusterInfo,
) -> Ends {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    match dispatch {
        Dispatch::Services => {
            let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
            tail = to_node_ports(family, options, node, comment, names::NODEPORTS);
        }
        Dispatch::UnservedExternal => {
            let comment = "node ports that nobody serves";
            tail = to_node_ports(family, options, node, comment, names::UNSERVED_NODEPORTS);
        }
        Dispatch::NodePorts | Dispatch::UnservedNodePorts if !answers_on_loopback(family, options) => {
            head.push(Line::new().within(&loopback(family)).jump("RETURN"));
        }
        Dispatch::UnservedServices => tail.push(
            // What leads to an endpoint has another address by now: it need not be compared with all cluster IPs.
            Line::new()
                .matching("-m conntrack ! --ctstate DNAT")
                .comment("addresses of services that lead nowhere")
                .jump(names::CLUSTER_IPS),
        ),
        Dispatch::ClusterIps => {
            let cidrs = cidrs_of_family(&cluster.service_cidrs, family);
            // What is not for services goes its way, even if somebody says that all addresses are theirs.
            tail.extend(
                cidrs
                    .iter()
                    .filter(|cidr| cidr.prefix_len() > 0)
                    .map(|cidr| Line::new().within(cidr).comment("no service has this address").jump("DROP")),
            );
        }
        // This chain sees all that comes in.
        Dispatch::HealthPorts if answers_on_loopback(family, options) => head.push(localnet_guard()),
        Dispatch::NodePorts | Dispatch::UnservedNodePorts | Dispatch::HealthPorts | Dispatch::Firewall => {}
    }
    Ends { head, tail }
}

/// A jump for each address, or range of addresses, where node ports answer.
fn to_node_ports(
    family: IpFamily,
    options: &DataplaneOptions,
    node: &NodeInfo,
    comment: &str,
    to: &str,
) -> Vec<String> {
    let mut cidrs = match &options.nodeport_addresses {
        NodePortAddresses::Primary => node.primary_address(family).into_iter().map(IpNet::from).collect::<Vec<_>>(),
        NodePortAddresses::Cidrs(cidrs) => cidrs_of_family(cidrs, family),
    };
    let loopback = loopback(family);
    if answers_on_loopback(family, options) && !cidrs.iter().any(|cidr| cidr.contains(&loopback)) {
        cidrs.push(loopback);
    }
    let jump = |cidr: &IpNet| Line::new().within(cidr).comment(comment).local_destination().jump(to);
    cidrs.iter().map(jump).collect()
}

/// Only IPv4 routes its loopback addresses when it is told to.
fn answers_on_loopback(family: IpFamily, options: &DataplaneOptions) -> bool {
    family == IpFamily::V4 && options.localhost_nodeports == LocalhostNodePorts::Open
}

/// Drops what others send to loopback addresses while the kernel routes them: the rule that kubelet has in KUBE-FIREWALL.
pub(crate) fn localnet_guard() -> String {
    let loopback = loopback(IpFamily::V4);
    Line::new()
        .from(Sense::IsNot, &loopback)
        .within(&loopback)
        .comment("block incoming localnet connections")
        .matching("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT")
        .jump("DROP")
}

/// Addresses that never leave the node.
fn loopback(family: IpFamily) -> IpNet {
    match family {
        // 127.0.0.0/8; a prefix length of 8 is never too long.
        IpFamily::V4 => IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
        IpFamily::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    }
}

// === impl Base ===

impl Base {
    /// Whether the kernel must route loopback addresses for it.
    pub(crate) fn routes_localnet(&self) -> bool {
        self.ends(Dispatch::HealthPorts).head.contains(&localnet_guard())
    }

    /// What comes before and behind the lines of service ports.
    pub(crate) fn ends(&self, dispatch: Dispatch) -> &Ends {
        &self.ends[dispatch as usize]
    }
}
