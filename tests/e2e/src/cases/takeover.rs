//! The takeover from kube-proxy on a running node: Fairlead's rules are added beside kube-proxy's, which are then
//! removed. No connection breaks, no new one fails, and rules of other programs are kept.

mod rules;

use std::{net::SocketAddr, sync::mpsc, thread, time::Duration};

use nix::sys::signal::Signal;

use super::expect::assert_pods;
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT, fairlead},
    manifests::Service,
    netns::Netns,
    plan::{self, IpFamily},
    traffic::BackgroundTraffic,
    wire::Protocol,
};
use rules::Mode;

const PORT: u16 = 80;
const PODS: [&str; 2] = ["pod-b-1", "pod-b-2"];
const INTERVAL: Duration = Duration::from_millis(15);
const ATTEMPTS: u64 = 20;

/// From mode iptables, variant nft.
pub fn from_iptables_nft(backend: Backend) {
    run(backend, Mode::IptablesNft);
}

/// From mode iptables, variant legacy.
pub fn from_iptables_legacy(backend: Backend) {
    run(backend, Mode::IptablesLegacy);
}

/// From mode nftables.
pub fn from_nftables(backend: Backend) {
    run(backend, Mode::Nftables);
}

/// The way back: kube-proxy runs in the same mode, and then the rules of the backend are removed. The iptables modes of
/// both have chains of the same names, which stay.
pub fn back_to_kube_proxy(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    let cluster = deployment.cluster();
    let node = cluster.node('a').netns.clone();
    let mode = Mode::like(backend);
    let traffic = start_traffic(cluster);
    let pods = PODS.map(|name| cluster.pod(name));
    thread::scope(|scope| {
        let (ended, is_ended) = mpsc::channel::<()>();
        mode.load_kube_proxys(&node, &pods);
        scope.spawn(|| mode.keep_kube_proxys(&node, &pods, is_ended));
        let state = deployment.state(cluster.node('a'));
        traffic.wait(ATTEMPTS, TIMEOUT);
        deployment.backend(cluster.node('a')).terminate();
        let state = state.to_str().expect("a path in UTF-8");
        let (succeeded, output) = cleanup(&node, &["--backend", backend.name(), "--state-dir", state]);
        assert!(succeeded, "{output}");
        traffic.wait(ATTEMPTS, TIMEOUT);
        drop(ended);
    });
    traffic.finish();
    let left = backend.rules(&node);
    let is_our_hook = |line: &str| line.starts_with("-A OUTPUT ") && line.ends_with("-j KUBE-EXTERNAL-SERVICES");
    let is_ours = |line: &&String| line.contains("FAIRLEAD-") || line.ends_with(" fairlead {") || is_our_hook(line);
    assert_eq!(left.iter().find(is_ours), None);
    assert!(left.iter().any(|line| line.contains("KUBE-SVC-") || line.contains("kube-proxy")), "{left:#?}");
}

#[track_caller]
fn run(backend: Backend, mode: Mode) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    let node = deployment.cluster().node('a').netns.clone();
    // The node then has the rules of kube-proxy only.
    deployment.stop_backends(Signal::SIGKILL);
    let state = deployment.state(deployment.cluster().node('a'));
    let state = state.to_str().expect("a path in UTF-8");
    cleanup(&node, &["--backend", backend.name(), "--state-dir", state]);
    mode.load_others(&node);
    let others = mode.list(&node);
    mode.load_kube_proxys(&node, &PODS.map(|name| deployment.cluster().pod(name)));

    let traffic = start_traffic(deployment.cluster());
    traffic.wait(ATTEMPTS, TIMEOUT);
    let before = mode.list(&node);
    let (succeeded, output) = cleanup(&node, &["--of", "kube-proxy"]);
    assert!(!succeeded && output.contains("start a backend"), "no backend has programmed the node: {output}");
    assert_eq!(mode.list(&node), before);

    deployment.start_backends();
    let programmed = mode.list(&node);
    let (_, announced) = cleanup(&node, &["--of", "kube-proxy", "--dry-run"]);
    assert!(announced.starts_with("WOULD REMOVE FROM") && !announced.contains("note:"), "{announced}");
    assert_eq!(mode.list(&node), programmed);
    traffic.wait(ATTEMPTS, TIMEOUT);
    let (succeeded, output) = cleanup(&node, &["--of", "kube-proxy"]);
    assert!(succeeded, "{output}");
    assert_eq!(table(&output), table(&announced));
    traffic.wait(ATTEMPTS, TIMEOUT);
    traffic.finish();
    let left = mode.list(&node);
    if mode.is_kept_by(backend) {
        // The backend has adopted kube-proxy's chains, so the rules are the same as on a node without kube-proxy.
        deployment.stop_backends(Signal::SIGKILL);
        cleanup(&node, &["--backend", backend.name(), "--state-dir", state]);
        assert_eq!(mode.list(&node), others);
        deployment.start_backends();
        assert_eq!(sorted(mode.list(&node)), sorted(left));
    } else {
        assert_eq!((programmed, left), (before, others));
    }

    let client = deployment.cluster().pod("pod-a-3").client();
    for family in IpFamily::ALL {
        Protocol::ALL.into_iter().for_each(|protocol| assert_pods(&client, protocol, vip(family), &PODS));
    }
    let (succeeded, output) = cleanup(&node, &["--of", "kube-proxy"]);
    assert!(succeeded && output == "nothing to remove\n", "{output}");
}

/// Runs `fairlead cleanup` on a node; returns whether it succeeded, and its output.
#[track_caller]
fn cleanup(node: &Netns, arguments: &[&str]) -> (bool, String) {
    let mut command = fairlead();
    command.arg("cleanup").args(arguments);
    let output = node.finish(&mut command);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8 output"))
}

/// The order of jumps in a chain depends on which program wrote first.
fn sorted(mut rules: Vec<String>) -> Vec<String> {
    rules.sort();
    rules
}

/// The rows of a report, without its header.
fn table(report: &str) -> Vec<Vec<&str>> {
    report.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

/// Starts long-lived and new connections through the cluster IP.
#[track_caller]
fn start_traffic(cluster: &Cluster) -> BackgroundTraffic {
    let clients = [cluster.pod("pod-a-3").client(), cluster.node('a').client()];
    let mut traffic = BackgroundTraffic::default();
    for client in &clients {
        for family in IpFamily::ALL {
            traffic.churns.push(client.churn(Protocol::Tcp, vip(family), 50, TIMEOUT * 3));
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                traffic.streams.push(client.stream(protocol, vip(family), INTERVAL).expect("a connection"));
            }
        }
    }
    traffic.that_fits_a_guest()
}

fn web(cluster: &Cluster) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods(PODS.map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}
