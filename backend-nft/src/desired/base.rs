//! The fixed part of a table: chains that are always there, whatever services there are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use backend::dataplane::{DataplaneOptions, EffectiveOptions, NodePortAddresses, PodMatch, cidrs_of_family};
use ipnet::IpNet;
use netlink::nft::{Chain, ChainType, CmpOp, Hook, Rule, Set, Table, priority};
use proto::model::{ClusterInfo, IpFamily, NodeInfo, Protocol};

use super::{
    nft_family,
    rule::{Address, Line},
};
use crate::element::{Map, REJECT};

const SERVICES: &str = "services";
const NODEPORTS: &str = "nodeports";
const POLICY_LOCAL: &str = "policy-local";
const NODEPORT_POLICY_LOCAL: &str = "nodeport-policy-local";
const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";

/// The fixed part of a family's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) table: Table,
    pub(crate) sets: Vec<Set>,
    /// Base chains last: the kernel calls them as soon as they are there.
    pub(crate) chains: Vec<FixedChain>,
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FixedChain {
    pub(crate) chain: Chain,
    pub(crate) rules: Vec<Rule>,
}

/// The table of a family.
pub(crate) fn table(family: IpFamily) -> Table {
    Table::new(nft_family(family), "fairlead").comment("Kubernetes Services, kept by Fairlead: changes are undone")
}

/// The fixed part for a family on a node.
pub(crate) fn base(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo, cluster: &ClusterInfo) -> Base {
    let effective = options.effective(node);
    let chains = vec![
        FixedChain {
            chain: Chain::regular(REJECT).comment("nobody serves this in the whole cluster"),
            rules: vec![Line::new(family).protocol(Protocol::Tcp).reset().end(), Line::new(family).reject().end()],
        },
        policy_local(
            family,
            &effective,
            Chain::regular(POLICY_LOCAL).comment("VIPs under external traffic policy Local"),
            (Map::ClusterVips, Map::LocalVips),
        ),
        policy_local(
            family,
            &effective,
            Chain::regular(NODEPORT_POLICY_LOCAL).comment("node ports under external traffic policy Local"),
            (Map::ClusterNodePorts, Map::LocalNodePorts),
        ),
        nodeports(family, options, node),
        services(family),
        cluster_ips_check(family, cluster),
        source_check(family),
        hook(family, "prerouting", Hook::Prerouting),
        hook(family, "output", Hook::Output),
        check(family, "forward-check", Hook::Forward),
        check(family, "output-check", Hook::Output),
        postrouting(family, effective.masquerade_mark),
    ];
    let sets = Map::ALL.into_iter().map(|map| map.set(family)).collect();
    Base { table: table(family), sets, chains }
}

impl Base {
    /// The chain of this name.
    pub(crate) fn chain(&self, name: &str) -> Option<&FixedChain> {
        self.chains.iter().find(|fixed| fixed.chain.name == name)
    }
}

/// Where all new connections are looked up.
fn services(family: IpFamily) -> FixedChain {
    let loopback = loopback(family);
    FixedChain {
        chain: Chain::regular(SERVICES),
        rules: vec![
            Line::new(family).vmap(Map::Vips).end(),
            Line::new(family).addressed_to(Map::PolicyLocalVips).goto(POLICY_LOCAL).end(),
            Line::new(family)
                .local(Address::Destination)
                .outside(Address::Destination, [&loopback])
                .goto(NODEPORTS)
                .comment("to the node itself, not loopback"),
        ],
    }
}

/// Pods and the node itself reach all endpoints, for they do not come from outside; everybody else those on this node,
/// with their own address.
fn policy_local(
    family: IpFamily,
    effective: &EffectiveOptions,
    chain: Chain,
    (cluster, local): (Map, Map),
) -> FixedChain {
    let line = || Line::new(family);
    let from_pods = match &effective.pods[family] {
        PodMatch::Unknown => Vec::new(),
        PodMatch::Source(cidrs) => cidrs.iter().map(|cidr| line().within(Address::Source, cidr)).collect(),
        PodMatch::Interface(interface) => vec![line().behind(CmpOp::Eq, interface)],
        PodMatch::InterfacePrefix(prefix) => vec![line().behind_prefix(CmpOp::Eq, prefix)],
    };
    let all_endpoints = |line: Line| line.vmap(cluster).comment("from a pod: all endpoints");
    let mut rules: Vec<Rule> = from_pods.into_iter().map(all_endpoints).collect();
    rules.extend([
        line()
            .local(Address::Source)
            .mark(effective.masquerade_mark)
            .vmap(cluster)
            .comment("from this node: all endpoints, masqueraded"),
        line().vmap(local).comment("from outside: endpoints on this node"),
        // Seen between two states only; a connection that left untranslated would stay so.
        line().discard().comment("the service has just gone"),
    ]);
    FixedChain { chain, rules }
}

fn nodeports(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo) -> FixedChain {
    let (cidrs, answer) = match &options.nodeport_addresses {
        NodePortAddresses::Primary => {
            let address = node.primary_address(family);
            (address.into_iter().map(IpNet::from).collect(), "the node's primary address only")
        }
        NodePortAddresses::Cidrs(cidrs) => (cidrs_of_family(cidrs, family), "the configured addresses only"),
    };
    let mut rules = Vec::new();
    if cidrs.iter().all(|cidr: &IpNet| cidr.prefix_len() > 0) {
        rules.push(Line::new(family).outside(Address::Destination, &cidrs).back().comment(answer));
    }
    rules.extend([
        Line::new(family).vmap(Map::NodePorts).end(),
        Line::new(family).addressed_to(Map::PolicyLocalNodePorts).goto(NODEPORT_POLICY_LOCAL).end(),
    ]);
    FixedChain { chain: Chain::regular(NODEPORTS), rules }
}

/// Before anything is translated: afterwards a packet is addressed to an endpoint, and a refused one is answered. Of
/// connections that exist nothing is asked any more.
fn source_check(family: IpFamily) -> FixedChain {
    let chain = Chain::base("source-check", ChainType::Filter, Hook::Prerouting, priority::DSTNAT - 10);
    FixedChain {
        chain: chain.comment("load-balancer source ranges"),
        rules: vec![
            Line::new(family)
                .opening()
                .addressed_to(Map::Restricted)
                .not_from(Map::SourceRanges)
                .discard()
                .comment("not from a source range of the service"),
        ],
    }
}

/// What is still addressed to a cluster IP after everything that leads to an endpoint has been translated. Whatever the
/// protocol: an echo request, which nobody answers here, is refused as well.
fn cluster_ips_check(family: IpFamily, cluster: &ClusterInfo) -> FixedChain {
    let active = Line::new(family).addressed_to(Map::ClusterIps).goto(REJECT);
    let mut rules = vec![active.comment("a cluster IP, but no port of its service")];
    let cidrs = cidrs_of_family(&cluster.service_cidrs, family);
    // What is not for services goes its way, even if somebody says that all addresses are theirs.
    rules.extend(cidrs.iter().filter(|cidr| cidr.prefix_len() > 0).map(|cidr| {
        Line::new(family).within(Address::Destination, cidr).discard().comment("no service has this address")
    }));
    FixedChain { chain: Chain::regular(CLUSTER_IPS_CHECK), rules }
}

/// After the translation of destinations, before the packet leaves. Connections that exist are left alone.
fn check(family: IpFamily, name: &str, hook: Hook) -> FixedChain {
    let chain = Chain::base(name, ChainType::Filter, hook, priority::FILTER);
    FixedChain {
        chain: chain.comment("addresses of services that lead nowhere"),
        rules: vec![Line::new(family).opening().jump(CLUSTER_IPS_CHECK).end()],
    }
}

fn hook(family: IpFamily, name: &str, hook: Hook) -> FixedChain {
    FixedChain {
        chain: Chain::base(name, ChainType::Nat, hook, priority::DSTNAT),
        rules: vec![Line::new(family).jump(SERVICES).end()],
    }
}

fn postrouting(family: IpFamily, mark: u32) -> FixedChain {
    FixedChain {
        chain: Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT),
        rules: vec![
            Line::new(family).marked(mark).unmark(mark).masquerade().comment("marked on the way in"),
            Line::new(family).hairpin().masquerade().comment("an endpoint that reached itself"),
        ],
    }
}

/// Addresses that never leave the node.
fn loopback(family: IpFamily) -> IpNet {
    match family {
        // 127.0.0.0/8; a prefix length of 8 is never too long.
        IpFamily::V4 => IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
        IpFamily::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    }
}
