//! The base ruleset: the table, its chains and maps that do not depend on service ports.

use backend::dataplane::{
    DataplaneOptions, DrainedRedirect, EffectiveOptions, NodePortAddresses, loopback, service_cidrs,
};
use netlink::nft::{Chain, ChainType, CmpOp, Hook, Rule, Set, Table, priority};
use proto::model::{ClusterInfo, IpFamily, NodeInfo, Protocol};

use super::rule::{PacketAddress, RuleBuilder};
use crate::element::{Map, REJECT};

const SERVICES: &str = "services";
const NODEPORTS: &str = "nodeports";
const POLICY_LOCAL: &str = "policy-local";
const NODEPORT_POLICY_LOCAL: &str = "nodeport-policy-local";
const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";

/// The base ruleset of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) table: Table,
    pub(crate) sets: Vec<Set>,
    /// Base chains (those with a hook) last: packets traverse them as soon as they exist.
    pub(crate) chains: Vec<FixedChain>,
}

/// A chain of the base ruleset with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FixedChain {
    pub(crate) chain: Chain,
    pub(crate) rules: Vec<Rule>,
}

pub(crate) fn table(family: IpFamily) -> Table {
    let table = Table::new(family, backend::NFT_TABLE);
    table.comment("Kubernetes Services, kept by Fairlead: changes are undone")
}

/// Whether this is the name of our table, of any layout: `fairlead` and the number of a layout; before layouts had
/// numbers, `fairlead` and `fairlead-standby`. Others are the user's, as `fairlead-foo`, `fairlead1-foo`, `fairlead01`.
pub fn is_own_table(name: &str) -> bool {
    let is_layout = |number: &str| !number.starts_with('0') && number.bytes().all(|digit| digit.is_ascii_digit());
    name.strip_prefix("fairlead").is_some_and(|rest| rest == "-standby" || is_layout(rest))
}

/// The base ruleset of a family on a node.
pub(crate) fn base(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo, cluster: &ClusterInfo) -> Base {
    let effective = options.effective(node);
    let chains = vec![
        FixedChain {
            chain: Chain::regular(REJECT).comment("nobody serves this in the whole cluster"),
            rules: vec![
                RuleBuilder::new(family).protocol(Protocol::Tcp).reject_with_reset().build(),
                RuleBuilder::new(family).reject().build(),
            ],
        },
        policy_local(
            family,
            &effective,
            Chain::regular(POLICY_LOCAL).comment("VIPs under external traffic policy Local"),
            Map::ClusterVips,
            Map::LocalVips,
        ),
        policy_local(
            family,
            &effective,
            Chain::regular(NODEPORT_POLICY_LOCAL).comment("node ports under external traffic policy Local"),
            Map::ClusterNodePorts,
            Map::LocalNodePorts,
        ),
        nodeports(family, options, node),
        services(family),
        cluster_ips_check(family, cluster),
        source_check(family, "source-ranges-check", Hook::Prerouting),
        source_check(family, "source-ranges-output", Hook::Output),
        hook(family, "prerouting", Hook::Prerouting, None),
        hook(family, "output", Hook::Output, options.drained_redirect(family, node)),
        cluster_ips_hook(family, "forward-check", Hook::Forward),
        output_check(family, options),
        postrouting(family, effective.masquerade_mark),
    ];

    let sets = Map::ALL.into_iter().map(|map| map.set(family)).collect();
    Base { table: table(family), sets, chains }
}

impl Base {
    pub(crate) fn chain(&self, name: &str) -> Option<&FixedChain> {
        self.chains.iter().find(|fixed| fixed.chain.name == name)
    }
}

/// Looks up the VIP of every new connection.
///
/// Each lookup sees the elements before or after a transaction, which may move the VIP between the two maps. So the
/// first map is looked up again: only two transactions within one traversal hide a VIP. The set is the first map,
/// because the kernel walks all elements of `vips` for each rule with it, at each change. A verdict that is replaced is
/// in one map: if the transaction takes effect during the lookup, the kernel repeats the lookup (Linux 6.17).
fn services(family: IpFamily) -> FixedChain {
    FixedChain {
        chain: Chain::regular(SERVICES),
        rules: vec![
            RuleBuilder::new(family).vip_in_set(Map::PolicyLocalVips).goto(POLICY_LOCAL).build(),
            RuleBuilder::new(family).vmap(Map::Vips).build(),
            just_moved(family, Map::PolicyLocalVips),
            RuleBuilder::new(family)
                .local_address(CmpOp::Eq, PacketAddress::Destination)
                .not_in_cidrs(PacketAddress::Destination, &[loopback(family)])
                .goto(NODEPORTS)
                .comment("to the node itself, not loopback"),
        ],
    }
}

/// Drops a packet whose VIP a transaction has moved to this set since the first lookup. The client repeats it.
fn just_moved(family: IpFamily, policy_local: Map) -> Rule {
    RuleBuilder::new(family).vip_in_set(policy_local).drop_packet().comment("the service has just changed")
}

/// Pods and the node itself reach all endpoints; other clients reach the endpoints on this node, without masquerading.
fn policy_local(family: IpFamily, effective: &EffectiveOptions, chain: Chain, cluster: Map, local: Map) -> FixedChain {
    let mut rules = Vec::new();
    for from_pod in RuleBuilder::new(family).of_pods(PacketAddress::Source, &effective.pods[family]) {
        rules.push(from_pod.vmap(cluster).comment("from a pod: all endpoints"));
    }
    rules.extend([
        RuleBuilder::new(family)
            .local_address(CmpOp::Eq, PacketAddress::Source)
            .set_mark(effective.masquerade_mark)
            .vmap(cluster)
            .comment("from this node: all endpoints, masqueraded"),
        RuleBuilder::new(family).vmap(local).comment("from outside: endpoints on this node"),
        // Only while a transaction takes effect. If the packet left untranslated, so would its whole connection.
        RuleBuilder::new(family).drop_packet().comment("the service has just gone"),
    ]);
    FixedChain { chain, rules }
}

/// Looks up a node port, as [`services`] does.
fn nodeports(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo) -> FixedChain {
    let cidrs = options.node_port_ranges(family, node);
    let mut rules = Vec::new();
    if cidrs.iter().all(|cidr| cidr.prefix_len() > 0) {
        let comment = match &options.nodeport_addresses {
            NodePortAddresses::Primary => "the node's primary address only",
            NodePortAddresses::Cidrs(_) => "the configured addresses only",
        };
        let elsewhere = RuleBuilder::new(family).not_in_cidrs(PacketAddress::Destination, &cidrs);
        rules.push(elsewhere.return_to_caller().comment(comment));
    }
    rules.extend([
        RuleBuilder::new(family).vip_in_set(Map::PolicyLocalNodePorts).goto(NODEPORT_POLICY_LOCAL).build(),
        RuleBuilder::new(family).vmap(Map::NodePorts).build(),
        just_moved(family, Map::PolicyLocalNodePorts),
    ]);
    FixedChain { chain: Chain::regular(NODEPORTS), rules }
}

/// Runs before destinations are translated, when packets still have the VIP as destination. Only new connections are
/// checked.
fn source_check(family: IpFamily, name: &str, hook: Hook) -> FixedChain {
    let chain = Chain::base(name, ChainType::Filter, hook, priority::DSTNAT - 10);
    FixedChain {
        chain: chain.comment("load-balancer source ranges"),
        rules: vec![RuleBuilder::new(family).new_connection().vmap(Map::RestrictedVips).build()],
    }
}

/// Handles packets that still have a cluster IP as destination after translation: no service port has their port. This
/// includes echo requests.
fn cluster_ips_check(family: IpFamily, cluster: &ClusterInfo) -> FixedChain {
    let cluster_ip = RuleBuilder::new(family).vip_in_set(Map::ClusterIps).goto(REJECT);
    let mut rules = vec![cluster_ip.comment("a cluster IP, but no port of its service")];
    for cidr in service_cidrs(cluster, family) {
        let unused_address = RuleBuilder::new(family).in_cidr(PacketAddress::Destination, &cidr);
        rules.push(unused_address.drop_packet().comment("no service has this address"));
    }
    FixedChain { chain: Chain::regular(CLUSTER_IPS_CHECK), rules }
}

/// Runs after destinations are translated. Only new connections are checked.
fn cluster_ips_hook(family: IpFamily, name: &str, hook: Hook) -> FixedChain {
    let chain = Chain::base(name, ChainType::Filter, hook, priority::FILTER);
    FixedChain {
        chain: chain.comment("addresses of services that lead nowhere"),
        rules: vec![RuleBuilder::new(family).new_connection().jump(CLUSTER_IPS_CHECK).build()],
    }
}

/// As [`cluster_ips_hook`] for packets of this node, which include the resets of its kernel.
fn output_check(family: IpFamily, options: &DataplaneOptions) -> FixedChain {
    let mut check = cluster_ips_hook(family, "output-check", Hook::Output);
    if let Some(port) = options.drained_ports.own {
        let reset = RuleBuilder::new(family).tcp_source_port(port).tcp_reset();
        check.rules.push(reset.drop_packet().comment("preStop waits until a backend listens"));
    }
    check
}

fn hook(family: IpFamily, name: &str, hook: Hook, redirect: Option<DrainedRedirect>) -> FixedChain {
    let mut rules = vec![RuleBuilder::new(family).jump(SERVICES).build()];
    if let Some(redirect) = &redirect {
        rules.extend(drained(family, redirect));
    }
    FixedChain { chain: Chain::base(name, ChainType::Nat, hook, priority::DSTNAT), rules }
}

/// Leads the kubelet of this node from a pod that ends to the backend.
fn drained(family: IpFamily, redirect: &DrainedRedirect) -> Vec<Rule> {
    let mut rules = Vec::new();
    for port in &redirect.ports {
        for to_pod in RuleBuilder::new(family).of_pods(PacketAddress::Destination, &redirect.pods) {
            let rule = to_pod.tcp_port(*port).dnat_to_address(redirect.backend);
            rules.push(rule.comment("preStop of a pod: /drained"));
        }
    }
    rules
}

fn postrouting(family: IpFamily, mark: u32) -> FixedChain {
    FixedChain {
        chain: Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT),
        rules: vec![
            RuleBuilder::new(family).has_mark(mark).clear_mark(mark).masquerade().comment("marked on the way in"),
            RuleBuilder::new(family).hairpin().masquerade().comment("an endpoint that reached itself"),
            // Endpoints of hand-written or mirrored slices have no node name, so they are not in the set of endpoints
            // on this node. The other addresses of the node do not matter: local replies need no masquerading.
            RuleBuilder::new(family)
                .returns_to_source()
                .local_address(CmpOp::Neq, PacketAddress::Destination)
                .masquerade()
                .comment("an endpoint without node name that reached itself"),
        ],
    }
}
