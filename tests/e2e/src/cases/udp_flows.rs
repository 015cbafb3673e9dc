//! UDP clients that keep their socket, and so their flow: they move when their endpoint is removed, and otherwise keep
//! it.
//!
//! The pods of removed endpoints keep serving here, so that a flow that is not moved is detected.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::{
    client::Client,
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::{Endpoint, EndpointState, Service},
    pace::patience,
    plan::{self, IpFamily},
    traffic::{Stream, StreamReport},
    uml,
    wire::Protocol,
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// Between two messages of a flow.
const INTERVAL: Duration = Duration::from_millis(15);
/// The same in a guest, and of so many flows as [`FLOWS`]: more messages would fill the CPU of a guest.
const LONG_INTERVAL: Duration = Duration::from_millis(60);
/// Timeout of a message without an answer, on a quiet machine.
const SHORT: Duration = Duration::from_millis(200);
/// The number of flows. All of them reach the same of two endpoints once in 10^6 runs.
const FLOWS: usize = 20;
/// The same in a guest: IPVS takes the endpoints in turn, so that in each family one flow reaches each of two.
const FLOWS_IN_TURN: usize = 4;
/// The CIDRs of a second address of a node, and that address.
const SECOND_CIDRS: &str = "172.31.0.0/16,fd00:172:31::/64";
const SECOND: [&str; 2] = ["172.31.0.1", "fd00:172:31::1"];

// === the cases ===

/// At each kind of VIP, from a pod, from the node and from outside.
pub fn client_moves_when_its_endpoint_is_removed(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1"])]);
    let streams = streams(deployment.cluster());
    wait_for(&streams, "pod-a-1");
    let moved = web(deployment.cluster(), &["pod-b-1"]);
    deployment.apply(&moved);
    wait_for(&streams, "pod-b-1");
    for (what, stream) in streams {
        let report = stream.finish();
        // At most the message in flight; a guest needs up to half a second, in which several messages are lost.
        let under_way = if uml::is_guest() { 9 } else { 1 };
        assert!(report.lost + report.resets <= under_way, "{what}: {report:?}");
    }
}

/// A client is rejected while there is no endpoint, and answered by the next endpoint.
pub fn client_is_rejected_until_the_next_endpoint(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1"])]);
    let streams = streams(deployment.cluster());
    wait_for(&streams, "pod-a-1");
    let (without, with) = (web(deployment.cluster(), &[]), web(deployment.cluster(), &["pod-a-2"]));
    deployment.apply(&without);
    for (what, stream) in &streams {
        assert!(stream.wait_until(TIMEOUT, |report| report.resets >= 3), "{what}: {:?}", stream.report());
    }
    deployment.apply(&with);
    wait_for(&streams, "pod-a-2");
}

/// A client at a VIP that the Service loses is no longer answered by its endpoint, nor are others when the Service is
/// deleted.
pub fn flows_end_with_their_vip(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1"])]);
    let streams = streams(deployment.cluster());
    wait_for(&streams, "pod-a-1");
    let internal = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    let internal = internal.pods([deployment.cluster().pod("pod-a-1")]);
    deployment.apply(&internal);
    let (kept, lost): (Vec<_>, Vec<_>) = streams.into_iter().partition(|(what, _)| what.contains("cluster IP"));
    assert_unanswered(&lost);
    wait_for_echoes(&kept, 3);
    for (what, stream) in &kept {
        assert!(stream.report().is_clean() || uml::is_guest(), "{what}: {:?}", stream.report());
    }
    deployment.delete(&internal);
    assert_unanswered(&kept);
}

/// The VIP of a Service that keeps others becomes that of another Service, and its node port is closed.
pub fn flows_follow_their_vip_to_another_service(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1"])]);
    let streams = streams(deployment.cluster());
    wait_for(&streams, "pod-a-1");
    let cluster = deployment.cluster();
    let first = Service::new("web").cluster_ip(plan::cluster_ip(1)).external_ip(plan::external_ip(1));
    let first = first.port_all(PORT, 8080).pods([cluster.pod("pod-a-1")]);
    let second = Service::new("second").cluster_ip(plan::cluster_ip(2)).load_balancer_ip(plan::load_balancer_ip(1));
    let second = second.port_all(PORT, 8080).pods([cluster.pod("pod-b-1")]);
    [first, second].iter().for_each(|service| deployment.apply(service));
    let (moved, others): (Vec<_>, Vec<_>) = streams.into_iter().partition(|(what, _)| what.contains("load-balancer"));
    let (closed, kept): (Vec<_>, Vec<_>) = others.into_iter().partition(|(what, _)| what.contains("node port"));
    wait_for(&moved, "pod-b-1");
    wait_for(&kept, "pod-a-1");
    assert_unanswered(&closed);
}

/// Messages before the service exists follow their route or are rejected by the node. Once it exists, it answers the
/// same flow.
pub fn client_from_before_the_service_is_answered(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let streams = streams(deployment.cluster());
    for (what, stream) in &streams {
        let sent = stream.wait_until(TIMEOUT, |report| report.lost + report.resets >= 2);
        assert!(sent && stream.report().echoed == 0, "{what}: {:?}", stream.report());
    }
    let service = web(deployment.cluster(), &["pod-b-1"]);
    deployment.apply(&service);
    wait_for(&streams, "pod-b-1");
}

/// Clients of node ports move too, also at an address of the node that is not the primary one.
pub fn clients_move_at_every_node_address(backend: Backend) {
    let builder = Deployment::builder(backend).argument("--nodeport-addresses").argument(SECOND_CIDRS);
    let mut deployment = builder.start(|_| Vec::new());
    let second = add_second_address(deployment.cluster());
    let client = deployment.cluster().client().with_deadline(patience(SHORT));
    let streams = second.map(|address| {
        let to = SocketAddr::new(address, NODE_PORT);
        (format!("from outside to {to}"), stream(&client, to))
    });
    for (what, stream) in &streams {
        assert!(stream.wait_until(TIMEOUT, |report| report.resets >= 2), "{what}: {:?}", stream.report());
    }
    for pod in ["pod-a-1", "pod-b-1"] {
        let service = web(deployment.cluster(), &[pod]);
        deployment.apply(&service);
        wait_for(&streams, pod);
    }
}

/// Flows keep an endpoint that is in use, including a terminating one that is used because none is ready, whatever else
/// changes.
pub fn live_flows_keep_their_endpoint(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| {
        vec![web(cluster, &["pod-a-1", "pod-a-2"]), other(cluster, EndpointState::Ready)]
    });
    let cluster = deployment.cluster();
    let client = cluster.pod("pod-a-3").client();
    let flows = if uml::is_guest() { FLOWS_IN_TURN } else { FLOWS };
    let streams = (0..flows).map(|number| {
        let to = SocketAddr::new(plan::cluster_ip(1).ip(IpFamily::ALL[number % 2]), PORT);
        let stream = client.stream(Protocol::Udp, to, LONG_INTERVAL).expect("a socket");
        (format!("flow {number} to {to}"), stream)
    });
    let streams = streams.collect::<Vec<_>>();
    let others = IpFamily::ALL.map(|family| {
        let to = SocketAddr::new(plan::cluster_ip(2).ip(family), PORT);
        (format!("to {to}"), stream(&client, to))
    });
    wait_for(&others, "pod-b-1");
    wait_for_echoes(&streams, 1);
    let firsts = streams.iter().map(|(_, stream)| stream.report().pods).collect::<Vec<_>>();

    let steps = [
        (web(cluster, &["pod-a-2", "pod-b-1"]), other(cluster, EndpointState::Ready)),
        (web(cluster, &["pod-a-2"]), other(cluster, EndpointState::Draining)),
        (
            web(cluster, &["pod-a-2", "pod-b-2", "pod-a-1"]).node_port(NODE_PORT + 1),
            other(cluster, EndpointState::Draining),
        ),
    ];
    for (web, other) in steps {
        deployment.manifests().apply(&other);
        deployment.apply(&web);
        wait_for_echoes(streams.iter().chain(&others), 3);
    }
    let mut stayed = 0;
    for ((what, stream), first) in streams.into_iter().zip(firsts) {
        if first.contains_key("pod-a-2") {
            stayed += 1;
            assert_stayed(&what, &stream.finish());
        }
    }
    assert!(stayed > 0, "no flow started with pod-a-2");
    others.into_iter().for_each(|(what, stream)| assert_stayed(&what, &stream.finish()));
}

/// Flows keep an endpoint that gets no new ones for as long as it serves: it terminates while another one is ready, or
/// hints leave it to another node.
pub fn flows_stay_while_their_endpoint_serves(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-b-1"])]);
    let cluster = deployment.cluster();
    let [serving, ready] = ["pod-b-1", "pod-a-1"].map(|name| Endpoint::of(cluster.pod(name)));
    let steps = [
        ("terminating", vec![serving.clone().state(EndpointState::Draining), ready.clone()]),
        ("hint for another node", vec![serving.clone().for_nodes(&["node-b"]), ready.clone().for_nodes(&["node-a"])]),
    ];
    let last = web(cluster, &[]).endpoints([serving.state(EndpointState::Terminating), ready]);
    let services = steps.map(|(what, endpoints)| (what, web(cluster, &[]).endpoints(endpoints)));
    let flows = streams(cluster);
    wait_for(&flows, "pod-b-1");
    for (what, service) in services {
        deployment.apply(&service);
        // New flows go to the other one.
        wait_for(&streams(deployment.cluster()), "pod-a-1");
        wait_for_echoes(&flows, 3);
        for (flow, stream) in &flows {
            // A guest may need longer than the timeout of a message.
            let StreamReport { pods, resets, lost, .. } = &stream.report();
            let is_clean = pods.len() == 1 && *resets == 0 && (*lost == 0 || uml::is_guest());
            assert!(is_clean, "{what}, {flow}: {:?}", stream.report());
        }
    }
    deployment.apply(&last);
    wait_for(&flows, "pod-a-1");
}

// === the services ===

/// A service with each kind of VIP.
fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).external_ip(plan::external_ip(1));
    let service = service.load_balancer_ip(plan::load_balancer_ip(1)).port_all(PORT, 8080).node_port(NODE_PORT);
    service.pods(pods.iter().map(|name| cluster.pod(name)))
}

/// A service with one endpoint.
fn other(cluster: &Cluster, state: EndpointState) -> Service {
    let service = Service::new("other").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080);
    service.endpoints([Endpoint::of(cluster.pod("pod-b-1")).state(state)])
}

// === the clients ===

/// A client at each kind of VIP, in both families.
fn streams(cluster: &Cluster) -> Vec<(String, Stream)> {
    let (pod, node) = (cluster.pod("pod-a-3").client(), cluster.node('a'));
    let targets = [
        ("pod to cluster IP", &pod, plan::cluster_ip(1), PORT),
        ("node to cluster IP", &node.client(), plan::cluster_ip(1), PORT),
        ("outside to external IP", &cluster.client(), plan::external_ip(1), PORT),
        ("pod to load-balancer IP", &pod, plan::load_balancer_ip(1), PORT),
        ("outside to node port", &cluster.client(), node.address, NODE_PORT),
        ("pod to node port", &pod, node.address, NODE_PORT),
    ];
    let open = |(what, client, address, port): (&str, &Client, plan::DualStack, u16)| {
        let client = client.clone().with_deadline(patience(SHORT));
        IpFamily::ALL
            .map(|family| (format!("{what}, {family}"), stream(&client, SocketAddr::new(address.ip(family), port))))
    };
    targets.into_iter().flat_map(open).collect()
}

#[track_caller]
fn stream(client: &Client, to: SocketAddr) -> Stream {
    let interval = if uml::is_guest() { LONG_INTERVAL } else { INTERVAL };
    client.stream(Protocol::Udp, to, interval).expect("a socket")
}

/// Waits until this pod answers, three times in a row.
#[track_caller]
fn wait_for(streams: &[(String, Stream)], pod: &str) {
    for (what, stream) in streams {
        let answered = |report: &StreamReport| report.pods.get(pod).is_some_and(|answers| *answers >= 3);
        assert!(stream.wait_until(TIMEOUT, answered), "{what}, waiting for {pod}: {:?}", stream.report());
    }

    let befores: Vec<_> = streams.iter().map(|(_, stream)| stream.report()).collect();
    wait_for_echoes(streams, 2);
    for ((what, stream), before) in streams.iter().zip(befores) {
        let after = stream.report();
        assert!(
            after.pods.iter().all(|(name, answers)| name == pod || before.pods.get(name) == Some(answers)),
            "{what}, from {pod} on: {after:?}"
        );
    }
}

/// Waits until each of these has echoed so many more messages, which are counted from the same moment on.
#[track_caller]
fn wait_for_echoes<'a>(streams: impl IntoIterator<Item = &'a (String, Stream)>, count: u64) {
    let streams: Vec<_> = streams.into_iter().collect();
    let wanted: Vec<_> = streams.iter().map(|(_, stream)| stream.report().echoed + count).collect();
    for ((what, stream), wanted) in streams.into_iter().zip(wanted) {
        let are_echoed = stream.wait_until(TIMEOUT, |report| report.echoed >= wanted);
        assert!(are_echoed, "{what}: {:?}", stream.report());
    }
}

/// Waits until three messages in a row of each of these were not answered.
#[track_caller]
fn assert_unanswered(streams: &[(String, Stream)]) {
    let firsts: Vec<_> = streams.iter().map(|(_, stream)| stream.report()).collect();
    for ((what, stream), mut first) in streams.iter().zip(firsts) {
        let unanswered = |report: &StreamReport| {
            if report.echoed > first.echoed {
                first = report.clone();
            }
            report.lost + report.resets >= first.lost + first.resets + 3
        };
        assert!(stream.wait_until(TIMEOUT, unanswered), "{what}: {:?}", stream.report());
    }
}

#[track_caller]
fn assert_stayed(what: &str, report: &StreamReport) {
    assert!(report.is_clean() && report.pods.len() == 1, "{what}: {report:?}");
}

/// Gives node-a a second address, and adds a route to it outside.
fn add_second_address(cluster: &Cluster) -> [IpAddr; 2] {
    let node = cluster.node('a');
    let [v4, v6] = SECOND;
    let plan::DualStack { v4: via4, v6: via6 } = node.address;
    cluster.outside().ip(&format!("route add {v4} via {via4}\nroute add {v6} via {via6}\n"));
    let addresses = SECOND.map(|text| text.parse::<IpAddr>().expect("an address"));
    // The kernel does not choose them as a source, because no other host has a route to them.
    addresses.iter().for_each(|address| node.netns.add_address(*address, "eth0", "preferred_lft 0"));
    addresses
}
