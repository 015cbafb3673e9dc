//! External and load-balancer IPs that are addresses of nodes, as in clusters without a load balancer: they are served,
//! other ports of the node stay its own, and the ports of the kubelet and of the API server are protected.

use std::net::SocketAddr;

use serde_json::json;

use super::expect::assert_pods;
use crate::{
    client::Client,
    cluster::{Cluster, Node},
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::{Endpoint, Service},
    plan::{self, IpFamily},
    server::Server,
    wire::Protocol,
};

const PORT: u16 = 80;
/// A port of the node itself.
const OTHER_PORT: u16 = 81;
const KUBELET_PORT: u16 = 10_250;
const API_PORT: u16 = 6443;

// === the cases ===

/// The external IP is the address of a node: its pods answer there, and the node itself on its other ports.
pub fn external_ip_of_a_node_is_served(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let node = deployment.cluster().node('b');
    let _server = Server::start(&node.netns, &node.name, &node.address.both(), &[PORT, OTHER_PORT]);
    let address = node.address;
    let service = web(deployment.cluster()).port_all(PORT, 8080);
    deployment.apply(&service.clone().external_ip(address));
    assert_everywhere(&deployment, PORT, &["pod-b-1"]);
    assert_everywhere(&deployment, OTHER_PORT, &["node-b"]);
    deployment.apply(&service);
    assert_everywhere(&deployment, PORT, &["node-b"]);
}

/// An ingress controller on the host network of the node whose address is its external IP.
pub fn ingress_on_the_host_network_is_served(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let node = deployment.cluster().node('b');
    let _server = Server::start(&node.netns, &node.name, &node.address.both(), &[8080]);
    let ingress = web(deployment.cluster()).port_all(PORT, 8080).external_ip(node.address);
    let ingress = ingress.endpoints([Endpoint::of_node(node)]);
    deployment.apply(&ingress);
    assert_everywhere(&deployment, PORT, &["node-b"]);
    assert_everywhere(&deployment, 8080, &["node-b"]);
}

/// A Service claims the ports of the kubelet and of the API server at the address of their node.
pub fn ports_of_kubelet_and_api_server_are_protected(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let node = deployment.cluster().node('b');
    let _server = Server::start(&node.netns, &node.name, &node.address.both(), &[KUBELET_PORT, API_PORT]);
    let address = node.address;
    // As the API server publishes itself: endpoints without a node.
    let mut api = Service::new("kubernetes").cluster_ip(plan::cluster_ip(2)).port(Protocol::Tcp, 443, API_PORT);
    api = api.endpoints([Endpoint::of_node(node)]);
    let mut objects = api.objects();
    for slice in &mut objects[1..] {
        let endpoints = slice["endpoints"].as_array_mut().expect("a list");
        endpoints.iter_mut().for_each(|endpoint| endpoint["nodeName"] = json!(null));
    }
    deployment.manifests().write("default.kubernetes", &objects);
    let greedy = [KUBELET_PORT, API_PORT, PORT].into_iter();
    let greedy = greedy.fold(web(deployment.cluster()), |service, port| service.port_all(port, 8080));
    let mark = deployment.frontend().mark();
    deployment.apply(&greedy.external_ip(address).load_balancer_ip(address));
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        assert_answers(&deployment, protocol, KUBELET_PORT, &["node-b"]);
        assert_answers(&deployment, protocol, API_PORT, &["node-b"]);
    }
    // Another protocol is free.
    assert_answers(&deployment, Protocol::Sctp, KUBELET_PORT, &["pod-b-1"]);
    assert_everywhere(&deployment, PORT, &["pod-b-1"]);
    for owner in ["a process on Node node-b", "it would shadow the API server"] {
        deployment.frontend().wait_for_line(owner, mark, TIMEOUT);
    }
}

// === helpers ===

fn web(cluster: &Cluster) -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).pods([cluster.pod("pod-b-1")])
}

fn assert_everywhere(deployment: &Deployment, port: u16, names: &[&str]) {
    for protocol in Protocol::ALL {
        assert_answers(deployment, protocol, port, names);
    }
}

/// Asks the address of node b from outside, from pods of both nodes, and from both nodes.
#[track_caller]
fn assert_answers(deployment: &Deployment, protocol: Protocol, port: u16, names: &[&str]) {
    let cluster = deployment.cluster();
    let node: &Node = cluster.node('b');
    let clients: [Client; 5] = [
        cluster.client(),
        cluster.pod("pod-a-3").client(),
        cluster.pod("pod-b-3").client(),
        cluster.node('a').client(),
        node.client(),
    ];
    for client in clients {
        for family in IpFamily::ALL {
            assert_pods(&client, protocol, SocketAddr::new(node.address.ip(family), port), names);
        }
    }
}
