//! The takeover from kube-proxy on a running node: Fairlead's rules are added beside kube-proxy's, which are then
//! removed. No connection breaks, no new one fails, and rules of other programs are kept.

mod rules;

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::expect::assert_pods;
use crate::cluster::Cluster;
use crate::deployment::{Backend, Deployment, TIMEOUT, fairlead};
use crate::manifests::Service;
use crate::netns::Netns;
use crate::plan::{self, IpFamily};
use crate::traffic::{Churn, Stream};
use crate::wire::Protocol;
use rules::Mode;

const PORT: u16 = 80;
const PODS: [&str; 2] = ["pod-b-1", "pod-b-2"];
const INTERVAL: Duration = Duration::from_millis(5);

/// kube-proxy's chains are in the iptables that keeps its rules in nf_tables.
pub fn from_iptables_nft(backend: Backend) {
    run(backend, Mode::IptablesNft);
}

/// kube-proxy's chains are in the older iptables.
pub fn from_iptables_legacy(backend: Backend) {
    run(backend, Mode::IptablesLegacy);
}

/// kube-proxy has tables of its own.
pub fn from_nftables(backend: Backend) {
    run(backend, Mode::Nftables);
}

#[track_caller]
fn run(backend: Backend, mode: Mode) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    let node = deployment.cluster().node('a').netns.clone();
    // Back to a node on which only kube-proxy works.
    deployment.stop_backends(Signal::SIGKILL);
    let state = deployment.state(deployment.cluster().node('a'));
    let state = state.to_str().expect("a path in UTF-8");
    cleanup(&node, &["--backend", backend.name(), "--state-dir", state]);
    mode.load_others(&node);
    let others = mode.list(&node);
    mode.load_kube_proxys(&node, &PODS.map(|name| deployment.cluster().pod(name)));

    let traffic = Traffic::start(deployment.cluster());
    traffic.wait();
    let before = mode.list(&node);
    let (succeeded, output) = cleanup(&node, &["--of", "kube-proxy"]);
    assert!(!succeeded && output.contains("start a backend"), "no backend has programmed the node: {output}");
    assert_eq!(mode.list(&node), before);

    deployment.start_backends();
    let programmed = mode.list(&node);
    let (_, announced) = cleanup(&node, &["--of", "kube-proxy", "--dry-run"]);
    assert!(announced.starts_with("WOULD REMOVE FROM") && !announced.contains("note:"), "{announced}");
    assert_eq!(mode.list(&node), programmed);
    traffic.wait();
    let (succeeded, output) = cleanup(&node, &["--of", "kube-proxy"]);
    assert!(succeeded, "{output}");
    assert_eq!(table(&output), table(&announced));
    traffic.wait();
    traffic.finish();
    let left = mode.list(&node);
    if mode.is_kept_by(backend) {
        // It has adopted kube-proxy's chains: the rules are the same as without kube-proxy before.
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

/// Whose jump comes first depends on who came first.
fn sorted(mut rules: Vec<String>) -> Vec<String> {
    rules.sort();
    rules
}

/// What a report lists, without its header.
fn table(report: &str) -> Vec<Vec<&str>> {
    report.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

/// Connections through the cluster IP: some that last, and new ones all the time.
struct Traffic {
    streams: Vec<Stream>,
    churns: Vec<Churn>,
}

// === impl Traffic ===

impl Traffic {
    #[track_caller]
    fn start(cluster: &Cluster) -> Self {
        let clients = [cluster.pod("pod-a-3").client(), cluster.node('a').client()];
        let (mut streams, mut churns) = (Vec::new(), Vec::new());
        for client in &clients {
            for family in IpFamily::ALL {
                churns.push(client.churn(Protocol::Tcp, vip(family), 50, TIMEOUT * 3));
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    streams.push(client.stream(protocol, vip(family), INTERVAL).expect("a connection"));
                }
            }
        }
        Self { streams, churns }
    }

    /// Lets it run for a while.
    #[track_caller]
    fn wait(&self) {
        for churn in &self.churns {
            assert!(churn.wait_attempts(20, TIMEOUT), "{:?}", churn.report());
        }
        for stream in &self.streams {
            assert!(stream.wait_echoes(5, TIMEOUT), "{:?}", stream.report());
        }
    }

    /// No connection was lost or moved to another endpoint.
    #[track_caller]
    fn finish(self) {
        for churn in self.churns {
            assert_eq!(churn.finish().failures, []);
        }
        for stream in self.streams {
            let report = stream.finish();
            assert!(report.is_clean() && report.pods.len() == 1, "{report:?}");
        }
    }
}

fn web(cluster: &Cluster) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods(PODS.map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}
