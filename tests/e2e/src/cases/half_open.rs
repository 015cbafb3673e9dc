//! TCP clients whose SYN was not answered, because its endpoint departed or because the VIP did not exist: a SYN that
//! the kernel repeats reaches an endpoint.

use std::{
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::Duration,
};

use netlink::conntrack::ConntrackHandle;

use crate::{
    client::Client,
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::Service,
    netns::Netns,
    pace::patience,
    plan::{self, IpFamily},
    wait::eventually,
    wire::{Failure, Reply},
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// A SYN is repeated after 1, 3 and 7 s.
const DEADLINE: Duration = Duration::from_secs(9);

/// A client that waits for the answer to its SYN.
struct Connecting {
    what: String,
    result: JoinHandle<Result<Reply, Failure>>,
}

impl Connecting {
    fn start(what: &str, client: &Client, to: SocketAddr) -> Self {
        let client = client.clone().with_deadline(patience(DEADLINE)).with_slow_handshakes();
        Self { what: format!("{what}, {to}"), result: thread::spawn(move || client.tcp(to)) }
    }
}

// === the cases ===

/// At each kind of VIP, from a pod, from the node and from outside.
pub fn clients_of_a_removed_endpoint_reach_another_one(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, "pod-b-1")]);
    let cluster = deployment.cluster();
    // It gets each SYN, and cannot answer.
    silence(&cluster.pod("pod-b-1").netns, &["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"].map(str::to_owned));
    let (pod, node) = (cluster.pod("pod-a-3").client(), cluster.node('a'));
    let targets = [
        ("pod to cluster IP", &pod, plan::cluster_ip(1), PORT),
        ("node to cluster IP", &node.client(), plan::cluster_ip(1), PORT),
        ("outside to external IP", &cluster.client(), plan::external_ip(1), PORT),
        ("pod to load-balancer IP", &pod, plan::load_balancer_ip(1), PORT),
        ("outside to node port", &cluster.client(), node.address, NODE_PORT),
    ];
    let connect = |(what, client, address, port): (&str, &Client, plan::DualStack, u16)| {
        IpFamily::ALL.map(|family| Connecting::start(what, client, SocketAddr::new(address.ip(family), port)))
    };
    let connecting: Vec<_> = targets.into_iter().flat_map(connect).collect();
    wait_until_half_open(&node.netns, connecting.len());
    let moved = web(cluster, "pod-a-1");
    deployment.apply(&moved);
    assert_answered(connecting, "pod-a-1");
}

/// At a VIP whose address belongs to another network, until the Service has it.
pub fn clients_from_before_the_vip_are_answered(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let (pod, node) = (cluster.pod("pod-a-3").client(), cluster.node('a'));
    let vips = [("external IP", plan::external_ip(1)), ("load-balancer IP", plan::load_balancer_ip(1))];
    let addresses = vips.map(|(_, address)| IpFamily::ALL.map(|family| address.ip(family).to_string()));
    silence(cluster.outside(), &addresses.concat());
    let connect = |(what, address): (&str, plan::DualStack)| {
        IpFamily::ALL.map(|family| Connecting::start(what, &pod, SocketAddr::new(address.ip(family), PORT)))
    };
    let connecting: Vec<_> = vips.into_iter().flat_map(connect).collect();
    wait_until_half_open(&node.netns, connecting.len());
    let service = web(cluster, "pod-b-1");
    deployment.apply(&service);
    assert_answered(connecting, "pod-b-1");
}

/// A service with each kind of VIP.
fn web(cluster: &Cluster, pod: &str) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).external_ip(plan::external_ip(1));
    let service = service.load_balancer_ip(plan::load_balancer_ip(1)).port_all(PORT, 8080).node_port(NODE_PORT);
    service.pods([cluster.pod(pod)])
}

/// Drops all packets of the namespace to these networks, without an error.
fn silence(netns: &Netns, networks: &[String]) {
    let routes: Vec<_> = networks.iter().map(|network| format!("route add blackhole {network}\n")).collect();
    netns.ip(&routes.concat());
}

/// Waits until the node knows as many connections without an answer.
#[track_caller]
fn wait_until_half_open(netns: &Netns, expected: usize) {
    let what = format!("{expected} connections are half-open");
    eventually(&what, TIMEOUT, || (half_open(netns) == expected).then_some(()));
}

fn half_open(netns: &Netns) -> usize {
    netns.run(|| {
        let mut count = 0;
        let mut handle = ConntrackHandle::open().expect("a netlink socket");
        for family in IpFamily::ALL {
            let listed = handle.half_open(family, |flow| {
                count += usize::from([PORT, NODE_PORT].contains(&flow.original.destination.port()));
                Ok(())
            });
            listed.expect("the connections");
        }
        count
    })
}

#[track_caller]
fn assert_answered(connecting: Vec<Connecting>, pod: &str) {
    for Connecting { what, result } in connecting {
        let result = result.join().expect("a thread that does not panic");
        assert_eq!(result.map(|reply| reply.pod), Ok(pod.to_owned()), "{what}");
    }
}
