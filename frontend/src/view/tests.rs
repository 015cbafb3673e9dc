//! Views of random clusters against the reference implementation, and the subtle rules one by one.

mod reference;

use std::collections::HashMap;

use proptest::{collection::vec, prelude::*};
use proto::model::{Endpoint, NodeInfo, Protocol, ServicePortKey};

use crate::{
    object::{ServiceObjectPort, SliceEndpoint, SliceObject, SlicePort},
    testing::{NODES, ZONES, any_service, any_slice, endpoint, service, slice},
};

use super::*;

fn key_of(service: &ServiceObject, port: &ServiceObjectPort) -> ServicePortKey {
    ServicePortKey::new("ns", service.name.name.clone(), port.name.clone(), port.protocol)
}

/// The view of the first port, without VIP conflicts.
fn view_of(service: &ServiceObject, slices: &[SliceObject]) -> ServicePortView {
    view(service, without_conflicts(service, &service.ports[0]), &ServiceEndpoints::all(slices))
}

fn without_conflicts(service: &ServiceObject, port: &ServiceObjectPort) -> ServicePort {
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

/// The endpoints that are in a pool by an explanation.
fn explained_pool(
    explanation: &ServicePortExplanation,
    family: IpFamily,
    reason: impl Fn(&EndpointExplanation) -> &EndpointReason,
) -> Vec<(IpAddr, std::num::NonZeroU16)> {
    let of_family = explanation.endpoints.iter().filter(|one| IpFamily::of(&one.endpoint.address) == family);
    let members = of_family.filter(|one| reason(one).is_in());
    let mut members: Vec<_> = members.map(|one| (one.endpoint.address, one.port.unwrap())).collect();
    members.sort_unstable();
    members
}

fn pairs(pool: &[Endpoint]) -> Vec<(IpAddr, std::num::NonZeroU16)> {
    pool.iter().map(|endpoint| (endpoint.address, endpoint.port)).collect()
}

/// The established pool of a node, without the endpoints that new flows use.
fn unused(view: &ServicePortView, family: IpFamily, node: &str, zone: &str) -> Pool {
    let ServicePortView { port, established, .. } = view;
    let uses_cluster = port.internal_policy == TrafficPolicy::Cluster || port.externally_accessible();
    let used = Some(view.cluster_pool(family, node, zone)).filter(|_| uses_cluster);
    let used = used.or_else(|| view.local_pool(family, node)).cloned().unwrap_or_default();
    established[family].resolve(node, zone).iter().filter(|endpoint| !used.contains(endpoint)).copied().collect()
}

/// What a node gets of a view.
fn node_view(view: &ServicePortView, node: &str, zone: &str) -> reference::NodeView {
    let local = |family| view.local_pool(family, node).cloned().unwrap_or_default();
    reference::NodeView {
        any_endpoints: view.port.any_endpoints,
        cluster: PerFamily::from_fn(|family| view.cluster_pool(family, node, zone).clone()),
        local: PerFamily::from_fn(local),
        established: PerFamily::from_fn(|family| unused(view, family, node, zone)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn view_equals_the_reference(service in any_service(), slices in vec(any_slice(), 0..4)) {
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
            let resolved = without_conflicts(&service, port);
            let external = resolved.externally_accessible();
            let view_of_all = view(&service, resolved.clone(), &ServiceEndpoints::all(&slices));
            let view_backwards = view(&service, resolved.clone(), &ServiceEndpoints::all(&backwards));
            prop_assert_eq!(&view_of_all, &view_backwards, "the order of slices matters");
            for node in NODES.into_iter().chain(["unknown"]) {
                let topology =
                    KnownTopology { nodes: &HashMap::new(), zones: &BTreeMap::new(), only_node: Some(node) };
                let endpoints = ServiceEndpoints::all(&slices).located_in(topology);
                let view_of_node = view(&service, resolved.clone(), &endpoints);
                prop_assert!(view_of_node.nodes().all(|named| **named == *node), "pools of other nodes");

                for zone in ZONES.into_iter().chain(["", "unknown"]) {
                    let key = key_of(&service, port);
                    let expected = reference::node_view(&service, &key, external, &slices, node, zone);
                    prop_assert_eq!(&node_view(&view_of_all, node, zone), &expected, "{} in {}", node, zone);
                    prop_assert_eq!(&node_view(&view_of_node, node, zone), &expected, "only {} in {}", node, zone);

                    // The explanation agrees with the view.
                    let endpoints = ServiceEndpoints::all(&slices);
                    let explanation = explain(&service, without_conflicts(&service, port), &endpoints, node, zone);
                    prop_assert_eq!(&explanation.port, &view_of_all.port);
                    for family in IpFamily::ALL {
                        let explained = explained_pool(&explanation, family, |one| &one.cluster);
                        prop_assert_eq!(explained, pairs(&expected.cluster[family]));
                        let explained = explained_pool(&explanation, family, |one| &one.local);
                        prop_assert_eq!(explained, pairs(&expected.local[family]));
                    }
                    let listed: usize = slices
                        .iter()
                        .map(|slice| {
                            let has_port = |of: &&SlicePort| of.name == port.name && of.protocol == port.protocol;
                            slice.ports.iter().filter(has_port).count().max(1) * slice.endpoints.len()
                        })
                        .sum();
                    prop_assert_eq!(explanation.endpoints.len(), listed, "each once for each port of its slice");
                }
            }
        }
    }
}

#[test]
fn established_udp_flows_keep_endpoints_that_serve() {
    let of = |protocol, endpoints: Vec<SliceEndpoint>| {
        let mut service = service("s", "10.96.0.1");
        service.ports[0].protocol = protocol;
        let mut slice = slice("a", "s", endpoints);
        slice.ports[0].protocol = protocol;
        let view = view_of(&service, &[slice]);
        addresses(&view.established.v4.default)
    };
    let draining = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.1", "node-0") };
    let ready = || endpoint("10.0.0.2", "node-0");
    assert_eq!(of(Protocol::Udp, vec![draining.clone(), ready()]), ["10.0.0.1"]);
    assert_eq!(of(Protocol::Tcp, vec![draining.clone(), ready()]), [""; 0], "connections end by themselves");
    let ended = SliceEndpoint { serving: false, ..draining.clone() };
    assert_eq!(of(Protocol::Udp, vec![ended, ready()]), [""; 0], "it does not serve");
    assert_eq!(of(Protocol::Udp, vec![draining]), [""; 0], "new flows use it");

    // One list for all nodes, whatever the number of zones.
    let in_zone = |at: u8| SliceEndpoint {
        zone_hints: vec![format!("zone-{at}").into()],
        ..endpoint(&format!("10.0.0.{at}"), "node-0")
    };
    assert_eq!(of(Protocol::Udp, (1..=3).map(in_zone).collect()), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
}

#[test]
fn endpoints_are_gone_without_their_node_or_without_a_slice() {
    let of = |resets, endpoints: Vec<SliceEndpoint>| {
        let mut service = service("s", "10.96.0.1");
        service.connection_resets = Some(resets);
        let port = without_conflicts(&service, &service.ports[0]);
        let slices = [slice("a", "s", endpoints)];
        let nodes = [("node-0".into(), Arc::new(NodeInfo::unknown("node-0")))].into();
        let topology = KnownTopology { nodes: &nodes, zones: &BTreeMap::new(), only_node: None };
        let view = view(&service, port, &ServiceEndpoints::all(&slices).located_in(topology));
        [&view.gone, &view.established].map(|pools| addresses(&pools.v4.default))
    };
    let none = || [Vec::<String>::new(), Vec::new()];
    let stopped = |address: &str, node| SliceEndpoint { ready: false, serving: false, ..endpoint(address, node) };
    let endpoints = || {
        let draining = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.4", "node-9") };
        let without_node = SliceEndpoint { node: None, ..stopped("10.0.0.5", "") };
        let lost = [stopped("10.0.0.1", "node-9"), stopped("10.0.0.2", "node-0"), endpoint("10.0.0.3", "node-9")];
        lost.into_iter().chain([draining, without_node]).collect::<Vec<_>>()
    };
    assert_eq!(of(ConnectionResets::Never, endpoints()), none());
    assert_eq!(of(ConnectionResets::NodeGone, endpoints()), [vec!["10.0.0.1".to_owned()], vec![]]);
    let [gone, established] = of(ConnectionResets::Removed, endpoints());
    assert_eq!(gone, ["0.0.0.0"], "all others");
    assert_eq!(
        established,
        ["10.0.0.2", "10.0.0.4", "10.0.0.5"],
        "all but those for new connections, and on a Node that is gone"
    );
    assert_eq!(of(ConnectionResets::Removed, vec![]), [vec!["0.0.0.0".to_owned()], vec![]]);
}

#[test]
fn ready_endpoint_without_hint_disables_hints_but_an_unready_one_does_not() {
    let service = service("s", "10.96.0.1");
    let hinted = |address, zone: &str| SliceEndpoint { zone_hints: vec![zone.into()], ..endpoint(address, "node-0") };
    let unready = SliceEndpoint { ready: false, ..endpoint("10.0.0.9", "node-0") };
    let two = vec![hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"), unready];
    let view = view_of(&service, &[slice("a", "s", two.clone())]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", "zone-a")), ["10.0.0.1"]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", "zone-c")), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(addresses(view.cluster_pool(IpFamily::V4, "n", "")), ["10.0.0.1", "10.0.0.2"]);

    let incomplete = [two, vec![endpoint("10.0.0.3", "node-1")]].concat();
    let view = view_of(&service, &[slice("a", "s", incomplete)]);
    assert_eq!(view.cluster_pool(IpFamily::V4, "n", "zone-a").len(), 3);
}

#[test]
fn node_hints_take_precedence_only_where_they_name_the_node() {
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

/// The address of each endpoint, and the reasons for the cluster pool and for the local pool.
fn reasons(explanation: &ServicePortExplanation) -> Vec<[String; 3]> {
    let reasons = |one: &EndpointExplanation| {
        let [(_, cluster), (_, local)] = [one.cluster.describe(), one.local.describe()];
        [one.endpoint.address.to_string(), cluster, local]
    };
    explanation.endpoints.iter().map(reasons).collect()
}

#[test]
fn each_endpoint_has_a_reason() {
    let service = service("s", "10.96.0.1");
    let port = || without_conflicts(&service, &service.ports[0]);
    let hinted = |address, zone: &str| SliceEndpoint { zone_hints: vec![zone.into()], ..endpoint(address, "node-0") };
    let terminating = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.4", "node-0") };
    let stopped = SliceEndpoint { serving: false, address: "10.0.0.5".parse().unwrap(), ..terminating.clone() };
    let unready = SliceEndpoint { ready: false, ..endpoint("10.0.0.6", "node-1") };
    let mut other = slice("c", "s", vec![endpoint("10.0.0.7", "node-0")]);
    other.ports[0].name = "metrics".into();
    let slices = [
        slice(
            "a",
            "s",
            vec![hinted("10.0.0.1", "zone-a"), hinted("10.0.0.2", "zone-b"), terminating, stopped, unready],
        ),
        slice("b", "s", vec![hinted("10.0.0.1", "zone-a")]),
        other,
    ];
    let explanation = explain(&service, port(), &ServiceEndpoints::all(&slices), "node-0", "zone-a");
    let duplicate = "duplicate of an endpoint in slice a";
    let other_port = "its slice has no port \"http\" (TCP), only \"metrics\" (TCP)";
    let expected = [
        ["10.0.0.1", "ready, hint for zone zone-a", "ready"],
        ["10.0.0.1", duplicate, duplicate],
        ["10.0.0.2", "hint for zone zone-b", "ready"],
        ["10.0.0.4", "terminating, and other endpoints are ready", "terminating, and other endpoints are ready"],
        ["10.0.0.5", "terminating and not serving", "terminating and not serving"],
        ["10.0.0.6", "not ready", "on node node-1"],
        ["10.0.0.7", other_port, other_port],
    ];
    assert_eq!(reasons(&explanation), expected);
    assert_eq!(explanation.notes, ["IPv4: zone hints apply: only endpoints with a hint for zone-a are used"]);

    let incomplete = [slices[0].clone(), slice("b", "s", vec![endpoint("10.0.0.3", "node-1")])];
    let explanation = explain(&service, port(), &ServiceEndpoints::all(&incomplete), "node-1", "zone-a");
    let note = "IPv4: zone hints are ignored: the ready endpoint 10.0.0.3:8080 has none";
    assert_eq!(explanation.notes, [note]);
    assert_eq!(reasons(&explanation)[1], ["10.0.0.2", "ready", "on node node-0"]);
}

#[test]
fn endpoints_without_the_port_are_bounded() {
    let service = service("s", "10.96.0.1");
    let mut other = slice("b", "s", vec![endpoint("10.0.0.2", "node-1"); MAX_EXPLAINED]);
    other.ports[0].name = "metrics".into();
    let slices = [slice("a", "s", vec![endpoint("10.0.0.1", "node-0")]), other];
    let port = without_conflicts(&service, &service.ports[0]);
    let explanation = explain(&service, port, &ServiceEndpoints::all(&slices), "node-0", "zone-a");
    assert_eq!(explanation.endpoints.len(), MAX_EXPLAINED);
    assert_eq!(explanation.endpoints[0].cluster, EndpointReason::Ready);
    assert_eq!(explanation.notes, ["not listed: 1 more endpoints of slices without this port"]);
}
