//! Virtual servers, with the iptables rules of kube-proxy's IPVS mode and of Fairlead.

use std::net::IpAddr;

use ::iptables::Variant;
use netlink::{
    ipset::{self, IpsetEntry as Element},
    ipvs::Scheduling,
};
use proto::model::Protocol;

use super::*;
use crate::{
    Packet, PacketOrigin, PacketVerdict, Path, Trace,
    testing::{FakeKernel, tables},
    trace,
};

const NODE: &str = "172.18.0.2";
const CLUSTER_IP: &str = "10.96.0.10";
/// The mark of a virtual server.
const MARK: u32 = 0xfa00_0011;

/// kube-proxy's rules, without local traffic detection.
const KUBE_PROXYS: &str = r#"*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES ! -s 10.244.0.0/16 -m comment --comment "cluster IPs, for masquerade" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-NODE-PORT -p tcp -m comment --comment "node ports, for masquerade" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m comment --comment "hairpin" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "needs SNAT" -j MASQUERADE --random-fully
COMMIT
"#;

/// As ours are, where marks lead to virtual servers.
const OURS: &str = r"*mangle
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:FAIRLEAD-IPVS - [0:0]
:FAIRLEAD-IPVS-MASQ - [0:0]
:FAIRLEAD-IPVS-END - [0:0]
-A INPUT -m conntrack --ctstate NEW -j FAIRLEAD-IPVS
-A OUTPUT -m conntrack --ctstate NEW -j FAIRLEAD-IPVS
-A POSTROUTING -j FAIRLEAD-IPVS-END
-A FAIRLEAD-IPVS -m mark --mark 0xfa000000/0xff000000 -j RETURN
-A FAIRLEAD-IPVS -m set --match-set RESTRICTED dst,dst -m set ! --match-set SOURCES dst,dst,src -j DROP
-A FAIRLEAD-IPVS -j SET --map-set VIPS dst,dst --map-mark
-A FAIRLEAD-IPVS -m mark --mark 0xfa000000/0xff000000 -j FAIRLEAD-IPVS-MASQ
-A FAIRLEAD-IPVS-MASQ -m mark --mark 0xfa000001/0xff000003 -j CONNMARK --set-xmark 0x4000/0x4000
-A FAIRLEAD-IPVS-END -m mark --mark 0xfa000000/0xff000000 -j MARK --set-xmark 0x0/0xffffffff
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -m connmark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m mark --mark 0xfa000004 -j REJECT --reject-with tcp-reset
-A OUTPUT -m mark --mark 0xfa000004 -j REJECT --reject-with tcp-reset
COMMIT
";

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

fn element(address: &str, port: u16) -> Element {
    Element { ip: ip(address), protocol: Some(6), port: Some(port), ..Element::default() }
}

fn set(name: &str, kind: &str, entries: &[Element]) -> (ipset::Ipset, Vec<Element>) {
    let family = (kind != "bitmap:port").then_some(IpFamily::V4);
    (ipset::Ipset { name: name.to_owned(), type_name: kind.to_owned(), family }, entries.to_vec())
}

fn server(scheduler: &str, flags: u32, destinations: &[(&str, u32)]) -> VirtualServer {
    let destinations = destinations.iter().map(|(address, weight)| Destination::new(address.parse().unwrap(), *weight));
    let scheduling = Scheduling { scheduler: scheduler.into(), flags, timeout: 180 };
    VirtualServer { scheduling, destinations: destinations.collect() }
}

fn tcp(address: &str) -> VirtualServerKey {
    VirtualServerKey::Address(Protocol::Tcp, address.parse().unwrap())
}

/// Three endpoints, of which the last drains.
const ENDPOINTS: [(&str, u32); 3] = [("10.244.1.1:8080", 1), ("10.244.2.1:8080", 1), ("10.244.3.1:8080", 0)];

fn kernel() -> FakeKernel {
    let mut kernel = FakeKernel::with(&[NODE, CLUSTER_IP, "10.96.0.11"]);
    kernel.servers.insert(tcp("10.96.0.10:80"), server("rr", 0, &ENDPOINTS));
    kernel
}

fn outside() -> PacketOrigin {
    PacketOrigin::Interface("eth0".to_owned())
}

fn evaluate(saved: &str, source: &str, destination: &str, origin: PacketOrigin, kernel: &mut FakeKernel) -> Trace {
    let rules = tables(Variant::Legacy, saved);
    let (source, destination) = (format!("{source}:40000").parse().unwrap(), destination.parse().unwrap());
    trace(&rules, &Packet { source, destination, protocol: Protocol::Tcp, origin }, kernel).unwrap()
}

fn summaries(trace: &Trace) -> Vec<String> {
    assert!(trace.paths.iter().all(|path| path.unknown.is_empty()), "{:?}", trace.paths[0].unknown);
    trace.summaries().iter().map(ToString::to_string).collect()
}

/// Without rules.
fn summary(kernel: &mut FakeKernel, destination: &str) -> Vec<String> {
    summaries(&evaluate("", "10.244.1.9", destination, outside(), kernel))
}

fn chains(path: &Path) -> Vec<(&str, &str)> {
    path.steps.iter().map(|step| (step.hook, step.chain.trim_start_matches("iptables-legacy "))).collect()
}

#[test]
fn draining_endpoints_get_no_new_connections() {
    let expected = "sent to one of 2 endpoints, scheduler rr: 10.244.1.1:8080 (50 %), 10.244.2.1:8080 (50 %); \
        source unchanged";
    let trace = evaluate("", "10.244.1.9", "10.96.0.10:80", outside(), &mut kernel());
    assert_eq!(summaries(&trace), [expected]);
    let action = &trace.paths[0].steps[0].action;
    assert_eq!(
        action,
        "destination 10.244.1.1:8080 of 2, scheduler rr; no new connections to 10.244.3.1:8080 (weight 0)"
    );
}

#[test]
fn schedulers_are_named() {
    let mut kernel = kernel();
    let weights = [("10.244.1.1:8080", 3), ("10.244.2.1:8080", 1)];
    for (scheduler, flags, expected) in [
        ("wrr", 0, "scheduler wrr: 10.244.1.1:8080 (75 %), 10.244.2.1:8080 (25 %)"),
        ("wlc", 0, "scheduler wlc: 10.244.1.1:8080, 10.244.2.1:8080"),
        ("mh", 0, "scheduler mh: 10.244.1.1:8080, 10.244.2.1:8080"),
        ("rr", PERSISTENT, "scheduler rr: 10.244.1.1:8080 (50 %), 10.244.2.1:8080 (50 %)"),
    ] {
        kernel.servers.insert(tcp("10.96.0.10:80"), server(scheduler, flags, &weights));
        let expected = format!("sent to one of 2 endpoints, {expected}; source unchanged");
        assert_eq!(summary(&mut kernel, "10.96.0.10:80"), [expected]);
    }
}

#[test]
fn a_persistent_client_keeps_its_endpoint() {
    let mut kernel = kernel();
    let key = tcp("10.96.0.10:80");
    kernel.servers.insert(key, server("rr", PERSISTENT, &ENDPOINTS));
    let client = "10.244.1.9".parse().unwrap();
    kernel.persistent.insert((key, client), "10.244.2.1:8080".parse().unwrap());
    let stays = "sent to 10.244.2.1:8080, the endpoint of earlier connections of this client; source unchanged";
    assert_eq!(summary(&mut kernel, "10.96.0.10:80"), [stays]);
    // Its endpoint is draining.
    kernel.persistent.insert((key, client), "10.244.3.1:8080".parse().unwrap());
    assert!(summary(&mut kernel, "10.96.0.10:80")[0].starts_with("sent to one of 2"));
}

#[test]
fn without_destinations_the_packet_is_rejected() {
    let mut kernel = kernel();
    for destinations in [&[][..], &ENDPOINTS[2..]] {
        kernel.servers.insert(tcp("10.96.0.10:80"), server("rr", 0, destinations));
        let rejected = "rejected with ICMP port unreachable: virtual server tcp 10.96.0.10:80 has no destination \
            that accepts new connections";
        assert_eq!(summary(&mut kernel, "10.96.0.10:80"), [rejected]);
    }
}

#[test]
fn ipvs_handles_packets_to_local_addresses_and_those_of_the_node() {
    let mut kernel = kernel();
    kernel.servers.insert(tcp("192.0.2.77:80"), server("rr", 0, &ENDPOINTS));
    assert!(summary(&mut kernel, "192.0.2.77:80")[0].starts_with("not translated"));
    let own = evaluate("", NODE, "192.0.2.77:80", PacketOrigin::Node, &mut kernel);
    assert!(summaries(&own)[0].starts_with("sent to one of 2"));
    assert!(summary(&mut kernel, "10.96.0.10:81")[0].starts_with("not translated"));
}

#[test]
fn a_packet_to_an_endpoint_on_the_node_itself_is_delivered_locally() {
    let mut kernel = kernel();
    kernel.servers.insert(tcp("10.96.0.10:80"), server("rr", 0, &[("172.18.0.2:8080", 1)]));
    for origin in [outside(), PacketOrigin::Node] {
        let trace = evaluate(OURS, "10.244.1.9", "10.96.0.10:80", origin.clone(), &mut kernel);
        let hooks: Vec<_> = trace.paths[0].steps.iter().map(|step| step.hook).collect();
        assert_eq!(hooks.contains(&"output"), origin == PacketOrigin::Node, "{hooks:?}");
        assert_eq!(trace.paths[0].endpoint, Some("172.18.0.2:8080".parse().unwrap()));
    }
}

#[test]
fn ipsets_of_kube_proxy_select_masquerading() {
    let mut kernel = kernel();
    kernel.servers.insert(tcp("172.18.0.2:30080"), server("rr", 0, &ENDPOINTS));
    let hairpin = Element { ip2: ip("10.244.1.1"), ..element("10.244.1.1", 8080) };
    kernel.sets = vec![
        set("KUBE-CLUSTER-IP", "hash:ip,port", &[element(CLUSTER_IP, 80)]),
        set("KUBE-NODE-PORT-TCP", "bitmap:port", &[Element { port: Some(30080), ..Element::default() }]),
        set("KUBE-LOOP-BACK", "hash:ip,port,ip", &[hairpin]),
    ];
    let mut reason = |source: &str, destination: &str| {
        let trace = evaluate(KUBE_PROXYS, source, destination, outside(), &mut kernel);
        let reason = |path: &Path| path.masquerade.as_ref().map(|translation| translation.reason.clone());
        trace.paths.iter().map(reason).collect::<Vec<_>>()
    };
    assert_eq!(reason("10.244.1.9", "10.96.0.10:80"), [None, None]);
    assert_eq!(reason("10.244.1.1", "10.96.0.10:80"), [Some("hairpin".to_owned()), None]);
    let expected = || Some("cluster IPs, for masquerade".to_owned());
    assert_eq!(reason("192.0.2.1", "10.96.0.10:80"), [expected(), expected()]);
    let expected = || Some("node ports, for masquerade".to_owned());
    assert_eq!(reason("192.0.2.1", "172.18.0.2:30080"), [expected(), expected()]);
}

/// A VIP whose mark has a virtual server, and one that is rejected.
fn with_marks() -> FakeKernel {
    let mut kernel = kernel();
    let marked = |address, mark| Element { mark: Some(mark), ..element(address, 443) };
    let range = Element { ip2: ip("192.0.2.0"), prefix2: Some(24), ..element(CLUSTER_IP, 443) };
    kernel.sets = vec![
        set("VIPS", "hash:ip,port", &[marked(CLUSTER_IP, MARK), marked("10.96.0.11", 0xfa00_0004)]),
        set("RESTRICTED", "hash:ip,port", &[element(CLUSTER_IP, 443)]),
        set("SOURCES", "hash:ip,port,net", &[range]),
    ];
    kernel.servers.insert(VirtualServerKey::FwMark(IpFamily::V4, MARK), server("rr", 0, &ENDPOINTS));
    kernel
}

#[test]
fn a_mark_from_a_set_leads_to_its_virtual_server() {
    let trace = evaluate(OURS, "192.0.2.1", "10.96.0.10:443", outside(), &mut with_marks());
    let expected = "sent to one of 2 endpoints, scheduler rr: 10.244.1.1:8080 (50 %), 10.244.2.1:8080 (50 %); \
        source masqueraded as 10.96.0.10, by rule: -m mark --mark 0xfa000001/0xff000003 -j CONNMARK --set-xmark \
        0x4000/0x4000";
    assert_eq!(summaries(&trace), [expected]);
    let expected = [
        ("input", "mangle INPUT"),
        ("input", "mangle FAIRLEAD-IPVS"),
        ("input", "mangle FAIRLEAD-IPVS"),
        ("input", "mangle FAIRLEAD-IPVS-MASQ"),
        ("input", "filter INPUT"),
        ("input", "IPVS"),
        ("output", "mangle OUTPUT"),
        ("output", "mangle FAIRLEAD-IPVS"),
        ("output", "filter OUTPUT"),
        ("postrouting", "mangle POSTROUTING"),
        ("postrouting", "mangle FAIRLEAD-IPVS-END"),
        ("postrouting", "nat POSTROUTING"),
    ];
    assert_eq!(chains(&trace.paths[0]), expected);
    // For packets of the node, IPVS comes before filter OUTPUT.
    let trace = evaluate(OURS, "192.0.2.1", "10.96.0.10:443", PacketOrigin::Node, &mut with_marks());
    let hooks: Vec<_> = chains(&trace.paths[0]).into_iter().map(|(hook, _)| hook).collect();
    assert!(!hooks.contains(&"input") && hooks.contains(&"postrouting"), "{hooks:?}");
    assert_eq!(chains(&trace.paths[0]).iter().filter(|chain| chain.1 == "filter OUTPUT").count(), 1);
}

#[test]
fn source_ranges_are_enforced_and_a_mark_rejects() {
    let mut kernel = with_marks();
    let verdict = |trace: Trace| trace.paths.into_iter().map(|path| path.verdict).collect::<Vec<_>>();
    let dropped = verdict(evaluate(OURS, "198.51.100.1", "10.96.0.10:443", outside(), &mut kernel));
    assert_eq!(dropped, [PacketVerdict::Dropped { reason: "iptables-legacy mangle FAIRLEAD-IPVS".to_owned() }]);
    let rejected = verdict(evaluate(OURS, "192.0.2.1", "10.96.0.11:443", outside(), &mut kernel));
    let reason = "iptables-legacy filter INPUT".to_owned();
    assert_eq!(rejected, [PacketVerdict::Rejected { with: "TCP reset".to_owned(), reason }]);
}

#[test]
fn a_persistent_virtual_server_for_a_mark_keeps_the_port() {
    let mut kernel = with_marks();
    kernel.servers.insert(VirtualServerKey::FwMark(IpFamily::V4, MARK), server("rr", PERSISTENT, &ENDPOINTS));
    let trace = evaluate(OURS, "192.0.2.1", "10.96.0.10:443", outside(), &mut kernel);
    assert_eq!(trace.paths[0].endpoint, Some("10.244.1.1:443".parse().unwrap()));
}
