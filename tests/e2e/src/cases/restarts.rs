//! Restarts of each component by SIGTERM and SIGKILL, under traffic: no connection is lost and nothing is written
//! to the kernel. Without a frontend a node keeps its rules, and after a reboot programs its last state.

use std::{net::SocketAddr, time::Duration};

use nix::sys::signal::Signal;

use super::expect::assert_pods;
use crate::{
    client::Client,
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::{Service, TrafficPolicy},
    plan::{self, IpFamily},
    process::Process,
    traffic::BackgroundTraffic,
    wire::Protocol,
};

/// What is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Component {
    Backends,
    Frontend,
}

const PORT: u16 = 80;
const INTERVAL: Duration = Duration::from_millis(15);
const ATTEMPTS: u64 = 40;
const PODS: [&str; 4] = ["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2"];

// === the cases ===

/// Backends shut down cleanly.
pub fn backends_are_terminated(backend: Backend) {
    run(backend, Component::Backends, Signal::SIGTERM);
}

/// Backends are killed without a clean shutdown.
pub fn backends_are_killed(backend: Backend) {
    run(backend, Component::Backends, Signal::SIGKILL);
}

/// The frontend shuts down cleanly: the message that asks nodes to reconnect writes nothing to their kernels.
pub fn the_frontend_is_terminated(backend: Backend) {
    run(backend, Component::Frontend, Signal::SIGTERM);
}

/// The frontend is killed without a clean shutdown.
pub fn the_frontend_is_killed(backend: Backend) {
    run(backend, Component::Frontend, Signal::SIGKILL);
}

/// After a reboot a node programs its last committed state, although no frontend is reachable.
pub fn rebooted_node_programs_its_last_state(backend: Backend) {
    let mut deployment = Deployment::start(backend, services);
    let changed = web(deployment.cluster(), &["pod-a-1", "pod-b-2"]);
    deployment.apply(&changed);
    deployment.wait_until_programmed();
    // By SIGKILL a backend might not have stored its last commit yet.
    deployment.stop_backends(Signal::SIGTERM);
    // Another cluster with the same addresses: the nodes after the reboot.
    let rebooted = Cluster::start();
    let nowhere = format!("unix:{}", deployment.path("nowhere.sock").display());
    let processes = rebooted.nodes().iter().map(|node| {
        let command = backend.follow(&nowhere, &node.name, &deployment.state(node), &[]);
        Process::spawn(&node.netns, command, &deployment.path(&format!("rebooted-{}.log", node.name)))
    });
    let processes = processes.collect::<Vec<_>>();
    for process in &processes {
        process.wait_for_line("ready: node state programmed", 0, TIMEOUT);
    }
    let local = |family| SocketAddr::new(plan::cluster_ip(2).ip(family), PORT);
    for family in IpFamily::ALL {
        for protocol in Protocol::ALL {
            assert_pods(&rebooted.pod("pod-a-3").client(), protocol, vip(family), &["pod-a-1", "pod-b-2"]);
            assert_pods(&rebooted.pod("pod-b-3").client(), protocol, local(family), &["pod-b-1", "pod-b-2"]);
        }
    }
}

// === one restart ===

#[track_caller]
fn run(backend: Backend, component: Component, signal: Signal) {
    let mut deployment = Deployment::start(backend, services);
    let mut monitors = deployment.cluster().nodes().iter().map(|node| deployment.monitor(node)).collect::<Vec<_>>();
    let traffic = start_traffic(deployment.cluster());

    match component {
        Component::Backends => deployment.stop_backends(signal),
        Component::Frontend => deployment.stop_frontend(signal),
    }
    traffic.wait(ATTEMPTS, TIMEOUT);
    match component {
        Component::Backends => deployment.start_backends(),
        Component::Frontend => deployment.start_frontend(),
    }
    // The kernel changes are only those of the fence, so the restart wrote nothing.
    deployment.wait_until_programmed();
    traffic.wait(ATTEMPTS, TIMEOUT);
    for monitor in &mut monitors {
        let (fence, others): (Vec<_>, Vec<_>) =
            monitor.changes().into_iter().partition(|line| Deployment::is_fence(line));
        assert_eq!(others, [""; 0]);
        assert!(!fence.is_empty(), "the monitor reports kernel writes");
    }
    traffic.finish();
}

/// Starts long-lived and new connections, from a pod, a node and outside.
#[track_caller]
fn start_traffic(cluster: &Cluster) -> BackgroundTraffic {
    let clients = [cluster.pod("pod-a-3").client(), cluster.node('b').client(), cluster.client()];
    let mut streams = Vec::new();
    for client in &clients {
        for family in IpFamily::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                streams.push(client.stream(protocol, vip(family), INTERVAL).expect("a connection"));
            }
        }
    }
    let churn = |(client, protocol, family): (&Client, Protocol, IpFamily)| {
        client.churn(protocol, vip(family), 40, TIMEOUT * 3)
    };
    let [pod, node, outside] = &clients;
    let churns = [
        (pod, Protocol::Tcp, IpFamily::V6),
        (node, Protocol::Tcp, IpFamily::V4),
        (outside, Protocol::Tcp, IpFamily::V4),
        (outside, Protocol::Udp, IpFamily::V6),
    ];
    BackgroundTraffic { streams, churns: churns.map(churn).into() }.that_fits_a_guest()
}

// === the services ===

fn services(cluster: &Cluster) -> Vec<Service> {
    let local = Service::new("local").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080).node_port(30_080);
    let local = local
        .external_ip(plan::external_ip(2))
        .internal_policy(TrafficPolicy::Local)
        .external_policy(TrafficPolicy::Local);
    vec![
        web(cluster, &PODS),
        local.pods(PODS.map(|name| cluster.pod(name))),
        Service::new("empty").cluster_ip(plan::cluster_ip(3)).port_all(PORT, 8080),
    ]
}

fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods(pods.iter().map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}
