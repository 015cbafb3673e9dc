//! Subsets of endpoints: their size, their order, and what a change replaces.

use std::collections::BTreeSet;

use super::*;
use crate::{
    object::ServiceObjectPort,
    testing::{endpoint, number, service, slice},
};

fn limits(endpoints: usize, port_endpoints: usize) -> ServiceLimits {
    ServiceLimits { endpoints, port_endpoints, ..ServiceLimits::default() }
}

fn key(port: &str) -> ServicePortKey {
    ServicePortKey::new("ns", "s", port, Protocol::Tcp)
}

fn address(number: u32) -> String {
    std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string()
}

fn on_nodes(count: u32, nodes: u32) -> Vec<SliceEndpoint> {
    (0..count).map(|number| endpoint(&address(number), &format!("node-{}", number % nodes))).collect()
}

/// A Service and a slice with these numbers of ports and endpoints.
fn product(ports: usize, endpoints: u32) -> (ServiceObject, SliceObject) {
    let (mut service, mut slice) = (service("s", "10.96.0.1"), slice("x", "s", on_nodes(endpoints, 10)));
    let name = |n| format!("port-{n:05}").into();
    service.ports = (0..ports).map(|n| ServiceObjectPort { name: name(n), ..service.ports[0].clone() }).collect();
    slice.ports = (0..ports).map(|n| SlicePort { name: name(n), ..slice.ports[0].clone() }).collect();
    (service, slice)
}

fn used(endpoints: &ServiceEndpoints<'_>, port: &str) -> BTreeSet<IpAddr> {
    endpoints.entries(&key(port)).iter().map(|entry| entry.endpoint.address).collect()
}

#[test]
fn within_the_limits_all_endpoints_are_used() {
    let (service, slice) = product(10, 100);
    let endpoints = ServiceEndpoints::limited(&service, [&slice], &limits(100, 1000));
    assert_eq!((endpoints.is_subset(), used(&endpoints, "port-00003").len()), (false, 100));
    let endpoints = ServiceEndpoints::limited(&service, [&slice], &limits(100, 999));
    assert_eq!((endpoints.is_subset(), used(&endpoints, "port-00003").len()), (true, 99));
    let endpoints = ServiceEndpoints::limited(&service, [&slice], &limits(99, 1000));
    assert_eq!((endpoints.is_subset(), used(&endpoints, "port-00003").len()), (true, 99));
}

#[test]
fn ports_times_endpoints_are_bounded() {
    let limits = ServiceLimits::default();
    for (ports, count) in [(20, 1000), (200, 1000), (2000, 1000), (2000, 20_000)] {
        let (service, slice) = product(ports, count);
        let endpoints = ServiceEndpoints::limited(&service, [&slice], &limits);
        let entries = |port: &ServiceObjectPort| endpoints.entries(&key(&port.name)).len();
        let total: usize = service.ports.iter().map(entries).sum();
        assert!(total <= limits.port_endpoints && total * 2 > limits.port_endpoints.min(ports * 1000), "{total}");
    }
}

#[test]
fn each_port_visits_the_slices_that_name_it() {
    let (service, whole) = product(1000, 2);
    let apart = whole.ports.iter().map(|port| SliceObject { ports: vec![port.clone()], ..whole.clone() });
    let without_ports = std::iter::repeat_n(SliceObject { ports: Vec::new(), ..whole.clone() }, 1000);
    let slices: Vec<_> = apart.chain(without_ports).collect();
    for (limits, expected) in [(ServiceLimits::default(), 2), (limits(1, 1), 1)] {
        let endpoints = ServiceEndpoints::limited(&service, &slices, &limits);
        let visited = |port: &ServiceObjectPort| endpoints.of_port(&port.name, port.protocol).len();
        assert_eq!(service.ports.iter().map(visited).sum::<usize>(), 1000);
        assert!(service.ports.iter().all(|port| used(&endpoints, &port.name).len() == expected));
    }
}

#[test]
fn families_are_limited_apart_from_each_other() {
    let (service, v4) = product(10, 100);
    let mut v6 = SliceObject { family: IpFamily::V6, ..v4.clone() };
    v6.endpoints = (0..100).map(|number| endpoint(&format!("fd00::{number:x}"), "node-0")).collect();
    let endpoints = ServiceEndpoints::limited(&service, [&v4, &v6], &limits(100, 1000));
    assert_eq!((endpoints.is_subset(), used(&endpoints, "port-00003").len()), (false, 200));
    v6.endpoints.push(endpoint("fd00:1::", "node-0"));
    let endpoints = ServiceEndpoints::limited(&service, [&v4, &v6], &limits(100, 2000));
    assert_eq!((endpoints.is_subset(), used(&endpoints, "port-00003").len()), (true, 200));
    let description = endpoints.describe_subset().unwrap();
    assert!(description.starts_with("1010 endpoints of all ports, 101 of one port: at most 100"), "{description}");
}

#[test]
fn one_name_with_many_numbers_is_bounded() {
    let (service, mut slice) = product(1, 1000);
    slice.ports = (1..=1000).map(|n| SlicePort { port: number(n), ..slice.ports[0].clone() }).collect();
    let endpoints = ServiceEndpoints::limited(&service, [&slice], &ServiceLimits::default());
    assert_eq!(endpoints.entries(&key("port-00000")).len(), 10_000);
}

#[test]
fn port_with_few_endpoints_keeps_all_of_them() {
    let (mut service, large) = product(3, 1000);
    service.ports[2].name = "small".into();
    let mut small = slice("y", "s", on_nodes(10, 1));
    small.ports[0].name = "small".into();
    let endpoints = ServiceEndpoints::limited(&service, [&large, &small], &limits(1000, 1010));
    assert_eq!(used(&endpoints, "small").len(), 10);
    assert_eq!(used(&endpoints, "port-00000").len(), 500);
}

#[test]
fn subset_covers_nodes_and_prefers_endpoints_that_can_serve() {
    let (service, mut slice) = product(1, 900);
    // Node 0 has most endpoints, and node 9 one.
    for (number, endpoint) in slice.endpoints.iter_mut().enumerate() {
        endpoint.node = Some(format!("node-{}", if number < 10 { number } else { 0 }).into());
        endpoint.ready = number % 2 == 1;
    }
    let endpoints = ServiceEndpoints::limited(&service, [&slice], &limits(100, 1000));
    let entries = endpoints.entries(&key("port-00000"));
    assert_eq!(entries.len(), 100);
    assert!(entries.iter().all(|entry| entry.endpoint.ready));
    let nodes: BTreeSet<_> = entries.iter().filter_map(|entry| entry.endpoint.node.as_deref()).collect();
    assert_eq!(nodes.into_iter().collect::<Vec<_>>(), ["node-0", "node-1", "node-3", "node-5", "node-7", "node-9"]);
}

#[test]
fn subset_depends_neither_on_the_order_nor_on_the_number_of_slices() {
    let (service, whole) = product(1, 1000);
    let limits = limits(100, 1000);
    let expected = used(&ServiceEndpoints::limited(&service, [&whole], &limits), "port-00000");
    let mut parts: Vec<_> = whole
        .endpoints
        .chunks(70)
        .enumerate()
        .map(|(n, endpoints)| SliceObject {
            name: crate::object::ObjectName::new("ns", format!("x-{n}")),
            endpoints: endpoints.iter().rev().cloned().collect(),
            ..whole.clone()
        })
        .collect();
    for _ in 0..2 {
        let endpoints = ServiceEndpoints::limited(&service, &parts, &limits);
        assert_eq!(used(&endpoints, "port-00000"), expected);
        parts.reverse();
    }
}

#[test]
fn removed_endpoint_replaces_at_most_one_other() {
    let (service, whole) = product(1, 1000);
    let limits = limits(100, 1000);
    let expected = used(&ServiceEndpoints::limited(&service, [&whole], &limits), "port-00000");
    for removed in (0..1000).step_by(7) {
        let mut slice = whole.clone();
        let address = slice.endpoints.remove(removed).address;
        let without = used(&ServiceEndpoints::limited(&service, [&slice], &limits), "port-00000");
        let difference = expected.symmetric_difference(&without).count();
        assert_eq!(difference, if expected.contains(&address) { 2 } else { 0 }, "{address}");
    }
}
