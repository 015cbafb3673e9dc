//! Answers of health-check node ports to a load balancer in front of the cluster.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use nix::sys::signal::Signal;

use crate::{
    client::DEADLINE,
    cluster::{Cluster, Node},
    deployment::{Backend, Deployment, TIMEOUT},
    http::http_get,
    manifests::{Endpoint, EndpointState, Service, TrafficPolicy},
    plan::{self, IpFamily},
    wait::eventually,
};

use EndpointState::{NotReady, Ready};

const HEALTH_PORT: u16 = 32_000;
const PODS: [&str; 4] = ["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2"];

/// Status and weight.
type Answer = (u16, usize);

/// The port closes when the Service or its policy Local is removed, and opens after a restart, without a frontend too.
pub fn health_check_ports_open_and_close(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Ready; 4])]);
    until_open(&deployment);
    deployment.stop_frontend(Signal::SIGTERM);
    deployment.stop_backends(Signal::SIGTERM);
    until_refused(&deployment);
    deployment.start_backends();
    until_open(&deployment);
    deployment.start_frontend();

    let service = web(deployment.cluster(), [Ready; 4]);
    deployment.apply(&service.clone().external_policy(TrafficPolicy::Cluster));
    until_refused(&deployment);
    deployment.apply(&service);
    until_open(&deployment);
    deployment.delete(&service);
    until_refused(&deployment);
}

/// Some clouds send their probes to the load-balancer IP, which their agent makes an address of the node.
pub fn health_checks_are_answered_at_load_balancer_ips(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Ready, Ready, NotReady, NotReady])]);
    let ip = plan::load_balancer_ip(1);
    // With IPVS it is one already.
    for node in deployment.cluster().nodes().iter().filter(|_| backend != Backend::Ipvs) {
        for (family, version) in [(IpFamily::V4, "-4"), (IpFamily::V6, "-6")] {
            node.netns.output("ip", &[version, "route", "add", "local", &ip.ip(family).to_string(), "dev", "lo"]);
        }
    }
    let until_answers = |deployment: &Deployment, expected: [Option<Answer>; 2]| {
        let cluster = deployment.cluster();
        for (node, expected) in cluster.nodes().iter().zip(expected) {
            cluster.route_vips_through(node);
            for family in IpFamily::ALL {
                let at = ip.ip(family);
                let what = format!("{} answers {expected:?} at {at}", node.name);
                eventually(&what, TIMEOUT, || (ask_at(cluster, at).ok() == expected).then_some(()));
            }
        }
    };
    until_answers(&deployment, [Some((200, 2)), Some((503, 0))]);
    // Another port of the address.
    let moved = web(deployment.cluster(), [Ready; 4]).health_check_node_port(HEALTH_PORT + 1);
    deployment.apply(&moved);
    until_answers(&deployment, [None, None]);
    let service = web(deployment.cluster(), [Ready; 4]);
    deployment.apply(&service);
    until_answers(&deployment, [Some((200, 2)), Some((200, 2))]);
}

fn web(cluster: &Cluster, states: [EndpointState; 4]) -> Service {
    let endpoints = PODS.into_iter().zip(states);
    Service::new("web")
        .cluster_ip(plan::cluster_ip(1))
        .port_all(80, 8080)
        .load_balancer_ip(plan::load_balancer_ip(1))
        .external_policy(TrafficPolicy::Local)
        .health_check_node_port(HEALTH_PORT)
        .endpoints(endpoints.map(|(pod, state)| Endpoint::of(cluster.pod(pod)).state(state)))
}

/// Listeners are opened and closed a little after the kernel is programmed.
#[track_caller]
fn until_open(deployment: &Deployment) {
    until("the health-check node ports are open", deployment, |answer| answer.is_ok());
}

#[track_caller]
fn until_refused(deployment: &Deployment) {
    until("the health-check node ports are closed", deployment, |answer| {
        answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    });
}

#[track_caller]
fn until(what: &str, deployment: &Deployment, condition: impl Fn(io::Result<Answer>) -> bool) {
    let cluster = deployment.cluster();
    for node in cluster.nodes() {
        for family in IpFamily::ALL {
            eventually(what, TIMEOUT, || condition(ask(cluster, node, family)).then_some(()));
        }
    }
}

/// Sends a health check to a node from outside.
fn ask(cluster: &Cluster, node: &Node, family: IpFamily) -> io::Result<Answer> {
    ask_at(cluster, node.address.ip(family))
}

fn ask_at(cluster: &Cluster, address: IpAddr) -> io::Result<Answer> {
    let to = SocketAddr::new(address, HEALTH_PORT);
    let response = http_get(cluster.outside(), to, "/healthz", DEADLINE)?;
    let weight = response.head.lines().find_map(|line| line.strip_prefix("X-Load-Balancing-Endpoint-Weight: "));
    let weight = weight.and_then(|weight| weight.parse().ok());
    Ok((response.status, weight.ok_or_else(|| io::Error::other(format!("no weight in {:?}", response.head)))?))
}
