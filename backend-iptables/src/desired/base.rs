//! The base ruleset, which does not depend on Services: base chains, the fixed rules of shared chains, and hooks in
//! built-in chains.

use backend::dataplane::{
    DataplaneOptions, DrainedRedirect, InvalidPackets, LocalhostNodePorts, PodMatch, loopback, service_cidrs,
};
use iptables::{ChainSpec, HookRule, Table, target};
use proto::model::{ClusterInfo, IpFamily, NodeInfo, Protocol};

use super::rule::{MatchSense, RuleBuilder};
use crate::{
    names,
    table::{FixedRules, SharedChain},
};

/// The base ruleset of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) chains: Vec<ChainSpec>,
    /// In the order of [`SharedChain::ALL`].
    fixed_rules: Vec<FixedRules>,
}

/// The base ruleset of a family on a node.
pub(crate) fn base(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo, cluster: &ClusterInfo) -> Base {
    let effective = options.effective(node);
    let bit = effective.masquerade_mark;
    let marked = format!("{bit:#x}/{bit:#x}");
    let mut chains = vec![
        chain(Table::Nat, names::MARK_MASQ, [format!("-j MARK --set-xmark {marked}")]),
        chain(
            Table::Nat,
            names::POSTROUTING,
            [
                format!("-m mark ! --mark {marked} -j RETURN"),
                format!("-j MARK --set-xmark {bit:#x}/0x0"),
                RuleBuilder::new()
                    .comment("kubernetes service traffic requiring SNAT")
                    .jump("MASQUERADE --random-fully"),
            ],
        ),
        chain(Table::Filter, names::FORWARD, forward(options, &marked)),
        chain(
            Table::Filter,
            names::REJECT,
            [
                RuleBuilder::new().protocol(Protocol::Tcp).reject(family, Protocol::Tcp),
                // Any other protocol.
                RuleBuilder::new().reject(family, Protocol::Udp),
            ],
        ),
        chain(Table::Filter, names::SILENT, silent(options)),
    ];
    if let PodMatch::Source(cidrs) = &effective.pods[family]
        && cidrs.len() > 1
    {
        let mut rules: Vec<String> =
            cidrs.iter().map(|cidr| RuleBuilder::new().from(MatchSense::Is, cidr).jump("RETURN")).collect();
        rules.push(RuleBuilder::new().jump(names::MARK_MASQ));
        chains.push(chain(Table::Nat, names::MASQ_OTHERS, rules));
    }

    let fixed_rules = SharedChain::ALL.into_iter().map(|shared| fixed_rules(shared, family, options, node, cluster));
    Base { chains, fixed_rules: fixed_rules.collect() }
}

/// The hooks, the same in both families. Each is inserted at the beginning, so that a later hook of this list is
/// evaluated first.
pub(crate) fn hooks() -> Vec<HookRule> {
    use Table::{Filter, Nat};
    let local = &["INPUT", "FORWARD", "OUTPUT"][..];
    let mut hooks = Vec::new();
    for (table, chains, only_new, comment, to) in [
        (Filter, local, true, "kubernetes externally-visible service portals", names::EXTERNAL_SERVICES),
        (Filter, &["INPUT"], false, "kubernetes health check service ports", names::NODEPORTS),
        (Filter, &["FORWARD", "OUTPUT"], true, "kubernetes service portals", names::SERVICES),
        (Filter, &["FORWARD"], false, "kubernetes forwarding rules", names::FORWARD),
        (Filter, &["OUTPUT"], false, "preStop waits until a backend listens", names::SILENT),
        (Filter, local, true, "kubernetes load balancer firewall", names::PROXY_FIREWALL),
        (Nat, &["OUTPUT", "PREROUTING"], false, "kubernetes service portals", names::SERVICES),
        (Nat, &["POSTROUTING"], false, "kubernetes postrouting rules", names::POSTROUTING),
    ] {
        let mut line = RuleBuilder::new();
        if only_new {
            line = line.matching("-m conntrack --ctstate NEW");
        }
        let rule = line.comment(comment).jump(to);
        hooks.extend(chains.iter().map(|chain| HookRule { table, chain, rule: rule.clone() }));
    }
    hooks
}

/// Whether kube-proxy does not have this hook: its chains have the same names, and its other hooks the same rules.
pub(crate) fn is_only_our_hook(hook: &HookRule) -> bool {
    let is_to = |chain| target(&hook.rule) == Some(chain);
    hook.table == Table::Filter && hook.chain == "OUTPUT" && (is_to(names::EXTERNAL_SERVICES) || is_to(names::SILENT))
}

fn chain(table: Table, name: &str, rules: impl Into<Vec<String>>) -> ChainSpec {
    ChainSpec { table, name: name.to_owned(), rules: rules.into() }
}

/// The rules for forwarded packets. Invalid packets are not translated, so they must not reach clients of VIPs.
fn forward(options: &DataplaneOptions, marked: &str) -> Vec<String> {
    let accept = |comment: &str, options: &str| RuleBuilder::new().comment(comment).matching(options).jump("ACCEPT");
    let mut rules = Vec::new();
    if options.invalid_packets == InvalidPackets::Drop {
        rules.push(RuleBuilder::new().matching("-m conntrack --ctstate INVALID").jump("DROP"));
    }
    rules.extend([
        accept("kubernetes forwarding rules", &format!("-m mark --mark {marked}")),
        accept("kubernetes forwarding conntrack rule", "-m conntrack --ctstate RELATED,ESTABLISHED"),
    ]);
    rules
}

fn fixed_rules(
    shared: SharedChain,
    family: IpFamily,
    options: &DataplaneOptions,
    node: &NodeInfo,
    cluster: &ClusterInfo,
) -> FixedRules {
    let mut head = Vec::new();
    let mut tail = Vec::new();
    match shared {
        SharedChain::Services => {
            let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
            tail = drained(family, options, node);
            tail.extend(node_port_jumps(family, options, node, comment, names::NODEPORTS));
        }
        SharedChain::UnservedExternal => {
            let comment = "node ports that nobody serves";
            tail = node_port_jumps(family, options, node, comment, names::UNSERVED_NODEPORTS);
        }
        SharedChain::NodePorts | SharedChain::UnservedNodePorts if !answers_on_loopback(family, options) => {
            head.push(RuleBuilder::new().within(&loopback(family)).jump("RETURN"));
        }
        SharedChain::UnservedServices => tail.push(
            // Packets to an endpoint have been translated, and need not be compared with all cluster IPs.
            RuleBuilder::new()
                .matching("-m conntrack ! --ctstate DNAT")
                .comment("addresses of services that lead nowhere")
                .jump(names::CLUSTER_IPS),
        ),
        SharedChain::ClusterIps => {
            for cidr in service_cidrs(cluster, family) {
                tail.push(RuleBuilder::new().within(&cidr).comment("no service has this address").jump("DROP"));
            }
        }
        // This chain is evaluated for all received packets.
        SharedChain::HealthPorts if answers_on_loopback(family, options) => head.push(localnet_guard()),
        SharedChain::NodePorts | SharedChain::UnservedNodePorts | SharedChain::HealthPorts | SharedChain::Firewall => {}
    }
    FixedRules { head, tail }
}

/// Leads the kubelet of this node from a pod that ends to the backend.
fn drained(family: IpFamily, options: &DataplaneOptions, node: &NodeInfo) -> Vec<String> {
    let Some(DrainedRedirect { ports, pods, backend }) = options.drained_redirect(family, node) else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    for port in ports {
        for to_pod in RuleBuilder::new().towards(&pods) {
            let from_kubelet = to_pod
                .comment("preStop of a pod: /drained")
                .port(Protocol::Tcp, port.get())
                .matching("-m addrtype --src-type LOCAL");
            rules.push(from_kubelet.jump(&format!("DNAT --to-destination {backend}")));
        }
    }
    rules
}

/// Drops the resets of the kernel while no backend listens at the port of `/drained`: the kubelet connects again.
fn silent(options: &DataplaneOptions) -> Vec<String> {
    let port = options.drained_ports.own;
    port.iter().map(|port| format!("-p tcp -m tcp --sport {port} --tcp-flags RST RST -j DROP")).collect()
}

/// A jump for each address or CIDR at which node ports are served.
fn node_port_jumps(
    family: IpFamily,
    options: &DataplaneOptions,
    node: &NodeInfo,
    comment: &str,
    to: &str,
) -> Vec<String> {
    let mut cidrs = options.node_port_ranges(family, node);
    let loopback = loopback(family);
    if answers_on_loopback(family, options) && !cidrs.iter().any(|cidr| cidr.contains(&loopback)) {
        cidrs.push(loopback);
    }

    let local = "-m addrtype --dst-type LOCAL";
    cidrs.iter().map(|cidr| RuleBuilder::new().within(cidr).comment(comment).matching(local).jump(to)).collect()
}

/// The kernel can route loopback addresses (`route_localnet`) of IPv4 only.
fn answers_on_loopback(family: IpFamily, options: &DataplaneOptions) -> bool {
    family == IpFamily::V4 && options.localhost_nodeports == LocalhostNodePorts::Open
}

/// Drops packets from elsewhere to loopback addresses while the kernel routes them. kubelet has the same rule in
/// KUBE-FIREWALL.
pub(crate) fn localnet_guard() -> String {
    let loopback = loopback(IpFamily::V4);
    RuleBuilder::new()
        .from(MatchSense::IsNot, &loopback)
        .within(&loopback)
        .comment("block incoming localnet connections")
        .matching("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT")
        .jump("DROP")
}

// === impl Base ===

impl Base {
    /// Whether it needs `route_localnet`.
    pub(crate) fn routes_localnet(&self) -> bool {
        self.fixed_rules(SharedChain::HealthPorts).head.contains(&localnet_guard())
    }

    /// Adds the rule that protects loopback addresses while the kernel routes them.
    pub(crate) fn keep_localnet_guard(&mut self) {
        if !self.routes_localnet() {
            self.fixed_rules[SharedChain::HealthPorts as usize].head.push(localnet_guard());
        }
    }

    pub(crate) fn fixed_rules(&self, shared: SharedChain) -> &FixedRules {
        &self.fixed_rules[shared as usize]
    }
}
