//! Instances of Fairlead on one node after each other, with other settings: nothing is interrupted, and nothing of the
//! earlier one stays. Two at the same time are refused.

use std::{net::SocketAddr, process::Command, time::Duration};

use nix::sys::signal::Signal;

use super::expect::assert_pods;
use crate::{
    cluster::{Cluster, Node},
    deployment::{Backend, Deployment, TIMEOUT, fairlead},
    manifests::Service,
    plan::{self, IpFamily},
    process::Process,
    traffic::BackgroundTraffic,
    wait::eventually,
    wire::Protocol,
};

const PORT: u16 = 80;
const PODS: [&str; 2] = ["pod-a-1", "pod-b-1"];
const INTERVAL: Duration = Duration::from_millis(15);
const ATTEMPTS: u64 = 40;
const READY: &str = "ready: node state programmed";

/// A second instance in one network namespace ends with an error that names the first one, which continues.
pub fn second_instance_is_refused(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &PODS)]);
    for other in [backend, if backend == Backend::Nft { Backend::IptablesNft } else { Backend::Nft }] {
        let before = backend.rules(&deployment.cluster().node('a').netns);
        let mut command = follow(&deployment, other, deployment.cluster().node('a'));
        command.args(["--instance-timeout", "1s"]);
        let node = deployment.cluster().node('a');
        let refused = Process::spawn(&node.netns, command, &deployment.path("refused.log"));
        let holder =
            format!("another instance of Fairlead runs in this network namespace: backend {} of", backend.name());
        refused.wait_for_line(&holder, 0, TIMEOUT);
        let status = refused.wait(TIMEOUT).expect("its end");
        assert_eq!(status.code(), Some(2), "{}", refused.log().display());
        assert_eq!(backend.rules(&node.netns), before);
        let changed = web(deployment.cluster(), &["pod-b-2"]);
        deployment.apply(&changed);
        assert_served(deployment.cluster(), &["pod-b-2"]);
    }
}

/// During an update the new instance waits until the old one has ended, and then takes over.
pub fn second_instance_waits_for_the_first_to_end(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &PODS)]);
    let traffic = start_traffic(deployment.cluster());
    let spawn = |node: &Node| {
        let log = deployment.path(&format!("second-{}.log", node.name));
        Process::spawn(&node.netns, follow(&deployment, backend, node), &log)
    };
    let second: Vec<_> = deployment.cluster().nodes().iter().map(spawn).collect();
    for process in &second {
        process.wait_for_line("another instance of Fairlead runs in this network namespace, waiting", 0, TIMEOUT);
    }
    traffic.wait(ATTEMPTS, TIMEOUT);
    deployment.stop_backends(Signal::SIGTERM);
    for process in &second {
        process.wait_for_line("writes=0", 0, TIMEOUT);
        process.wait_for_line(READY, 0, TIMEOUT);
    }
    traffic.wait(ATTEMPTS, TIMEOUT);
    traffic.finish();
}

/// `fairlead cleanup` does not remove the rules of a running backend or its state file.
pub fn cleanup_leaves_a_running_backend_alone(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &PODS)]);
    let node = deployment.cluster().node('a').netns.clone();
    let state = deployment.state(deployment.cluster().node('a'));
    // It is written after the kernel.
    eventually("the state file", TIMEOUT, || state.join("state").exists().then_some(()));
    let cleanup = |arguments: &[&str]| {
        let mut command = fairlead();
        command.arg("cleanup").args(arguments).arg("--state-dir").arg(&state);
        let output = node.finish(&mut command);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8 output");
        (output.status.code(), text)
    };
    let before = backend.rules(&node);
    let running = format!("backend {} of node node-a", backend.name());
    for arguments in [&["--backend", backend.name()][..], &["--all"]] {
        let (code, output) = cleanup(arguments);
        assert_eq!(code, Some(2), "{output}");
        assert!(output.contains("nothing was removed") && output.contains(&running), "{output}");
    }
    let other = if backend == Backend::Nft { "iptables" } else { "nftables" };
    let (code, output) = cleanup(&["--backend", other]);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("the state is kept") && output.contains(&running), "{output}");
    assert!(state.join("state").exists());
    assert_eq!(backend.rules(&node), before);

    deployment.stop_backends(Signal::SIGTERM);
    let (code, output) = cleanup(&["--all"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(!state.join("state").exists());
    assert_eq!(backend.installed(&node), [""; 0]);
}

/// Another bit for masquerading takes effect at a restart, without an interruption.
pub fn masquerade_bit_changes_at_a_restart(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &PODS)]);
    for bit in ["20", "14"] {
        let traffic = start_traffic(deployment.cluster());
        deployment.restart_backends_with(&["--masquerade-bit", bit]);
        traffic.wait(ATTEMPTS, TIMEOUT);
        traffic.finish();
        assert_served(deployment.cluster(), &PODS);
        let [old, new] = if bit == "20" { ["0x4000", "0x100000"] } else { ["0x100000", "0x4000"] };
        // As nft prints it.
        let forms =
            |mark: &str| [format!("{mark}/"), format!("0x{:08x} ", u32::from_str_radix(&mark[2..], 16).unwrap_or(0))];
        let rules = backend.rules(&deployment.cluster().node('a').netns).join(" \n");
        assert!(forms(new).iter().any(|mark| rules.contains(mark)), "no {new}: {rules}");
        assert!(!forms(old).iter().any(|mark| rules.contains(mark)), "{old} is left: {rules}");
    }
}

/// `fairlead local` takes over from a backend with a frontend, and the other way around.
pub fn split_and_local_take_over_from_each_other(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &PODS)]);
    let traffic = start_traffic(deployment.cluster());
    deployment.stop_backends(Signal::SIGTERM);
    let spawn = |node: &Node| {
        let mut command = backend.local(deployment.manifests().directory(), &node.name, &deployment.state(node));
        command.args(["--cluster-cidr", &plan::CLUSTER_CIDRS.join(",")]);
        Process::spawn(&node.netns, command, &deployment.path(&format!("local-{}.log", node.name)))
    };
    let local: Vec<_> = deployment.cluster().nodes().iter().map(spawn).collect();
    local.iter().for_each(|process| drop(process.wait_for_line(READY, 0, TIMEOUT)));
    traffic.wait(ATTEMPTS, TIMEOUT);
    local.iter().for_each(|process| assert!(process.terminate().success()));
    deployment.start_backends();
    deployment.wait_until_programmed();
    traffic.wait(ATTEMPTS, TIMEOUT);
    traffic.finish();
    let changed = web(deployment.cluster(), &["pod-b-2"]);
    deployment.apply(&changed);
    assert_served(deployment.cluster(), &["pod-b-2"]);
}

/// A backend of any mode for a node of the deployment.
fn follow(deployment: &Deployment, mode: Backend, node: &Node) -> Command {
    mode.follow(&deployment.address(), &node.name, &deployment.state(node), &cluster_cidrs())
}

fn cluster_cidrs() -> [String; 2] {
    ["--cluster-cidr".to_owned(), plan::CLUSTER_CIDRS.join(",")]
}

/// Starts long-lived and new connections through the cluster IP, from a pod, a node and outside.
#[track_caller]
fn start_traffic(cluster: &Cluster) -> BackgroundTraffic {
    let clients = [cluster.pod("pod-a-3").client(), cluster.node('b').client(), cluster.client()];
    let mut traffic = BackgroundTraffic::default();
    for client in &clients {
        for family in IpFamily::ALL {
            traffic.churns.push(client.churn(Protocol::Tcp, vip(family), 30, TIMEOUT * 3));
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                traffic.streams.push(client.stream(protocol, vip(family), INTERVAL).expect("a connection"));
            }
        }
    }
    let traffic = traffic.that_fits_a_guest();
    traffic.wait(ATTEMPTS, TIMEOUT);
    traffic
}

#[track_caller]
fn assert_served(cluster: &Cluster, pods: &[&str]) {
    let client = cluster.pod("pod-a-3").client();
    for family in IpFamily::ALL {
        Protocol::ALL.into_iter().for_each(|protocol| assert_pods(&client, protocol, vip(family), pods));
    }
}

fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods(pods.iter().map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}
