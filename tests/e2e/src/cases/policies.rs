//! Traffic policies beyond [`packets`](super::packets): different internal and external policies, terminating
//! endpoints, and nodes as endpoints.
//!
//! All packets from outside arrive at node-a.

use std::net::SocketAddr;

use super::expect::{Check, Expected, assert_answers, check_all};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment},
    manifests::{Endpoint, EndpointState, Service, TrafficPolicy},
    plan::{self, DualStack, IpFamily},
    server::Server,
    wire::Protocol,
};

use EndpointState::{Draining, NotReady, Ready};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const PODS: [&str; 3] = ["pod-a-1", "pod-a-2", "pod-b-1"];

/// The internal policy applies to cluster IPs only, and the external one to all other addresses.
pub fn policies_are_independent(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| {
        let both =
            [(1, TrafficPolicy::Local, TrafficPolicy::Cluster), (2, TrafficPolicy::Cluster, TrafficPolicy::Local)];
        let service = |(number, internal, external)| {
            let service = service(number).internal_policy(internal).external_policy(external);
            service.endpoints(endpoints(cluster, [Ready; 3]))
        };
        both.map(service).into()
    });
    let cluster = deployment.cluster();
    let (pod, outside) = (cluster.pod("pod-a-3").client(), cluster.client());
    let (local, all) = (&PODS[..2], &PODS[..]);
    assert_answers(&pod, cluster_ips(1), local);
    assert_answers(&pod, external(cluster, 1), all);
    assert_answers(&outside, external(cluster, 1), all);
    assert_answers(&pod, cluster_ips(2), all);
    assert_answers(&outside, cluster_ips(2), all);
    assert_answers(&pod, external(cluster, 2), all);
    assert_answers(&outside, external(cluster, 2), local);
}

/// Under external policy Local a node without ready endpoints sends traffic from outside to its terminating endpoints.
/// Pods and the node itself use the endpoints of the cluster.
pub fn terminating_endpoints_are_used_for_external_traffic_if_none_is_ready(backend: Backend) {
    let (a1, b1, both) = (&["pod-a-1"][..], &["pod-b-1"][..], &["pod-a-1", "pod-b-1"][..]);
    let steps: [([EndpointState; 3], &[&str], &[&str]); 4] = [
        ([Draining, NotReady, Ready], a1, b1),
        ([NotReady, NotReady, Draining], &[], b1),
        ([Draining, NotReady, Draining], a1, both),
        ([Draining, Ready, NotReady], &["pod-a-2"], &["pod-a-2"]),
    ];
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    for (states, from_outside, from_inside) in steps {
        let service = service(1).external_policy(TrafficPolicy::Local);
        let service = service.endpoints(endpoints(deployment.cluster(), states));
        deployment.apply(&service);
        let cluster = deployment.cluster();
        assert_answers(&cluster.pod("pod-a-3").client(), external(cluster, 1), from_inside);
        assert_answers(&cluster.node('a').client(), external(cluster, 1), from_inside);
        let checks = external(cluster, 1).into_iter().flat_map(|to| {
            let seen = plan::OUTSIDE.ip(IpFamily::of(&to.ip()));
            let answers = from_outside.iter().map(|pod| ((*pod).to_owned(), seen)).collect();
            let expected = if from_outside.is_empty() { Expected::Dropped } else { Expected::Answers(answers) };
            Protocol::ALL.map(|protocol| Check {
                what: format!("from outside, {states:?}"),
                client: cluster.client(),
                protocol,
                to,
                expected: expected.clone(),
            })
        });
        check_all(&checks.collect::<Vec<_>>());
    }
}

/// Nodes, or pods in the host network, can be endpoints, including for their own node and under policy Local.
pub fn nodes_can_be_endpoints(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let nodes = cluster.nodes();
    let _servers = nodes
        .iter()
        .map(|node| Server::start(&node.netns, &node.name, &node.address.both(), &[8080]))
        .collect::<Vec<_>>();
    let [node_a, node_b] = [&nodes[0], &nodes[1]].map(Endpoint::of_node);
    let (both, only_b) = (service(1).endpoints([node_a, node_b.clone()]), service(1).endpoints([node_b]));
    let local = both.clone().internal_policy(TrafficPolicy::Local).external_policy(TrafficPolicy::Local);
    let all = &["node-a", "node-b"][..];
    for (service, on_a, on_b, from_outside) in
        [(both, all, all, all), (only_b, &all[1..], &all[1..], &all[1..]), (local, &all[..1], &all[1..], &all[..1])]
    {
        deployment.apply(&service);
        let cluster = deployment.cluster();
        for (node, expected) in cluster.nodes().iter().zip([on_a, on_b]) {
            assert_answers(&node.pod(1).client(), cluster_ips(1), expected);
            assert_answers(&node.client(), cluster_ips(1), expected);
        }
        assert_answers(&cluster.client(), external(cluster, 1), from_outside);
    }
}

// === helpers ===

/// A service with each kind of VIP.
fn service(number: u8) -> Service {
    let service = Service::new(&format!("web-{number}")).cluster_ip(plan::cluster_ip(number));
    let service = service.external_ip(plan::external_ip(number)).load_balancer_ip(plan::load_balancer_ip(number));
    service.port_all(PORT, 8080).node_port(NODE_PORT + u16::from(number))
}

fn endpoints(cluster: &Cluster, states: [EndpointState; 3]) -> impl Iterator<Item = Endpoint> {
    PODS.into_iter().zip(states).map(|(pod, state)| Endpoint::of(cluster.pod(pod)).state(state))
}

fn cluster_ips(number: u8) -> [SocketAddr; 2] {
    both(plan::cluster_ip(number), PORT)
}

/// External IP, load-balancer IP, node port.
fn external(cluster: &Cluster, number: u8) -> Vec<SocketAddr> {
    let node_port = both(cluster.node('a').address, NODE_PORT + u16::from(number));
    [both(plan::external_ip(number), PORT), both(plan::load_balancer_ip(number), PORT), node_port].concat()
}

fn both(address: DualStack, port: u16) -> [SocketAddr; 2] {
    IpFamily::ALL.map(|family| SocketAddr::new(address.ip(family), port))
}
