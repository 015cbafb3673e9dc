//! Views of random clusters against the reference, and the rules that are easiest to get wrong one by one.

use proptest::{collection::vec, prelude::*};
use proto::model::{Endpoint, Protocol, ServicePortKey};

use crate::{
    object::{ServiceObjectPort, SliceEndpoint, SlicePort},
    testing::{NODES, ZONES, any_service, any_slice, endpoint, number, service, slice},
};

use super::*;

fn key_of(service: &ServiceObject, port: &ServiceObjectPort) -> ServicePortKey {
    ServicePortKey::new("ns", service.name.name.clone(), port.name.clone(), port.protocol)
}

/// The view of the first port, which gets all it claims.
fn view_of(service: &ServiceObject, slices: &[SliceObject]) -> ServicePortView {
    view(service, unopposed(service, &service.ports[0]), slices)
}

fn unopposed(service: &ServiceObject, port: &ServiceObjectPort) -> ServicePort {
    ServicePort {
        cluster_ips: service.cluster_ips,
        node_port: port.node_port,
        external_ips: service.external_ips.clone(),
        load_balancer_ips: service.load_balancer_ips.clone(),
        internal_policy: service.internal_policy,
        external_policy: service.external_policy,
        ..ServicePort::new(key_of(service, port), port.port)
    }
}

fn addresses(pool: &[Endpoint]) -> Vec<String> {
    pool.iter().map(|endpoint| endpoint.address.to_string()).collect()
}

/// The endpoints that an explanation lets into a pool.
fn said(
    explanation: &ServicePortExplanation,
    family: IpFamily,
    reason: impl Fn(&EndpointExplanation) -> &EndpointReason,
) -> Vec<(std::net::IpAddr, std::num::NonZeroU16)> {
    let of_family = explanation.endpoints.iter().filter(|one| IpFamily::of(&one.endpoint.address) == family);
    let members = of_family.filter(|one| reason(one).is_in());
    let mut members: Vec<_> = members.map(|one| (one.endpoint.address, one.port.unwrap())).collect();
    members.sort_unstable();
    members
}

fn plain(pool: &[Endpoint]) -> Vec<(std::net::IpAddr, std::num::NonZeroU16)> {
    pool.iter().map(|endpoint| (endpoint.address, endpoint.port)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_reference(service in any_service(), slices in vec(any_slice(), 0..4)) {
        let slices: Vec<_> = slices
            .into_iter()
            .enumerate()
            .map(|(at, slice)| SliceObject {
                service: service.name.name.clone(),
                name: crate::object::ObjectName::new("ns", format!("x{at}")),
                ..slice
            })
            .collect();
        for port in &service.ports {
            let mut backwards = slices.clone();
            backwards.reverse();
            let settled = unopposed(&service, port);
            let external = settled.externally_accessible();
            let seen = view(&service, settled.clone(), &slices);
            prop_assert_eq!(&seen, &view(&service, settled, &backwards), "the order of slices matters");
            for node in NODES.into_iter().chain(["unheard-of"]) {
                for zone in ZONES.into_iter().chain(["", "unheard-of"]) {
                    let key = key_of(&service, port);
                    let expected = reference::seen(&service, &key, external, &slices, node, zone);
                    let local = |family| seen.local_pool(family, node).cloned().unwrap_or_default();
                    let actual = reference::Seen {
                        any_endpoints: seen.port.any_endpoints,
                        cluster: PerFamily::from_fn(|family| seen.cluster_pool(family, node, zone).clone()),
                        local: PerFamily::from_fn(local),
                    };
                    prop_assert_eq!(actual, expected, "{} in {}", node, zone);

                    // What is said about it is what it is.
                    let explanation = explain(&service, unopposed(&service, port), &slices, node, zone);
                    prop_assert_eq!(&explanation.port, &seen.port);
                    for family in IpFamily::ALL {
                        let cluster = seen.cluster_pool(family, node, zone).clone();
                        prop_assert_eq!(said(&explanation, family, |one| &one.cluster), plain(&cluster));
                        prop_assert_eq!(said(&explanation, family, |one| &one.local), plain(&local(family)));
                    }
                    let listed: usize = slices
                        .iter()
                        .map(|slice| {
                            let of_it = |of: &&SlicePort| of.name == port.name && of.protocol == port.protocol;
                            slice.ports.iter().filter(of_it).count().max(1) * slice.endpoints.len()
                        })
                        .sum();
                    prop_assert_eq!(explanation.endpoints.len(), listed, "each once for each port of its slice");
                }
            }
        }
    }
}

#[test]
fn an_endpoint_in_two_slices_is_one_and_not_terminating() {
    let service = service("s", "10.96.0.1");
    let going = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.1", "node-0") };
    let slices = [
        slice("a", "s", vec![going.clone()]),
        slice("b", "s", vec![endpoint("10.0.0.1", "node-1")]),
        slice("c", "s", vec![going]),
    ];
    let view = view_of(&service, &slices);
    assert_eq!(addresses(&view.cluster.v4.default), ["10.0.0.1"]);
    assert_eq!(view.local.keys().map(|node| &**node).collect::<Vec<_>>(), ["node-1"]);
}

#[test]
fn terminating_endpoints_serve_when_nothing_is_ready_and_ignore_hints() {
    let service = service("s", "10.96.0.1");
    let going = SliceEndpoint {
        ready: false,
        terminating: true,
        zone_hints: vec!["zone-a".into()],
        ..endpoint("10.0.0.1", "node-0")
    };
    let stopped = SliceEndpoint { serving: false, ..going.clone() };
    let stopped = SliceEndpoint { address: "10.0.0.2".parse().unwrap(), ..stopped };
    let view = view_of(&service, &[slice("a", "s", vec![going, stopped])]);
    for zone in ["zone-a", "zone-b", ""] {
        assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", zone)), ["10.0.0.1"]);
    }
    let local = view.local_pool(IpFamily::V4, "node-0").unwrap();
    assert!(local.iter().all(|endpoint| endpoint.terminating));
    assert_eq!(addresses(local), ["10.0.0.1"]);
    assert!(view.port.any_endpoints.v4);
}

#[test]
fn one_ready_endpoint_without_hint_vetoes_but_one_that_is_not_ready_does_not() {
    let service = service("s", "10.96.0.1");
    let hinted = |address, zone: &str| SliceEndpoint { zone_hints: vec![zone.into()], ..endpoint(address, "node-0") };
    let unready = SliceEndpoint { ready: false, ..endpoint("10.0.0.9", "node-0") };
    let two = vec![hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"), unready];
    let view = view_of(&service, &[slice("a", "s", two.clone())]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", "zone-a")), ["10.0.0.1"]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", "zone-c")), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", "")), ["10.0.0.1", "10.0.0.2"]);

    let vetoed = [two, vec![endpoint("10.0.0.3", "node-1")]].concat();
    let view = view_of(&service, &[slice("a", "s", vetoed)]);
    assert_eq!(view.cluster_pool(IpFamily::V4, "n", "zone-a").len(), 3);
}

#[test]
fn node_hints_win_over_zone_hints_only_where_they_name_the_node() {
    let service = service("s", "10.96.0.1");
    let hinted = |address, node: &str, zone: &str| SliceEndpoint {
        zone_hints: vec![zone.into()],
        node_hints: vec![node.into()],
        ..endpoint(address, node)
    };
    let endpoints = vec![
        hinted("10.0.0.1", "node-0", "zone-a"),
        hinted("10.0.0.2", "node-1", "zone-a"),
        hinted("10.0.0.3", "node-2", "zone-b"),
    ];
    let view = view_of(&service, &[slice("a", "s", endpoints)]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "node-0", "zone-b")), ["10.0.0.1"]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "other", "zone-a")), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(view.cluster_pool(IpFamily::V4, "other", "").len(), 3);
}

#[test]
fn a_cluster_pool_that_nobody_uses_is_empty_and_the_local_one_is_there_all_the_same() {
    let mut service = service("s", "10.96.0.1");
    service.internal_policy = TrafficPolicy::Local;
    let slices = [slice("a", "s", vec![endpoint("10.0.0.1", "node-0")])];
    let view = view_of(&service, &slices);
    assert!(view.cluster_pool(IpFamily::V4, "node-0", "").is_empty());
    assert_eq!(addresses(view.local_pool(IpFamily::V4, "node-0").unwrap()), ["10.0.0.1"]);
    assert_eq!(view.local_pool(IpFamily::V4, "node-1"), None);
    assert!(view.port.any_endpoints.v4);

    service.ports[0].node_port = Some(number(30000));
    let view = view_of(&service, &slices);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "node-1", "")), ["10.0.0.1"]);
}

#[test]
fn one_port_name_can_have_several_numbers_and_other_ports_do_not_count() {
    let service = service("s", "10.96.0.1");
    let mut other = slice("b", "s", vec![endpoint("10.0.0.1", "node-0"), endpoint("10.0.0.2", "node-0")]);
    other.ports = vec![
        SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: number(9090) },
        SlicePort { name: "http".into(), protocol: Protocol::Udp, port: number(1) },
        SlicePort { name: "".into(), protocol: Protocol::Tcp, port: number(2) },
    ];
    let view = view_of(&service, &[slice("a", "s", vec![endpoint("10.0.0.1", "node-0")]), other]);
    let pool: Vec<_> = view.cluster.v4.default.iter().map(ToString::to_string).collect();
    assert_eq!(pool, ["10.0.0.1:8080", "10.0.0.1:9090", "10.0.0.2:9090"]);
}

#[test]
fn a_family_without_cluster_ip_has_no_endpoints() {
    let service = service("s", "10.96.0.1");
    let mut v6 = slice("a", "s", vec![endpoint("fd00::10", "node-0")]);
    v6.family = IpFamily::V6;
    let view = view_of(&service, &[v6]);
    assert_eq!(view.port.any_endpoints, PerFamily { v4: false, v6: false });
    assert!(view.local.is_empty());
    assert!(view.cluster_pool(IpFamily::V6, "node-0", "").is_empty());
}

/// Of each endpoint: its address, why it is in the cluster pool or not, and the same of the local pool.
fn reasons(explanation: &ServicePortExplanation) -> Vec<[String; 3]> {
    let one =
        |one: &EndpointExplanation| [one.endpoint.address.to_string(), one.cluster.to_string(), one.local.to_string()];
    explanation.endpoints.iter().map(one).collect()
}

#[test]
fn every_endpoint_is_told_why() {
    let service = service("s", "10.96.0.1");
    let port = || unopposed(&service, &service.ports[0]);
    let hinted = |address, zone: &str| SliceEndpoint { zone_hints: vec![zone.into()], ..endpoint(address, "node-0") };
    let going = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.4", "node-0") };
    let stopped = SliceEndpoint { serving: false, address: "10.0.0.5".parse().unwrap(), ..going.clone() };
    let unready = SliceEndpoint { ready: false, ..endpoint("10.0.0.6", "node-1") };
    let mut other = slice("c", "s", vec![endpoint("10.0.0.7", "node-0")]);
    other.ports[0].name = "metrics".into();
    let slices = [
        slice("a", "s", vec![hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"), going, stopped, unready]),
        slice("b", "s", vec![hinted("10.0.0.1", "zone-a")]),
        other,
    ];
    let explanation = explain(&service, port(), &slices, "node-0", "zone-a");
    let duplicate = "the same is in slice a, which counts";
    let expected = [
        ["10.0.0.1", "ready, hinted for zone zone-a", "ready"],
        ["10.0.0.1", duplicate, duplicate],
        ["10.0.0.2", "hinted for zone zone-b", "ready"],
        ["10.0.0.4", "terminates, and others are ready", "terminates, and others are ready"],
        ["10.0.0.5", "terminates, and serves no longer", "terminates, and serves no longer"],
        ["10.0.0.6", "not ready", "on node-1"],
        ["10.0.0.7", "its slice has no such port", "its slice has no such port"],
    ];
    assert_eq!(reasons(&explanation), expected);
    assert_eq!(explanation.notes, ["IPv4: zone hints are in force: only what is hinted for zone-a is used"]);

    let vetoed = [slices[0].clone(), slice("b", "s", vec![endpoint("10.0.0.3", "node-1")])];
    let explanation = explain(&service, port(), &vetoed, "node-1", "zone-a");
    let note = "IPv4: zone hints are ignored, for the ready endpoint 10.0.0.3:8080 has none";
    assert_eq!(explanation.notes, [note]);
    assert_eq!(reasons(&explanation)[1], ["10.0.0.2", "ready", "on node-0"]);
}
