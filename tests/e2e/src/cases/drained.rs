//! A pod that ends asks its node whether any node still sends new connections to it.

use std::{io::ErrorKind, net::SocketAddr, thread, time::Duration};

use super::expect::assert_pods;
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment},
    http::{HttpResponse, http_get},
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, IpFamily},
    wire::Protocol,
};

use EndpointState::{Draining, NotReady, Ready};

const PORT: u16 = 80;
/// The default port of `--healthz-bind-address`.
const HEALTH_PORT: u16 = 10_256;
/// The pod that ends.
const POD: &str = "pod-a-1";

/// A pod in use is told so after its timeout. When its slice says that it ends, the answer comes at once, and from then
/// on no new connection arrives, from any node.
pub fn pod_is_drained_when_all_nodes_have_programmed_its_end(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Ready, Ready])]);
    for family in IpFamily::ALL {
        let ready = web(deployment.cluster(), [Ready, Ready]);
        deployment.apply(&ready);
        let early = ask(deployment.cluster(), POD, family, 1);
        assert_eq!(early.status, 504, "{early:?}");
        assert!(early.body.contains("may get new connections") && !early.body.contains("web"), "{early:?}");

        let ends = web(deployment.cluster(), [Draining, Ready]);
        let cluster = deployment.cluster();
        let answered = thread::scope(|scope| {
            let answered = scope.spawn(|| ask(cluster, POD, family, 60));
            deployment.manifests().apply(&ends);
            answered.join().expect("an answer")
        });
        assert_eq!(answered.status, 200, "{answered:?}");
        for node in cluster.nodes() {
            let to = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
            assert_pods(&node.pod(3).client(), Protocol::Tcp, to, &["pod-b-1"]);
        }
    }
}

/// The last pod of a Service gets new connections until there is another one.
pub fn last_pod_is_not_drained(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Draining, NotReady])]);
    assert_eq!(ask(deployment.cluster(), POD, IpFamily::V4, 1).status, 504);
    let replaced = web(deployment.cluster(), [Draining, Ready]);
    deployment.apply(&replaced);
    assert_eq!(ask(deployment.cluster(), POD, IpFamily::V4, 60).status, 200);
    // A pod of no Service, and a stranger that asks about a pod.
    assert_eq!(ask(deployment.cluster(), "pod-a-2", IpFamily::V4, 60).status, 404);
    let cluster = deployment.cluster();
    let (node, pod) = (cluster.node('a'), cluster.pod(POD));
    let path = format!("/drained?address={}", pod.address.ip(IpFamily::V4));
    let to = SocketAddr::new(node.address.ip(IpFamily::V4), HEALTH_PORT);
    let stranger = http_get(&cluster.pod("pod-a-2").netns, to, &path, Duration::from_secs(10)).expect("an answer");
    assert_eq!(stranger.status, 400, "{stranger:?}");
}

/// `preStop: {httpGet: {path: /drained, port: 10256}}`: the kubelet connects to the pod's own address, from the node.
pub fn kubelet_asks_for_a_pod_by_its_address(backend: Backend) {
    let builder = Deployment::builder(backend).without_cluster_cidr();
    let mut deployment = builder.start(|cluster| vec![web(cluster, [Ready, Ready])]);
    let detectors: [&[&str]; 3] = [
        // The pod CIDRs of the Node.
        &[],
        &["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "pod-a-"],
        &["--detect-local-mode", "ClusterCIDR", "--cluster-cidr", &plan::CLUSTER_CIDRS.join(",")],
    ];
    for detector in detectors {
        if !detector.is_empty() {
            deployment.restart_backends_with(detector);
        }
        for family in IpFamily::ALL {
            let early = ask_as_kubelet(deployment.cluster(), family, 3);
            assert_eq!(early.status, 504, "{detector:?}: {early:?}");
            assert!(early.body.contains("may get new connections"), "{early:?}");
        }
    }
    let ends = web(deployment.cluster(), [Draining, Ready]);
    deployment.apply(&ends);
    let cluster = deployment.cluster();
    for family in IpFamily::ALL {
        let answered = ask_as_kubelet(cluster, family, 60);
        assert_eq!(answered.status, 200, "{answered:?}");
        // The port of the pod is its own for all others.
        let to = SocketAddr::new(cluster.pod(POD).address.ip(family), HEALTH_PORT);
        let refused = http_get(&cluster.pod("pod-a-2").netns, to, "/drained", Duration::from_secs(10));
        assert!(refused.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused), "{refused:?}");
    }
}

fn web(cluster: &Cluster, states: [EndpointState; 2]) -> Service {
    let pods = [POD, "pod-b-1"].map(|name| cluster.pod(name));
    let endpoints = pods.into_iter().zip(states).map(|(pod, state)| Endpoint::of(pod).state(state));
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080).endpoints(endpoints)
}

/// Asks as the kubelet of the pod's node does.
fn ask_as_kubelet(cluster: &Cluster, family: IpFamily, seconds: u64) -> HttpResponse {
    let to = SocketAddr::new(cluster.pod(POD).address.ip(family), HEALTH_PORT);
    let path = format!("/drained?timeout={seconds}s");
    http_get(&cluster.node('a').netns, to, &path, Duration::from_secs(seconds + 10)).expect("an answer")
}

/// Asks the pod's node, as the pod does.
fn ask(cluster: &Cluster, pod: &str, family: IpFamily, seconds: u64) -> HttpResponse {
    let to = SocketAddr::new(cluster.node('a').address.ip(family), HEALTH_PORT);
    let path = format!("/drained?timeout={seconds}s");
    http_get(&cluster.pod(pod).netns, to, &path, Duration::from_secs(seconds + 10)).expect("an answer")
}
