//! `fairlead diff` and `fairlead endpoints` with real programs: differences of a kernel and of kube-proxy's rules, and
//! exit codes.

use std::{path::Path, time::Duration};

use e2e::{Backend, Cluster, Deployment, Process, eventually, fairlead, manifests::Service, plan};
use serde_json::Value;

/// Local traffic detection as in [`Deployment`].
const PODS: [&str; 2] = ["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48"];

/// Runs a command on node-a, and returns its exit code and output.
fn run(deployment: &Deployment, arguments: &[&str]) -> (i32, String) {
    let mut command = fairlead();
    command.args(arguments).env("FAIRLEAD_FRONTEND", deployment.address());
    let node = &deployment.cluster().node('a').netns;
    let output = node.run(|| command.output()).expect("fairlead runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&text).into_owned())
}

fn diff(deployment: &Deployment, arguments: &[&str]) -> (i32, String) {
    let always = ["diff", "--node-name", "node-a", PODS[0], PODS[1]];
    run(deployment, &[&always, arguments].concat())
}

fn web() -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080)
}

#[test]
fn kernel_is_compared_with_the_desired_state() {
    for (backend, break_it, expected) in [
        (
            Backend::Nft,
            vec!["nft", "delete", "element", "ip", "fairlead1", "endpoints", "{ 10.96.0.1 . tcp . 80 . 0 }"],
            "+ table ip fairlead1: endpoints 10.96.0.1:80/tcp[0]: 10.244.1.11:8080",
        ),
        (
            Backend::IptablesNft,
            vec!["iptables-nft", "-t", "nat", "-A", "KUBE-SERVICES", "-d", "192.0.2.99", "-j", "RETURN"],
            "- iptables-nft nat: KUBE-SERVICES -d 192.0.2.99/32 -j RETURN",
        ),
    ] {
        let mut deployment = Deployment::start(backend, |cluster| vec![web().pods([cluster.pod("pod-a-1")])]);
        deployment.wait_until_programmed();
        // The running backend tells how it identifies pods, and the name of the node.
        let (code, output) = run(&deployment, &["diff"]);
        assert_eq!(code, 0, "{output}");
        assert!(output.contains("The kernel matches the desired state"), "{output}");
        let told = "settings of the backend that runs here (at 127.0.0.1:10249): ";
        assert!(output.contains(told) && output.contains("--node node-a --cluster-cidr 10.244.0.0/16,"), "{output}");
        let (code, output) = run(&deployment, &["test", "--count", "1"]);
        assert_eq!(code, 0, "{output}");
        let (code, output) = run(&deployment, &["check"]);
        assert!(code < 2 && output.contains("it streams the view of node-a"), "{output}");
        let (code, output) = run(&deployment, &["diff", "--node", "node-z"]);
        assert_eq!(code, 2, "{output}");
        assert!(output.contains("the frontend knows no Node node-z"), "{output}");

        // A running backend would repair the difference.
        deployment.stop_backends(nix::sys::signal::Signal::SIGTERM);
        let node = deployment.cluster().node('a');
        node.netns.output(break_it[0], &break_it[1..]);
        let (code, output) = diff(&deployment, &[]);
        assert_eq!(code, 1, "{output}");
        assert!(output.contains(expected), "{output}");
        let state = deployment.state(node).join("state");
        let (code, by_state) = diff(&deployment, &["--state", path(&state), "-o", "json"]);
        let document: Value = serde_json::from_str(&by_state).expect("JSON");
        let differences = document["differences"].as_array().expect("a list");
        assert_eq!((code, differences.len()), (1, 1), "{by_state}");

        let (code, output) = diff(&deployment, &["--state", "/nowhere"]);
        assert_eq!(code, 2, "{output}");
    }
}

/// Without `--listen` of `fairlead local`, only commands that need no frontend work.
#[test]
fn local_process_without_a_socket_is_named() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = directory.path().join("manifests");
    cluster.manifests(&manifests).apply(&web().pods([cluster.pod("pod-a-1")]));
    let mut command = fairlead();
    command.args(["local", "--backend", "nft", "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
    command.args(["--healthz", "none", "--masquerade-all", "--manifests"]).arg(&manifests);
    command.arg("--state-dir").arg(directory.path());
    let netns = &cluster.node('a').netns;
    let local = Process::spawn(netns, command, &directory.path().join("log"));
    local.wait_for_line("ready: node state programmed", 0, Duration::from_secs(30));

    let output = netns.finish(fairlead().arg("status"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("restart it with --listen unix:/run/fairlead/frontend.sock"), "{error}");

    let state = directory.path().join("state");
    eventually("the state is stored", Duration::from_secs(30), || state.is_file().then_some(()));
    let output = netns.finish(fairlead().args(["diff", "--state", path(&state)]));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(error.contains("--drained-port 0 --node node-a --masquerade-all true"), "{error}");
}

#[test]
fn rules_of_kube_proxy_are_compared() {
    let deployment = Deployment::start(Backend::Nft, |cluster| vec![web().pods([cluster.pod("pod-a-1")])]);
    let (code, output) = diff(&deployment, &["--of", "kube-proxy"]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("kube-proxy has no rules on this node"), "{output}");

    let rules = "\
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"default/web:tcp-80 cluster IP\" -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -d 10.96.0.1/32 -p udp -m comment --comment \"default/web:udp-80 cluster IP\" -m udp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination 10.244.9.9:8080
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p udp -m udp -j DNAT --to-destination 10.244.1.11:8080
COMMIT
";
    deployment.cluster().node('a').netns.run_with_input("iptables-nft-restore", &["--noflush"], rules);
    let (code, output) = diff(&deployment, &["--of", "kube-proxy"]);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("1 in both, and 10.244.9.9:8080"), "{output}");
}

#[test]
fn endpoints_are_explained() {
    let deployment =
        Deployment::start(Backend::Nft, |cluster| vec![web().pods([cluster.pod("pod-a-1"), cluster.pod("pod-b-1")])]);
    let ask = ["endpoints", "web", "-n", "default", "--node", "node-b", "--port", "80"];
    let (code, output) = run(&deployment, &ask);
    assert_eq!(code, 0, "{output}");
    let words = output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let row = words.into_iter().find(|line| line.starts_with("10.244.1.11:8080")).expect("a row");
    assert!(row.contains("in: ready") && row.ends_with("out: on node node-a"), "{row}");
    let (code, output) = run(&deployment, &["endpoints", "default/none"]);
    assert_eq!(code, 2);
    assert!(output.contains("Service default/none is not served"), "{output}");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
