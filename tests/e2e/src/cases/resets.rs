//! TCP clients of an endpoint that is gone get a reset, also those that only wait; others keep their connections.
//!
//! The endpoint ends without a word: its link is down, as that of a node without power.

use std::{
    io::{self, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    client::Client,
    cluster::{Cluster, Pod},
    deployment::{Backend, Deployment},
    manifests::{Endpoint, EndpointState, Service},
    pace::patience,
    plan::{self, IpFamily},
    uml,
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// For each kind of VIP and family.
const CONNECTIONS: usize = 2;
/// How long a client waits that is reset within seconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// After this time no connection is reset any more that was not before.
const ABSENCE: Duration = Duration::from_secs(5);
const REMOVED: [(&str, &str); 1] = [("fairlead.io/reset-connections", "removed")];

/// A client that waits for a message.
struct Waiting {
    what: String,
    connection: TcpStream,
    ended: JoinHandle<(io::Result<usize>, Instant)>,
}

impl Waiting {
    #[track_caller]
    fn open(what: &str, client: &Client, to: SocketAddr, pod: &str) -> Self {
        let what = format!("{what} {to}");
        let (reply, reader) = client.connect(to).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert_eq!(reply.pod, pod, "{what}");
        let connection = reader.get_ref().try_clone().expect("a socket");
        Self { what, connection, ended: thread::spawn(move || wait(reader)) }
    }
}

// === the cases ===

/// An endpoint that does not serve is gone when its Node is; the Service says nothing.
pub fn clients_of_a_node_that_is_gone_are_reset(backend: Backend) {
    let mut deployment = start(backend, "node-gone", |cluster| vec![web(cluster, &[])]);
    let [kept, lost] = connect_to_both(&mut deployment, &[]);
    let cluster = deployment.cluster();
    silence(cluster.pod("pod-b-1"));
    let endpoints = [ready(cluster, "pod-a-1"), ready(cluster, "pod-b-1").state(EndpointState::NotReady)];
    let service = web(cluster, &[]).endpoints(endpoints);
    deployment.apply(&service);
    assert!(lost.iter().all(|waiting| !waiting.ended.is_finished()), "its Node is still there");
    deployment.manifests().delete_node(deployment.cluster().node('b'));
    assert_reset(lost, Instant::now());
    assert_kept(kept);
}

/// An endpoint that no slice has any more is gone if the Service says so.
pub fn clients_of_a_removed_endpoint_are_reset(backend: Backend) {
    let removed = REMOVED;
    let mut deployment = start(backend, "removed", |cluster| vec![web(cluster, &removed)]);
    let [kept, lost] = connect_to_both(&mut deployment, &removed);
    let cluster = deployment.cluster();
    silence(cluster.pod("pod-b-1"));
    let draining = ready(cluster, "pod-a-1").state(EndpointState::Terminating);
    let steps = [
        // Neither is gone.
        web(cluster, &removed).endpoints([draining.clone(), ready(cluster, "pod-b-1").state(EndpointState::NotReady)]),
        // Connections are reset only if another endpoint can serve.
        web(cluster, &removed).endpoints([draining, ready(cluster, "pod-a-2")]),
    ];
    let [both, without] = steps;
    deployment.apply(&both);
    assert!(lost.iter().all(|waiting| !waiting.ended.is_finished()), "it is in a slice");
    let begun = Instant::now();
    deployment.apply(&without);
    assert_reset(lost, begun);
    assert_kept(kept);
}

/// An endpoint that returns gets new connections at once, although connections to it were reset just before.
pub fn an_endpoint_that_returns_gets_connections_at_once(backend: Backend) {
    let mut deployment = start(backend, "removed", |cluster| vec![web(cluster, &[])]);
    let [kept, lost] = connect_to_both(&mut deployment, &[]);
    let draining = ready(deployment.cluster(), "pod-a-1").state(EndpointState::Terminating);
    let without = web(deployment.cluster(), &[]).endpoints([draining, ready(deployment.cluster(), "pod-a-2")]);
    deployment.apply(&without);
    assert_reset(lost, Instant::now());
    let service = web(deployment.cluster(), &[]).endpoints([ready(deployment.cluster(), "pod-b-1")]);
    deployment.apply(&service);
    for _ in 0..2 {
        let new = connect(deployment.cluster(), "pod-b-1");
        assert_kept(new);
    }
    drop(kept);
}

/// A connection that another program has translated is not the Service's, although its VIP is.
pub fn connections_that_no_service_translated_are_kept(backend: Backend) {
    const HOST_PORT: u16 = 8088;
    let mut deployment = start(backend, "removed", |cluster| vec![web(cluster, &[])]);
    let cluster = deployment.cluster();
    let (address, pod) = (plan::external_ip(2), cluster.pod("pod-a-2"));
    let program = match backend {
        Backend::Nft | Backend::IptablesNft => "iptables-nft",
        Backend::IptablesLegacy | Backend::Ipvs => "iptables-legacy",
    };
    let rule = format!(
        "-t nat -A PREROUTING -d {} -p tcp --dport {HOST_PORT} -j DNAT --to-destination {}:8080",
        address.v4, pod.address.v4
    );
    cluster.node('a').netns.output(program, &rule.split(' ').collect::<Vec<_>>());
    let to = SocketAddr::new(address.v4.into(), HOST_PORT);
    let kept = Waiting::open("host port", &cluster.client(), to, "pod-a-2");
    let service = |pods: &[&str]| {
        let service = Service::new("other").cluster_ip(plan::cluster_ip(2)).external_ip(address);
        service.port_all(HOST_PORT, 8080).endpoints(pods.iter().map(|pod| ready(cluster, pod)))
    };
    let [both, one] = [service(&["pod-a-1", "pod-b-1"]), service(&["pod-a-1"])];
    deployment.apply(&both);
    deployment.apply(&one);
    thread::sleep(ABSENCE);
    assert_kept(vec![kept]);
}

fn start(backend: Backend, which: &str, services: impl FnOnce(&Cluster) -> Vec<Service>) -> Deployment {
    Deployment::builder(backend).frontend_argument(&format!("--reset-connections={which}")).start(services)
}

/// Connections to pod-a-1, which terminates from then on, and to pod-b-1.
fn connect_to_both(deployment: &mut Deployment, annotations: &[(&str, &str)]) -> [Vec<Waiting>; 2] {
    let cluster = deployment.cluster();
    let service = |endpoints: Vec<Endpoint>| web(cluster, annotations).endpoints(endpoints);
    let first = service(vec![ready(cluster, "pod-a-1")]);
    let draining = ready(cluster, "pod-a-1").state(EndpointState::Terminating);
    let second = service(vec![draining, ready(cluster, "pod-b-1")]);
    [(first, "pod-a-1"), (second, "pod-b-1")].map(|(service, pod)| {
        deployment.apply(&service);
        connect(deployment.cluster(), pod)
    })
}

#[track_caller]
fn assert_reset(lost: Vec<Waiting>, begun: Instant) {
    let limit = patience(if uml::is_guest() { PATIENCE } else { Duration::from_secs(6) });
    for Waiting { what, ended, .. } in lost {
        let (result, at) = ended.join().expect("a thread that does not panic");
        let error = result.expect_err(&what);
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{what}: {error}");
        let took = at.saturating_duration_since(begun);
        assert!(took < limit, "{what}: after {took:?}");
    }
}

/// The echo of a message ends the wait.
#[track_caller]
fn assert_kept(kept: Vec<Waiting>) {
    for Waiting { what, mut connection, ended } in kept {
        connection.write_all(&[7; 8]).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (result, _) = ended.join().expect("a thread that does not panic");
        assert_eq!(result.unwrap_or_else(|error| panic!("{what}: {error}")), 8, "{what}");
    }
}

// === the service, its endpoints and clients ===

/// A service with each kind of VIP, without endpoints.
fn web(_: &Cluster, annotations: &[(&str, &str)]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).external_ip(plan::external_ip(1));
    let service = service.load_balancer_ip(plan::load_balancer_ip(1)).port_all(PORT, 8080).node_port(NODE_PORT);
    annotations.iter().fold(service, |service, (name, value)| service.annotation(name, value))
}

fn ready(cluster: &Cluster, pod: &str) -> Endpoint {
    Endpoint::of(cluster.pod(pod))
}

/// Nothing answers for the pod any more.
fn silence(pod: &Pod) {
    pod.netns.ip("link set eth0 down\n");
}

/// Clients at each kind of VIP, in both families, whose connections lead to this pod.
#[track_caller]
fn connect(cluster: &Cluster, pod: &str) -> Vec<Waiting> {
    let (client, node) = (cluster.pod("pod-a-3").client(), cluster.node('a'));
    let targets = [
        ("pod to cluster IP", &client, plan::cluster_ip(1), PORT),
        ("node to cluster IP", &node.client(), plan::cluster_ip(1), PORT),
        ("outside to external IP", &cluster.client(), plan::external_ip(1), PORT),
        ("pod to load-balancer IP", &client, plan::load_balancer_ip(1), PORT),
        ("outside to node port", &cluster.client(), node.address, NODE_PORT),
        ("pod to node port", &client, node.address, NODE_PORT),
        ("node to node port", &node.client(), node.address, NODE_PORT),
    ];
    let mut all = Vec::new();
    for (what, client, address, port) in targets {
        for family in IpFamily::ALL {
            let to = SocketAddr::new(address.ip(family), port);
            all.extend((0..CONNECTIONS).map(|_| Waiting::open(what, client, to, pod)));
        }
    }
    all
}

fn wait(mut reader: BufReader<TcpStream>) -> (io::Result<usize>, Instant) {
    let mut message = [0; 8];
    let result = reader.get_ref().set_read_timeout(Some(patience(PATIENCE))).and_then(|()| reader.read(&mut message));
    (result, Instant::now())
}
