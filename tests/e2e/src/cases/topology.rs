//! Topology hints: when they apply, what they fall back to, and nodes whose zone changes.

use std::net::SocketAddr;

use serde_json::json;

use super::expect::assert_pods;
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment},
    manifests::{Endpoint, EndpointState, Service, TrafficPolicy, node_object},
    plan::{self, IpFamily},
    wire::Protocol,
};

use EndpointState::{Draining, NotReady, Ready};

const PORT: u16 = 80;
const PODS: [&str; 4] = ["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2"];

/// One endpoint: its state, the zones and the nodes that it is hinted to.
type Hinted = (EndpointState, &'static [&'static str], &'static [&'static str]);

/// A kind of hint applies only if all ready endpoints have one and at least one names this node; otherwise the next
/// kind applies, and finally all ready endpoints are used.
pub fn hints_fall_back(backend: Backend) {
    let all = &PODS[..];
    let steps: [([Hinted; 4], [&[&str]; 2]); 7] = [
        // One endpoint has no node hints, so zone hints apply.
        (
            [(Ready, &["a"], &["node-a"]), (Ready, &["a"], &[]), (Ready, &["b"], &["node-b"]), (Ready, &["b"], &[])],
            [&all[..2], &all[2..]],
        ),
        // Node hints take precedence, for each node: none names node-b, which uses zone hints.
        (
            [
                (Ready, &["a"], &["node-a"]),
                (Ready, &["a"], &["node-x"]),
                (Ready, &["b"], &["node-x"]),
                (Ready, &["a", "b"], &["node-x"]),
            ],
            [&all[..1], &all[2..]],
        ),
        // No hint for zone b.
        ([(Ready, &["a"], &[]), (Ready, &["a"], &[]), (Ready, &["a"], &[]), (Ready, &["c"], &[])], [&all[..3], all]),
        // Endpoints that are not ready do not count, with hints or without.
        (
            [(Ready, &["a"], &[]), (NotReady, &[], &[]), (Ready, &["b"], &[]), (Draining, &[], &[])],
            [&all[..1], &all[2..3]],
        ),
        // Terminating endpoints do not count: none is ready for zone b.
        (
            [(Ready, &["a"], &[]), (Ready, &["a"], &[]), (NotReady, &["b"], &[]), (Draining, &["b"], &[])],
            [&all[..2], &all[..2]],
        ),
        // Hints do not apply to terminating endpoints.
        (
            [
                (Draining, &["a"], &[]),
                (NotReady, &["a"], &[]),
                (Draining, &["b"], &["node-b"]),
                (Draining, &["b"], &[]),
            ],
            [&["pod-a-1", "pod-b-1", "pod-b-2"], &["pod-a-1", "pod-b-1", "pod-b-2"]],
        ),
        ([(Ready, &[], &[]); 4], [all, all]),
    ];
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    for (endpoints, expected) in steps {
        let service = web(deployment.cluster(), endpoints);
        deployment.apply(&service);
        assert_each_node(&deployment, &expected);
    }
}

/// Under policy Local the endpoints on the node are used, whatever their hints.
pub fn policy_local_ignores_hints(backend: Backend) {
    let elsewhere: [Hinted; 4] = [
        (Ready, &["b"], &["node-b"]),
        (Ready, &["b"], &["node-b"]),
        (Ready, &["a"], &["node-a"]),
        (Ready, &["a"], &["node-a"]),
    ];
    let deployment =
        Deployment::start(backend, |cluster| vec![web(cluster, elsewhere).internal_policy(TrafficPolicy::Local)]);
    assert_each_node(&deployment, &[&PODS[..2], &PODS[2..]]);
}

/// A node uses the endpoints for its current zone, after changes to another zone and to none.
pub fn zone_changes_apply_at_once(backend: Backend) {
    let hints: [Hinted; 4] = [(Ready, &["a"], &[]), (Ready, &["b"], &[]), (Ready, &["b"], &[]), (Ready, &["c"], &[])];
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, hints)]);
    let [in_a, in_b, in_c, all] = [&PODS[..1], &PODS[1..3], &PODS[3..], &PODS[..]];
    assert_each_node(&deployment, &[in_a, in_b]);
    for (zone, expected) in [(Some("b"), in_b), (Some("c"), in_c), (None, all), (Some("z"), all), (Some("a"), in_a)] {
        write_node(&deployment, zone);
        deployment.wait_until_programmed();
        assert_each_node(&deployment, &[expected, in_b]);
    }
}

// === what they share ===

fn web(cluster: &Cluster, endpoints: [Hinted; 4]) -> Service {
    let endpoints = PODS.into_iter().zip(endpoints).map(|(name, (state, zones, nodes))| {
        Endpoint::of(cluster.pod(name)).state(state).for_zones(zones).for_nodes(nodes)
    });
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.endpoints(endpoints)
}

/// Writes node-a with another zone.
fn write_node(deployment: &Deployment, zone: Option<&str>) {
    let node = deployment.cluster().node('a');
    let mut object = node_object(node, &node.pod_cidrs);
    let labels = object["metadata"]["labels"].as_object_mut().expect("labels");
    labels.remove("topology.kubernetes.io/zone");
    labels.extend(zone.map(|zone| ("topology.kubernetes.io/zone".to_owned(), json!(zone))));
    deployment.manifests().write(&node.name, &[object]);
}

/// Exactly these pods answer clients on each node.
#[track_caller]
fn assert_each_node(deployment: &Deployment, expected: &[&[&str]; 2]) {
    for (node, expected) in deployment.cluster().nodes().iter().zip(expected) {
        let client = node.pod(3).client();
        for (family, protocol) in
            [(IpFamily::V4, Protocol::Tcp), (IpFamily::V6, Protocol::Udp), (IpFamily::V4, Protocol::Sctp)]
        {
            let to = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
            assert_pods(&client, protocol, to, expected);
        }
    }
}
