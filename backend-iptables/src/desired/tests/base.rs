//! The base ruleset: base chains, fixed rules of shared chains, and hooks.

use std::num::NonZeroU16;

use backend::dataplane::{DrainedPorts, NodePortAddresses};

use super::*;
use crate::table::{FixedRules, SharedChain};

/// The base chains, then the fixed rules of shared chains, with their position.
fn fixed(family: IpFamily, options: &DataplaneOptions) -> Vec<String> {
    let state = mk_state().build();
    let base = base(family, options, state.node(), state.cluster());
    let chains = base
        .chains
        .iter()
        .flat_map(|chain| chain.rules.iter().map(move |rule| format!("{} -A {} {rule}", chain.table, chain.name)));
    let fixed_rules = SharedChain::ALL.into_iter().flat_map(|shared| {
        let fixed_rules = base.fixed_rules(shared);
        assert!(fixed_rules.head.is_empty() || fixed_rules.tail.is_empty(), "{fixed_rules:?}");
        let at = if fixed_rules.tail.is_empty() { "first" } else { "last" };
        fixed_rules.lines().map(move |line| format!("{at} {} -A {} {line}", shared.table(), shared.chain()))
    });
    chains.chain(fixed_rules).collect()
}

/// Two rules of kube-proxy are missing: node ports are not served at loopback addresses, so these need no protection,
/// and packets are not counted.
#[test]
fn ipv4() {
    assert_lines(
        &fixed(IpFamily::V4, &pods()),
        r#"
nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
filter -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
filter -A FAIRLEAD-REJECT -p tcp -j REJECT --reject-with tcp-reset
filter -A FAIRLEAD-REJECT -j REJECT --reject-with icmp-port-unreachable
last nat -A KUBE-SERVICES -d 192.168.1.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
first nat -A KUBE-NODEPORTS -d 127.0.0.0/8 -j RETURN
last filter -A KUBE-SERVICES -m conntrack ! --ctstate DNAT -m comment --comment "addresses of services that lead nowhere" -j FAIRLEAD-CLUSTER-IPS
last filter -A KUBE-EXTERNAL-SERVICES -d 192.168.1.1/32 -m comment --comment "node ports that nobody serves" -m addrtype --dst-type LOCAL -j FAIRLEAD-NODEPORTS
first filter -A FAIRLEAD-NODEPORTS -d 127.0.0.0/8 -j RETURN
last filter -A FAIRLEAD-CLUSTER-IPS -d 10.96.0.0/12 -m comment --comment "no service has this address" -j DROP
"#,
    );
}

#[test]
fn ipv6() {
    let ranges = vec!["::/0".parse().unwrap(), "192.168.0.0/16".parse().unwrap()];
    let options = DataplaneOptions {
        masquerade_bit: 20,
        nodeport_addresses: NodePortAddresses::Cidrs(ranges),
        ..within(&["fd00:10::/32", "fd00:11::/32"])
    };
    assert_lines(
        &fixed(IpFamily::V6, &options),
        r#"
nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x100000/0x100000
nat -A KUBE-POSTROUTING -m mark ! --mark 0x100000/0x100000 -j RETURN
nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x100000/0x0
nat -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
filter -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x100000/0x100000 -j ACCEPT
filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
filter -A FAIRLEAD-REJECT -p tcp -j REJECT --reject-with tcp-reset
filter -A FAIRLEAD-REJECT -j REJECT --reject-with icmp6-port-unreachable
nat -A FAIRLEAD-MASQ-OTHERS -s fd00:10::/32 -j RETURN
nat -A FAIRLEAD-MASQ-OTHERS -s fd00:11::/32 -j RETURN
nat -A FAIRLEAD-MASQ-OTHERS -j KUBE-MARK-MASQ
last nat -A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
first nat -A KUBE-NODEPORTS -d ::1/128 -j RETURN
last filter -A KUBE-SERVICES -m conntrack ! --ctstate DNAT -m comment --comment "addresses of services that lead nowhere" -j FAIRLEAD-CLUSTER-IPS
last filter -A KUBE-EXTERNAL-SERVICES -m comment --comment "node ports that nobody serves" -m addrtype --dst-type LOCAL -j FAIRLEAD-NODEPORTS
first filter -A FAIRLEAD-NODEPORTS -d ::1/128 -j RETURN
last filter -A FAIRLEAD-CLUSTER-IPS -d fd00:96::/108 -m comment --comment "no service has this address" -j DROP
"#,
    );
}

/// Before the jumps for node ports, which come last. The node has the pod CIDRs 10.244.1.0/24 and
/// fd00:244:1::/64.
#[test]
fn connections_of_the_node_to_the_drained_port_of_its_pods_lead_to_the_backend() {
    let drained_ports = DrainedPorts { own: NonZeroU16::new(24_256), health: None };
    let detected = |local_detector| DataplaneOptions { local_detector, drained_ports, ..DataplaneOptions::default() };
    let rules = |options: DataplaneOptions, family| {
        let state = mk_state().build();
        let base = base(family, &options, state.node(), state.cluster());
        let FixedRules { head, mut tail } = base.fixed_rules(SharedChain::Services).clone();
        assert!(head.is_empty() && tail.pop().unwrap().ends_with("-j KUBE-NODEPORTS"), "{tail:?}");
        tail
    };
    let to = |pods: &str, backend: &str| {
        format!(
            "{pods} -p tcp -m comment --comment \"preStop of a pod: /drained\" -m tcp --dport 24256 \
             -m addrtype --src-type LOCAL -j DNAT --to-destination {backend}"
        )
    };
    assert_eq!(rules(detected(LocalDetector::None), IpFamily::V4), [to("-d 10.244.1.0/24", "127.0.0.1")]);
    assert_eq!(rules(detected(LocalDetector::None), IpFamily::V6), [to("-d fd00:244:1::/64", "::1")]);
    let pods = DataplaneOptions { drained_ports, ..within(&["10.244.0.0/16", "fd00:244::/32"]) };
    assert_eq!(rules(pods.clone(), IpFamily::V4), [to("-d 10.244.0.0/16", "127.0.0.1")]);
    assert_eq!(rules(pods, IpFamily::V6), [to("-d fd00:244::/32", "::1")]);
    let bridge = detected(LocalDetector::BridgeInterface("cbr0".parse().unwrap()));
    assert_eq!(rules(bridge, IpFamily::V6), [to("-o cbr0", "::1")]);
    let prefix = detected(LocalDetector::InterfaceNamePrefix("veth".parse().unwrap()));
    assert_eq!(rules(prefix, IpFamily::V4), [to("-o veth+", "127.0.0.1")]);
    assert_eq!(rules(super::pods(), IpFamily::V4), [""; 0]);
    let both = DrainedPorts { health: NonZeroU16::new(10_256), ..drained_ports };
    let both = rules(DataplaneOptions { drained_ports: both, ..DataplaneOptions::default() }, IpFamily::V4);
    assert!(both.len() == 2 && both[0].contains("--dport 24256 ") && both[1].contains("--dport 10256 "), "{both:?}");
}

/// Nothing else than the port of `/drained` keeps silent: load balancers need the resets of the port for health checks.
#[test]
fn kernel_sends_no_reset_from_the_drained_port() {
    let rules = |own: u16| {
        let state = mk_state().build();
        let drained_ports = DrainedPorts { own: NonZeroU16::new(own), health: NonZeroU16::new(10_256) };
        let options = DataplaneOptions { drained_ports, ..DataplaneOptions::default() };
        let base = base(IpFamily::V4, &options, state.node(), state.cluster());
        base.chains.into_iter().find(|chain| chain.name == "FAIRLEAD-SILENT").unwrap().rules
    };

    assert_eq!(rules(24_256), ["-p tcp -m tcp --sport 24256 --tcp-flags RST RST -j DROP"]);
    assert_eq!(rules(0), [""; 0]);
}

/// Those of kube-proxy, and two more: packets of the node to an external IP without endpoints are rejected too, and
/// nothing resets connections to the port of `/drained`.
#[test]
fn hooks_in_built_in_chains() {
    let hooks = hooks();
    let lines: Vec<String> =
        hooks.iter().map(|hook| format!("{} -A {} {}", hook.table, hook.chain, hook.rule)).collect();
    assert_lines(
        &lines,
        r#"
filter -A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
filter -A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
filter -A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
filter -A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
filter -A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
filter -A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
filter -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
filter -A OUTPUT -m comment --comment "preStop waits until a backend listens" -j FAIRLEAD-SILENT
filter -A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
filter -A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
filter -A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
nat -A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
nat -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
"#,
    );
}
