//! Entries of all kinds, compared with a state.

use std::num::NonZeroU16;

use netlink::conntrack::{Stage, Traffic, Tuple};
use proto::model::{Endpoint, IpFamily, NodeInfo, PoolClass, Protocol, ServicePort, ServicePortKey, TrafficPolicy};

use backend::ServicePortState;

use super::{
    service_index::{shared_pool, takes_new_connections},
    *,
};

const NODE: &str = "192.0.2.1";

/// `default/web` with two endpoints in the cluster, of which the first is on this node and is shared with
/// `default/api`; `default/dns` over UDP and IPv6.
fn state() -> NodeState {
    let mut node = NodeInfo::unknown("node-a");
    node.addresses = vec![NODE.parse().unwrap()];
    let mut state = NodeState::new(node);

    let mut web = service("web", Protocol::Tcp, "10.96.0.1", 80);
    web.port.node_port = NonZeroU16::new(30080);
    web.pool_mut(PoolClass::Cluster, IpFamily::V4).insert(endpoint("10.244.1.1", 8080));
    web.pool_mut(PoolClass::Cluster, IpFamily::V4).insert(endpoint("10.244.2.1", 8080));
    web.pool_mut(PoolClass::Local, IpFamily::V4).insert(endpoint("10.244.1.1", 8080));
    let mut api = service("api", Protocol::Tcp, "10.96.0.2", 80);
    api.pool_mut(PoolClass::Cluster, IpFamily::V4).insert(endpoint("10.244.1.1", 8080));
    api.pool_mut(PoolClass::Local, IpFamily::V4).insert(endpoint("10.244.1.1", 8080));
    let mut dns = service("dns", Protocol::Udp, "fd00:96::a", 53);
    dns.pool_mut(PoolClass::Cluster, IpFamily::V6).insert(endpoint("fd00:244::1", 5353));

    for service in [web, api, dns] {
        let key = service.port.key.clone();
        state.set_service_port(&key, Some(service));
    }
    state
}

fn service(name: &str, protocol: Protocol, cluster_ip: &str, port: u16) -> ServicePortState {
    let key = ServicePortKey::new("default", name, "", protocol);
    let mut port = ServicePort::new(key, NonZeroU16::new(port).unwrap());
    let ip: IpAddr = cluster_ip.parse().unwrap();
    port.cluster_ips[IpFamily::of(&ip)] = Some(ip);
    ServicePortState::new(port)
}

fn endpoint(address: &str, port: u16) -> Endpoint {
    Endpoint::new(address.parse().unwrap(), NonZeroU16::new(port).unwrap())
}

/// An open connection from `client` to `vip`, to which `endpoint` answers at `returned`: the client, unless the
/// connection is masqueraded.
fn entry(client: &str, vip: &str, endpoint: &str, returned: &str) -> Entry {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    Entry {
        protocol: Protocol::Tcp,
        original: Tuple { source: address(client), destination: address(vip) },
        reply: Tuple { source: address(endpoint), destination: address(returned) },
        stage: Stage::Open,
        traffic: None,
    }
}

fn open(client: &str, vip: &str, endpoint: &str) -> Entry {
    entry(client, vip, endpoint, client)
}

fn report(by: Grouping, service: Option<&str>, entries: &[Entry]) -> Report {
    let state = state();
    let service = service.map(|name| ServiceName { namespace: "default".into(), name: name.into() });
    let selected = service.clone();
    let index = ServiceIndex::new(&state, selected.as_ref(), ["127.0.0.1".parse().unwrap()].into());
    let mut tallies = Tallies::default();
    for entry in entries {
        tallies.add(&index, by, entry);
    }
    let query = Query { by, service };
    Report::new(&index, &query, entries.len() as u64, tallies)
}

/// Service port, endpoint or client, and open connections of each row.
fn rows(section: &Section) -> Vec<String> {
    let mut rows = Vec::new();
    for Row { service_port, endpoint, client, in_use, counts, .. } in &section.rows {
        let endpoint = endpoint.map(|endpoint| format!(" {endpoint}")).unwrap_or_default();
        let client = client.map(|client| format!(" {client}")).unwrap_or_default();
        let mark = if *in_use { "" } else { " gone" };
        rows.push(format!("{service_port}{endpoint}{client} {}{mark}", counts.open));
    }
    rows
}

#[test]
fn connection_is_of_the_service_port_of_its_vip_or_node_port() {
    let entries = [
        open("10.244.1.9:4000", "10.96.0.1:80", "10.244.2.1:8080"),
        open("198.51.100.7:4000", "192.0.2.1:30080", "10.244.1.1:8080"),
        open("127.0.0.1:4000", "127.0.0.1:30080", "10.244.1.1:8080"),
        // The client is the endpoint itself.
        entry("10.244.1.1:4000", "10.96.0.2:80", "10.244.1.1:8080", "192.0.2.1:4000"),
        // Neither is a VIP of a Service.
        open("10.244.1.9:4000", "10.96.0.1:81", "10.244.2.1:8080"),
        open("10.244.1.9:4000", "203.0.113.1:30080", "10.244.2.1:8080"),
        Entry { protocol: Protocol::Udp, ..open("10.244.1.9:4000", "10.96.0.1:80", "10.244.2.1:8080") },
        // Not translated: nothing of it is an endpoint of this node.
        open("10.244.1.9:4000", "10.244.2.1:8080", "10.244.2.1:8080"),
    ];
    let of_service = report(Grouping::Service, None, &entries);
    assert_eq!(rows(&of_service.translated), ["default/web/tcp 3", "default/api/tcp 1"]);
    assert_eq!(of_service.arriving, Section::default());
    assert_eq!(of_service.tracked, 8);
}

#[test]
fn each_endpoint_has_its_connections_beside_an_even_share() {
    let entries = [
        open("10.244.1.9:1", "10.96.0.1:80", "10.244.1.1:8080"),
        open("10.244.1.9:2", "10.96.0.1:80", "10.244.1.1:8080"),
        open("10.244.1.9:3", "10.96.0.1:80", "10.244.3.1:8080"),
        Entry { stage: Stage::Closing, ..open("10.244.1.9:4", "10.96.0.1:80", "10.244.1.1:8080") },
        Entry { stage: Stage::HalfOpen, ..open("10.244.1.9:5", "10.96.0.1:80", "10.244.1.1:8080") },
    ];
    let report = report(Grouping::Endpoint, Some("web"), &entries);
    let expected = [
        "default/web/tcp 10.244.1.1:8080 2",
        "default/web/tcp 10.244.2.1:8080 0",
        "default/web/tcp 10.244.3.1:8080 1 gone",
    ];
    assert_eq!(rows(&report.translated), expected);
    let even: Vec<_> = report.translated.rows.iter().map(|row| row.even).collect();
    assert_eq!(even, [Some(1.5), Some(1.5), Some(0.0)]);
    let Counts { half_open, closing, .. } = report.translated.rows[0].counts;
    assert_eq!((half_open, closing), (1, 1));
}

#[test]
fn connection_without_a_vip_arrives_at_an_endpoint_of_this_node() {
    let entries = [
        open("192.0.2.2:4000", "10.244.1.1:8080", "10.244.1.1:8080"),
        open("192.0.2.2:4000", "10.244.1.1:8081", "10.244.1.1:8081"),
        // Translated by another program, such as a network plugin for a hostPort.
        open("198.51.100.7:4000", "192.0.2.1:8080", "10.244.1.1:8080"),
        open("10.244.1.9:4000", "10.96.0.2:80", "10.244.1.1:8080"),
    ];
    let all = report(Grouping::Endpoint, None, &entries);
    assert_eq!(rows(&all.translated), ["default/api/tcp 10.244.1.1:8080 1"]);
    assert_eq!(rows(&all.arriving), ["default/api/tcp 10.244.1.1:8080 2"], "the first of those that share it");
    let of_web = report(Grouping::Endpoint, Some("web"), &entries);
    assert_eq!(
        (rows(&of_web.translated), rows(&of_web.arriving)),
        (vec![], vec!["default/web/tcp 10.244.1.1:8080 2".into()])
    );
}

#[test]
fn last_local_endpoint_that_ends_is_in_use_only_under_policy_local() {
    let mut web = service("web", Protocol::Tcp, "10.96.0.1", 80);
    web.pool_mut(PoolClass::Cluster, IpFamily::V4).insert(endpoint("10.244.2.1", 8080));
    web.pool_mut(PoolClass::Local, IpFamily::V4).insert(Endpoint { terminating: true, ..endpoint("10.244.1.1", 8080) });
    let local = "10.244.1.1:8080".parse().unwrap();
    assert!(!takes_new_connections(&web, local));

    web.port.external_policy = TrafficPolicy::Local;
    assert!(!takes_new_connections(&web, local), "no client from outside reaches it");
    web.port.node_port = NonZeroU16::new(30080);
    assert!(takes_new_connections(&web, local));
}

#[test]
fn clients_with_most_connections_come_first() {
    let mut entries = Vec::new();
    for client in 1..=3_u8 {
        for port in 0..u16::from(client) {
            entries.push(open(&format!("10.244.1.{client}:{}", 4000 + port), "10.96.0.1:80", "10.244.2.1:8080"));
        }
    }
    let udp = open("[fd00::7]:4000", "[fd00:96::a]:53", "[fd00:244::1]:5353");
    entries.push(Entry { protocol: Protocol::Udp, traffic: Some(Traffic { packets: 2, bytes: 120 }), ..udp });
    let report = report(Grouping::Client, None, &entries);
    let expected = [
        "default/web/tcp 10.244.1.3 3",
        "default/web/tcp 10.244.1.2 2",
        "default/dns/udp fd00::7 1",
        "default/web/tcp 10.244.1.1 1",
    ];
    assert_eq!(rows(&report.translated), expected);
    let counts = report.translated.rows[2].counts;
    assert_eq!((counts.packets, counts.bytes), (Some(2), Some(120)));
}

#[test]
fn more_clients_than_memory_are_counted_together() {
    let mut entries = Vec::new();
    for client in 0..150_000_u32 {
        let client = std::net::Ipv4Addr::from(0x0a00_0000 + client);
        entries.push(open(&format!("{client}:4000"), "10.96.0.1:80", "10.244.2.1:8080"));
    }
    let Section { rows, more, others } = report(Grouping::Client, Some("web"), &entries).translated;
    assert_eq!(rows.len() as u64 + others.open, 150_000);
    assert_eq!((rows.len(), more), (1000, 99_001), "one stands for all that were not counted");
}

#[test]
fn reports_of_nodes_are_added() {
    let first = [open("10.244.1.9:1", "10.96.0.1:80", "10.244.1.1:8080")];
    let second = [
        open("10.244.2.9:1", "10.96.0.1:80", "10.244.1.1:8080"),
        entry("10.244.2.9:2", "10.96.0.1:80", "10.244.2.1:8080", "192.0.2.1:2"),
    ];
    let mut sum = Sum::new(Grouping::Endpoint);
    for entries in [&first[..], &second] {
        let text = serde_json::to_string(&report(Grouping::Endpoint, Some("web"), entries)).unwrap();
        sum.add(serde_json::from_str(&text).unwrap());
    }
    let sum = sum.finish();
    assert_eq!(rows(&sum.translated), ["default/web/tcp 10.244.1.1:8080 2", "default/web/tcp 10.244.2.1:8080 1"]);
    assert_eq!(sum.translated.rows[0].even, Some(1.5));
    assert_eq!((sum.tracked, sum.source_ports.len()), (3, 1));
}

#[test]
fn clients_of_several_nodes_are_added_and_sorted_again() {
    let of_client = |client: u8, count: u16| {
        (0..count)
            .map(move |port| open(&format!("10.244.1.{client}:{}", 4000 + port), "10.96.0.1:80", "10.244.2.1:8080"))
    };
    let first: Vec<_> = of_client(1, 3).chain(of_client(2, 2)).collect();
    let second: Vec<_> = of_client(2, 2).chain(of_client(3, 1)).collect();
    let mut sum = Sum::new(Grouping::Client);
    sum.add(report(Grouping::Client, Some("web"), &first));
    sum.add(report(Grouping::Client, Some("web"), &second));
    let expected = ["default/web/tcp 10.244.1.2 4", "default/web/tcp 10.244.1.1 3", "default/web/tcp 10.244.1.3 1"];
    assert_eq!(rows(&sum.finish().translated), expected);
}

#[test]
fn no_share_is_even_if_the_policies_differ() {
    let mut web = state().service_ports().values().last().unwrap().clone();
    let pool = |web: &ServicePortState| shared_pool(web, IpFamily::V4).map(|pool| pool.len());
    assert_eq!(pool(&web), Some(2));
    web.port.external_policy = TrafficPolicy::Local;
    assert_eq!(pool(&web), None);
    web.port.internal_policy = TrafficPolicy::Local;
    assert_eq!(pool(&web), Some(1));
}

#[test]
fn an_unknown_service_is_an_error() {
    let service = Some(ServiceName { namespace: "default".into(), name: "nosuch".into() });
    let error = count(&state(), &Query { by: Grouping::Endpoint, service }, |_| {}).unwrap_err();
    assert!(error.to_string().contains("no Service default/nosuch"), "{error:#}");
}

#[test]
fn source_ports_are_counted_by_destination_if_masqueraded() {
    let mut entries = vec![open("10.244.1.9:4000", "10.96.0.1:80", "10.244.2.1:8080")];
    for port in 1024..1034 {
        let returned = format!("192.0.2.1:{port}");
        entries.push(entry("10.244.1.9:4000", "203.0.113.5:443", "203.0.113.5:443", &returned));
    }
    entries.push(entry("198.51.100.7:4000", "192.0.2.1:30080", "10.244.2.1:8080", "192.0.2.1:4000"));
    let used = report(Grouping::Service, None, &entries).source_ports;
    let destinations: Vec<_> = used.iter().map(|ports| (ports.destination.to_string(), ports.used)).collect();
    assert_eq!(destinations, [("203.0.113.5:443".to_owned(), 10), ("10.244.2.1:8080".to_owned(), 1)]);
    assert_eq!(SourcePortUse { used: 51_610, ..used[0].clone() }.percent(), NEARLY_FULL_PERCENT);
}
