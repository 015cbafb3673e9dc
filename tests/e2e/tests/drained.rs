//! `fairlead drained` in a pod, as `preStop` runs it, against a real backend.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Command, Output},
    time::{Duration, Instant},
};

use e2e::{
    Backend, Cluster, Deployment, Netns, Process, eventually, fairlead, http_get,
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, IpFamily},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const WAITED: &str = r#"fairlead_backend_drain_duration_seconds_count{result="timeout"}"#;
/// The pod that ends.
const POD: &str = "pod-a-1";

/// The program, as an init container has installed it.
struct Installed {
    directory: tempfile::TempDir,
}

impl Installed {
    fn new(cluster: &Cluster) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let installed = Self { directory };
        let output = cluster.pod(POD).netns.finish(fairlead().args(["drained", "--install"]).arg(installed.program()));
        assert!(output.status.success(), "{output:?}");
        installed
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("drained")
    }

    /// The command, with the variables of the pod.
    fn command(&self, cluster: &Cluster, family: IpFamily, timeout: &str) -> Command {
        let mut command = Command::new(self.program());
        let addresses = IpFamily::ALL.map(|family| cluster.pod(POD).address.ip(family).to_string());
        command.env("HOST_IP", cluster.node('a').address.ip(family).to_string()).env("POD_IPS", addresses.join(","));
        command.args(["drained", "--timeout", timeout]);
        command
    }

    fn run(&self, cluster: &Cluster, family: IpFamily, timeout: &str) -> (Option<i32>, String) {
        finish(&cluster.pod(POD).netns, &mut self.command(cluster, family, timeout))
    }

    /// The command that also waits for the connections to the pod's port.
    fn command_for_connections(&self, cluster: &Cluster, family: IpFamily, timeout: &str) -> Command {
        let mut command = self.command(cluster, family, timeout);
        command.args(["--connections", "8080,8443"]);
        command
    }

    /// Runs the command until it says that the pod is in use. A slow node may not have heard of its frontend within a
    /// second.
    fn expect_in_use(&self, cluster: &Cluster, family: IpFamily) {
        eventually("the node knows that the pod is in use", TIMEOUT, || {
            let (code, text) = self.run(cluster, family, "1s");
            assert!(code.is_some_and(|code| code > 0), "{code:?}: {text}");
            (code == Some(1) && text.contains("may get new connections")).then_some(())
        });
    }
}

/// The exit code and the output.
fn finish(netns: &Netns, command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = netns.finish(command);
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

fn web(cluster: &Cluster, state: EndpointState) -> Service {
    let pods = [(POD, state), ("pod-b-1", EndpointState::Ready)];
    let endpoints = pods.map(|(name, state)| Endpoint::of(cluster.pod(name)).state(state));
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).endpoints(endpoints)
}

#[test]
fn exit_code_says_whether_the_pod_is_drained() {
    let mut deployment = Deployment::start(Backend::Nft, |cluster| vec![web(cluster, EndpointState::Ready)]);
    let installed = Installed::new(deployment.cluster());
    for family in IpFamily::ALL {
        let ready = web(deployment.cluster(), EndpointState::Ready);
        deployment.apply(&ready);
        installed.expect_in_use(deployment.cluster(), family);
        let draining = web(deployment.cluster(), EndpointState::Draining);
        deployment.apply(&draining);
        let (code, text) = installed.run(deployment.cluster(), family, "5m");
        assert!(code == Some(0) && text.starts_with("drained"), "{code:?}: {text}");
    }
    let unused = web(deployment.cluster(), EndpointState::Ready).endpoints([]);
    deployment.apply(&unused);
    let (code, text) = installed.run(deployment.cluster(), IpFamily::V4, "5m");
    assert!(code == Some(0) && text.contains("no EndpointSlice"), "{code:?}: {text}");
    let (code, text) = installed.run(deployment.cluster(), IpFamily::V4, "1h");
    assert!(code == Some(2) && text.contains("--timeout"), "{code:?}: {text}");
}

#[test]
fn command_waits_for_a_backend_that_restarts() {
    let mut deployment = Deployment::start(Backend::Nft, |cluster| vec![web(cluster, EndpointState::Draining)]);
    let installed = Installed::new(deployment.cluster());
    deployment.stop_backends(Signal::SIGTERM);
    let (code, text) = installed.run(deployment.cluster(), IpFamily::V4, "1s");
    assert!(code == Some(2) && text.contains("cannot connect"), "{code:?}: {text}");

    let log = installed.directory.path().join("log");
    let command = installed.command(deployment.cluster(), IpFamily::V4, "5m");
    let waiting = Process::spawn(&deployment.cluster().pod(POD).netns, command, &log);
    deployment.start_backends();
    let status = waiting.wait(TIMEOUT).expect("it ends");
    assert!(status.success(), "{status}: {:?}", waiting.lines_since(0));
}

#[test]
fn command_waits_for_connections_that_are_open() {
    let mut deployment = Deployment::start(Backend::Nft, |cluster| {
        vec![web(cluster, EndpointState::Ready).endpoints([Endpoint::of(cluster.pod(POD))])]
    });
    let installed = Installed::new(deployment.cluster());
    let client = deployment.cluster().pod("pod-b-2").netns.clone();
    let open = IpFamily::ALL.map(|family| {
        let vip = SocketAddr::new(plan::cluster_ip(1).ip(family), 80);
        client.run(|| TcpStream::connect(vip)).expect("a connection")
    });
    let draining = web(deployment.cluster(), EndpointState::Draining);
    deployment.apply(&draining);
    let cluster = deployment.cluster();
    let pod = &cluster.pod(POD).netns;

    let (code, text, waited) = eventually("the pod is drained", TIMEOUT, || {
        let start = Instant::now();
        let (code, text) = finish(pod, &mut installed.command_for_connections(cluster, IpFamily::V4, "3s"));
        text.starts_with("drained").then(|| (code, text, start.elapsed()))
    });
    assert_eq!(code, Some(1), "{text}");
    assert!(text.ends_with("\n2 connections are still open: 2 to port 8080\n"), "{text}");
    assert!(waited >= Duration::from_secs(3), "{waited:?}");

    let log = installed.directory.path().join("log");
    let waiting = Process::spawn(pod, installed.command_for_connections(cluster, IpFamily::V6, "5m"), &log);
    waiting.wait_for_line("drained", 0, TIMEOUT);
    drop(open);
    let status = waiting.wait(TIMEOUT).expect("it ends");
    assert!(status.success(), "{status}: {:?}", waiting.lines_since(0));
    waiting.wait_for_line("no connection is left", 0, TIMEOUT);
}

#[test]
fn connections_of_a_node_are_not_waited_for() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let installed = Installed::new(&cluster);
    for family in IpFamily::ALL {
        let mut command = installed.command_for_connections(&cluster, family, "5m");
        let (code, text) = finish(&cluster.node('a').netns, &mut command);
        assert!(code == Some(2) && text.contains("a pod on the host network"), "{code:?}: {text}");
    }
}

/// It is the last pod of its Service, which uses it although it ends.
#[test]
fn status_lists_a_pod_that_is_not_drained_and_metrics_count_its_hook() {
    let deployment = Deployment::start(Backend::Nft, |cluster| {
        let ends = Endpoint::of(cluster.pod(POD)).state(EndpointState::Draining);
        vec![Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).endpoints([ends])]
    });
    let installed = Installed::new(deployment.cluster());
    let status = |output: &str| {
        let mut command = fairlead();
        command.args(["status", "-o", output, "--frontend", &deployment.address()]);
        String::from_utf8_lossy(&deployment.cluster().outside().finish(&mut command).stdout).into_owned()
    };
    let address = deployment.cluster().pod(POD).address.ip(IpFamily::V4).to_string();
    // Slices that name no pod say nothing of its other address, which is listed apart.
    let has_address = |drain: &&Value| drain["addresses"] == json!([address]);
    let (drain, table) = eventually("the pod is listed", TIMEOUT, || {
        let document: Value = serde_json::from_str(&status("json")).expect("JSON");
        let drain = document["draining_pods"].as_array()?.iter().find(has_address)?.clone();
        Some((drain, status("table"))).filter(|(_, table)| table.contains("DRAINING POD"))
    });
    assert_eq!((&drain["state"], &drain["services"]), (&"in_use".into(), &json!(["default/web"])), "{drain}");
    assert!(table.contains(&address), "{table}");

    installed.expect_in_use(deployment.cluster(), IpFamily::V4);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_249));
    let metrics = http_get(&deployment.cluster().node('a').netns, to, "/metrics", TIMEOUT).expect("metrics").body;
    let waited = metrics.lines().find(|line| line.starts_with(WAITED)).expect("a histogram");
    assert!(waited.ends_with(" 1"), "{waited}");
    assert!(metrics.contains("fairlead_backend_drains_waiting 0\n"), "{metrics}");
}
