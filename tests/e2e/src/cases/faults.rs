//! Invalid input: the frontend reports object and field, and everything else works.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};

use super::expect::{assert_closed, assert_pods};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::Service,
    plan::{self, DualStack, IpFamily},
    wire::{Failure, Protocol},
};

const PORT: u16 = 80;
/// The longest name of a namespace, a Service or a port that the API accepts.
const LONGEST_NAME: usize = 63;

// === the cases ===

/// A loopback endpoint is ignored, the other one is used.
pub fn loopback_endpoints_are_ignored(backend: Backend) {
    let mut deployment = Deployment::start(backend, unaffected);
    let mut objects = other(deployment.cluster()).objects();
    let mut bad = objects[1]["endpoints"][0].clone();
    bad["addresses"] = json!(["127.0.0.1"]);
    objects[1]["endpoints"].as_array_mut().expect("a list").push(bad);
    let mark = apply_objects(&mut deployment, &objects);
    assert_logged(&deployment, mark, &["default/other-ipv4", "endpoints[1].addresses[0]", "127.0.0.1", "loopback"]);
    assert_answers(&deployment, plan::cluster_ip(2), &["pod-b-1"]);
    assert_unaffected(&deployment);
}

/// An external IP that is the cluster IP of another Service is not served.
pub fn external_ip_that_is_a_cluster_ip_is_not_served(backend: Backend) {
    let mut deployment = Deployment::start(backend, unaffected);
    let service = other(deployment.cluster()).external_ip(plan::cluster_ip(1));
    let mark = apply_objects(&mut deployment, &service.objects());
    assert_logged(
        &deployment,
        mark,
        &["default/other", "spec.externalIPs", "would shadow the cluster IP of Service default/web"],
    );
    assert_answers(&deployment, plan::cluster_ip(2), &["pod-b-1"]);
    assert_unaffected(&deployment);
}

/// A load-balancer IP of 127.0.0.1 or ::1 takes over no port of a node, at which processes listen for the node itself.
pub fn loopback_load_balancer_ip_is_not_served(backend: Backend) {
    let loopback = DualStack::new(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let mut deployment = Deployment::start(backend, unaffected);
    let service = other(deployment.cluster()).load_balancer_ip(loopback);

    let mark = apply_objects(&mut deployment, &service.objects());

    let parts = ["default/other", "status.loadBalancer.ingress", "127.0.0.1", "a loopback address"];
    assert_logged(&deployment, mark, &parts);
    let node = deployment.cluster().node('a').client();
    for address in loopback.both() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let answer = node.ask(protocol, SocketAddr::new(address, PORT)).map(|reply| reply.pod);
            assert_eq!(answer, Err(Failure::Refused), "{protocol} {address}: no process listens there");
        }
    }
    assert_answers(&deployment, plan::cluster_ip(2), &["pod-b-1"]);
    assert_unaffected(&deployment);
}

/// A Service whose names are as long as the API accepts is programmed, without endpoints and with one.
pub fn service_with_the_longest_names_is_programmed(backend: Backend) {
    let mut deployment = Deployment::start(backend, unaffected);
    let name = |letter: &str| letter.repeat(LONGEST_NAME);
    let without = Service::new(&name("s")).namespace(&name("n")).cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080);
    let with = without.clone().pods([deployment.cluster().pod("pod-b-1")]);
    let vips = IpFamily::ALL.map(|family| SocketAddr::new(plan::cluster_ip(2).ip(family), PORT));

    apply_objects(&mut deployment, &with_longest_port_names(&without));
    assert_closed(&deployment.cluster().pod("pod-a-3").client(), vips);
    assert_unaffected(&deployment);

    apply_objects(&mut deployment, &with_longest_port_names(&with));
    assert_answers(&deployment, plan::cluster_ip(2), &["pod-b-1"]);
    assert_unaffected(&deployment);
}

/// If the only source range is invalid, the load-balancer IP is closed, not open to all sources.
pub fn invalid_source_range_closes_the_address(backend: Backend) {
    let mut deployment = Deployment::start(backend, unaffected);
    let address = plan::load_balancer_ip(1);
    let service = other(deployment.cluster()).load_balancer_ip(address);
    let mark = apply_objects(&mut deployment, &service.clone().source_ranges(&["10.244.0.0/99"]).objects());
    assert_logged(&deployment, mark, &["default/other", "spec.loadBalancerSourceRanges[0]", "10.244.0.0/99"]);
    let vips = IpFamily::ALL.map(|family| SocketAddr::new(address.ip(family), PORT));
    let client = deployment.cluster().pod("pod-a-3").client();
    // In both families: that of the invalid range is unknown.
    assert_closed(&client, vips);
    assert_answers(&deployment, plan::cluster_ip(2), &["pod-b-1"]);
    let readable = service.source_ranges(&["10.244.0.0/99", "10.244.0.0/16", "fd00:10:244::/48"]);
    apply_objects(&mut deployment, &readable.objects());
    assert_answers(&deployment, address, &["pod-b-1"]);
    assert_unaffected(&deployment);
}

/// Of two Services with the same load-balancer IP and port, the older one is served.
pub fn first_service_keeps_a_contested_vip(backend: Backend) {
    let address = plan::load_balancer_ip(1);
    let mut deployment = Deployment::start(backend, |cluster| {
        let first = Service::new("first").cluster_ip(plan::cluster_ip(3)).port_all(PORT, 8080);
        let first = first.load_balancer_ip(address).pods([cluster.pod("pod-b-3")]);
        [unaffected(cluster), vec![first]].concat()
    });
    let second = other(deployment.cluster()).load_balancer_ip(address);
    let mark = apply_objects(&mut deployment, &second.objects());
    assert_logged(&deployment, mark, &["default/other", "status.loadBalancer.ingress", "default/first"]);
    assert_answers(&deployment, address, &["pod-b-3"]);
    assert_answers(&deployment, plan::cluster_ip(2), &["pod-b-1"]);
    assert_unaffected(&deployment);
}

// === helpers ===

/// Writes objects to a file, waits until they are programmed, and returns where the log of the frontend began.
#[track_caller]
fn apply_objects(deployment: &mut Deployment, objects: &[Value]) -> usize {
    let mark = deployment.frontend().mark();
    deployment.manifests().write("default.other", objects);
    deployment.wait_until_programmed();
    mark
}

#[track_caller]
fn assert_logged(deployment: &Deployment, mark: usize, parts: &[&str]) {
    deployment
        .frontend()
        .wait_for(&format!("{parts:?}"), mark, TIMEOUT, |line| parts.iter().all(|part| line.contains(part)));
}

/// The objects of a Service, with the longest names of its ports.
fn with_longest_port_names(service: &Service) -> Vec<Value> {
    let mut objects = service.objects();
    for object in &mut objects {
        for field in ["/spec/ports", "/ports"] {
            let ports = object.pointer_mut(field).and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                let name = port["name"].as_str().expect("a name");
                port["name"] = json!(format!("{name:p<LONGEST_NAME$}"));
            }
        }
    }
    objects
}

/// A valid Service, which must stay reachable.
fn unaffected(cluster: &Cluster) -> Vec<Service> {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    vec![service.pods([cluster.pod("pod-a-1"), cluster.pod("pod-b-2")])]
}

#[track_caller]
fn assert_unaffected(deployment: &Deployment) {
    assert_answers(deployment, plan::cluster_ip(1), &["pod-a-1", "pod-b-2"]);
}

/// The Service that a case makes invalid.
fn other(cluster: &Cluster) -> Service {
    let service = Service::new("other").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080);
    service.pods([cluster.pod("pod-b-1")])
}

#[track_caller]
fn assert_answers(deployment: &Deployment, vip: DualStack, pods: &[&str]) {
    let client = deployment.cluster().pod("pod-a-3").client();
    for family in IpFamily::ALL {
        for protocol in Protocol::ALL {
            assert_pods(&client, protocol, SocketAddr::new(vip.ip(family), PORT), pods);
        }
    }
}
