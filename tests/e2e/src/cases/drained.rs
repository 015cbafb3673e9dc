//! A pod that ends asks its node whether any node still sends new connections to it.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::signal::Signal;

use super::expect::assert_pods;
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment},
    http::{HttpResponse, http_get},
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, DualStack, IpFamily},
    wait::eventually,
    wire::Protocol,
};

use EndpointState::{Draining, NotReady, Ready};

const PORT: u16 = 80;
/// The defaults of `--drained-port` and `--healthz`.
const DRAINED_PORT: u16 = 24_256;
const HEALTH_PORT: u16 = 10_256;
/// The default of `--metrics`.
const METRICS_PORT: u16 = 10_249;
/// The pod that ends.
const POD: &str = "pod-a-1";
/// The timeout in seconds of a request whose answer comes when it is over.
const SHORT_TIMEOUT: u64 = 1;
/// The same of a request that is answered before: the longest that a backend accepts, because a guest may be slow.
const LONG_TIMEOUT: u64 = 300;

/// A pod in use is told so after its timeout. When its slice says that it ends, the answer comes at once, and from then
/// on no new connection arrives, from any node.
pub fn pod_is_drained_when_all_nodes_have_programmed_its_end(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Ready, Ready])]);
    for family in IpFamily::ALL {
        let ready = web(deployment.cluster(), [Ready, Ready]);
        deployment.apply(&ready);
        let early = expect_in_use(|| ask(deployment.cluster(), POD, family, SHORT_TIMEOUT));
        assert!(!early.body.contains("web"), "{early:?}");

        let ends = web(deployment.cluster(), [Draining, Ready]);
        let cluster = deployment.cluster();
        let answered = thread::scope(|scope| {
            let answered = scope.spawn(|| ask(cluster, POD, family, LONG_TIMEOUT));
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

/// `preStop: {httpGet: {path: /drained, port: 24256}}`: the kubelet connects to the pod's own address, from the node.
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
            expect_in_use(|| {
                let early = ask_as_kubelet(deployment.cluster(), family, DRAINED_PORT, SHORT_TIMEOUT);
                early.unwrap_or_else(|error| panic!("{detector:?}: {error}"))
            });
        }
    }
    let ends = web(deployment.cluster(), [Draining, Ready]);
    deployment.apply(&ends);
    let cluster = deployment.cluster();
    for family in IpFamily::ALL {
        let answered = ask_as_kubelet(cluster, family, DRAINED_PORT, LONG_TIMEOUT).expect("an answer");
        assert_eq!(answered.status, 200, "{answered:?}");
        // The port of the pod is its own for all others, and its other ports are for the node, too.
        let to = SocketAddr::new(cluster.pod(POD).address.ip(family), DRAINED_PORT);
        assert_refused(&http_get(&cluster.pod("pod-a-2").netns, to, "/drained", Duration::from_secs(10)));
        assert_refused(&ask_as_kubelet(cluster, family, HEALTH_PORT, SHORT_TIMEOUT));
    }
}

/// A hook that was written when the port was that of health checks: answered on request, at either port, and logged.
pub fn kubelet_asks_at_the_port_of_health_checks(backend: Backend) {
    let builder = Deployment::builder(backend).argument("--drained-at-healthz");
    let deployment = builder.start(|cluster| vec![web(cluster, [Draining, Ready])]);

    for family in IpFamily::ALL {
        for port in [HEALTH_PORT, DRAINED_PORT] {
            let answered = ask_as_kubelet(deployment.cluster(), family, port, LONG_TIMEOUT).expect("an answer");
            assert_eq!(answered.status, 200, "{port}: {answered:?}");
        }
        let pod = deployment.cluster().pod(POD).address.ip(family);
        let warned = format!("pod={pod} hook=\"httpGet\"");
        let backend = deployment.backend(deployment.cluster().node('a'));
        backend.wait_for_line(&warned, 0, Duration::from_secs(10));
    }
}

/// A hook that waits is sent to the next backend, and while there is none no reset ends it: the next one answers.
pub fn hook_waits_for_the_next_backend(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Draining, NotReady])]);
    let waiting = IpFamily::ALL.map(|family| hook(deployment.cluster(), family, &drained_path(LONG_TIMEOUT)));
    eventually("the hooks wait", Duration::from_secs(60), || (waiting_pods(&deployment) == 2).then_some(()));
    deployment.stop_backends(Signal::SIGTERM);

    let redirected = IpFamily::ALL.into_iter().zip(waiting).map(|(family, waiting)| {
        let path = location(&answer(waiting));
        hook(deployment.cluster(), family, &path)
    });
    let redirected: Vec<_> = redirected.collect();
    thread::sleep(Duration::from_secs(1));
    assert!(redirected.iter().all(|hook| !hook.is_finished()), "a hook was refused");
    // Load balancers want to know at once.
    let node = deployment.cluster().node('a');
    let health = SocketAddr::new(node.address.ip(IpFamily::V4), HEALTH_PORT);
    assert_refused(&http_get(&node.netns, health, "/healthz", Duration::from_secs(10)));
    deployment.start_backends();
    deployment.manifests().apply(&web(deployment.cluster(), [Draining, Ready]));

    for hook in redirected {
        let answered = answer(hook);
        assert_eq!(answered.status, 200, "{answered:?}");
    }
}

/// All pods of a node end at once, while the probes of a pod that does not end ask about that, and about one that ends
/// (`httpGet.host`).
pub fn hooks_of_many_pods_are_answered_beside_probes_of_others(backend: Backend) {
    const PODS: u8 = 110;
    const PROBES: usize = 200;
    let addresses: Vec<_> = (0..PODS).map(|pod| plan::pod(1, 100 + pod)).collect();
    let many = |cluster: &Cluster, state| {
        let pods = addresses.iter().map(|address| Endpoint::at(*address, cluster.node('a')).state(state));
        let service = Service::new("many").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080);
        service.endpoints(pods.chain([Endpoint::of(cluster.pod("pod-b-1"))]))
    };
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, [Ready, Ready]), many(cluster, Ready)]);
    let cluster = deployment.cluster();
    let ask = |address: DualStack| hook_of(cluster, address.ip(IpFamily::V4), &drained_path(LONG_TIMEOUT));
    let asked = (0..PROBES).map(|probe| if probe % 2 == 0 { cluster.pod(POD).address } else { addresses[0] });

    let probes: Vec<_> = asked.map(ask).collect();
    let hooks: Vec<_> = addresses.iter().copied().map(ask).collect();
    eventually("all hooks wait", Duration::from_secs(60), || {
        (waiting_pods(&deployment) == usize::from(PODS) + 1).then_some(())
    });
    assert!(hooks.iter().chain(&probes).all(|hook| !hook.is_finished()), "a hook was refused");

    let ends = many(deployment.cluster(), Draining);
    deployment.apply(&ends);
    for hook in hooks {
        let answered = answer(hook);
        assert_eq!(answered.status, 200, "{answered:?}");
    }
    let mut about_itself = probes.iter().step_by(2);
    assert!(about_itself.all(|probe| !probe.is_finished()), "a pod in use is not drained");
}

type Hook = JoinHandle<io::Result<HttpResponse>>;

/// A request of the kubelet, in a thread of its own.
fn hook(cluster: &Cluster, family: IpFamily, path: &str) -> Hook {
    hook_of(cluster, cluster.pod(POD).address.ip(family), path)
}

fn hook_of(cluster: &Cluster, pod: IpAddr, path: &str) -> Hook {
    let node = cluster.node('a').netns.clone();
    let to = SocketAddr::new(pod, DRAINED_PORT);
    let path = path.to_owned();
    thread::spawn(move || http_get(&node, to, &path, response_timeout(LONG_TIMEOUT)))
}

#[track_caller]
fn answer(hook: Hook) -> HttpResponse {
    hook.join().expect("no panic").expect("an answer")
}

/// Where a client has to ask again.
#[track_caller]
fn location(response: &HttpResponse) -> String {
    let location = response.head.lines().find_map(|line| line.strip_prefix("Location: "));
    assert!(response.status == 302 && location.is_some(), "{response:?}");
    location.unwrap_or_default().to_owned()
}

/// How many addresses of pods the backend of their node has waiters for.
fn waiting_pods(deployment: &Deployment) -> usize {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
    let metrics = http_get(&deployment.cluster().node('a').netns, to, "/metrics", Duration::from_secs(10));
    let metrics = metrics.expect("metrics").body;
    let value = metrics.lines().find_map(|line| line.strip_prefix("fairlead_backend_drains_waiting "));
    value.expect("the metric").parse().expect("a number")
}

#[track_caller]
fn assert_refused(response: &io::Result<HttpResponse>) {
    assert!(response.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused), "{response:?}");
}

fn web(cluster: &Cluster, states: [EndpointState; 2]) -> Service {
    let pods = [POD, "pod-b-1"].map(|name| cluster.pod(name));
    let endpoints = pods.into_iter().zip(states).map(|(pod, state)| Endpoint::of(pod).state(state));
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080).endpoints(endpoints)
}

/// Asks as the kubelet of the pod's node does.
fn ask_as_kubelet(cluster: &Cluster, family: IpFamily, port: u16, seconds: u64) -> io::Result<HttpResponse> {
    let to = SocketAddr::new(cluster.pod(POD).address.ip(family), port);
    http_get(&cluster.node('a').netns, to, &drained_path(seconds), response_timeout(seconds))
}

/// Asks the pod's node, as the pod does.
fn ask(cluster: &Cluster, pod: &str, family: IpFamily, seconds: u64) -> HttpResponse {
    let to = SocketAddr::new(cluster.node('a').address.ip(family), DRAINED_PORT);
    http_get(&cluster.pod(pod).netns, to, &drained_path(seconds), response_timeout(seconds)).expect("an answer")
}

fn drained_path(seconds: u64) -> String {
    format!("/drained?timeout={seconds}s")
}

/// How long a client waits for the answer to a request with this timeout.
fn response_timeout(seconds: u64) -> Duration {
    Duration::from_secs(seconds + 10)
}

/// Asks until the answer is that the pod is in use. A slow node may not have heard of its frontend within a timeout.
#[track_caller]
fn expect_in_use(ask: impl Fn() -> HttpResponse) -> HttpResponse {
    eventually("the node knows that the pod is in use", Duration::from_secs(60), || {
        let early = ask();
        assert_eq!(early.status, 504, "{early:?}");
        early.body.contains("may get new connections").then_some(early)
    })
}
