//! The commands that inspect a node, on a node that serves traffic: `check`, `trace`, `test`, `bundle`.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use e2e::{Backend, Cluster, Deployment, fairlead, manifests::Service, plan};
use serde_json::Value;

/// A secret, which bundles must not contain.
const SECRET: &str = "hunter2-is-my-token";

fn web(cluster: &Cluster, name: &str, number: u8, pods: &[&str]) -> Service {
    let pods: Vec<_> = pods.iter().map(|name| cluster.pod(name)).collect();
    Service::new(name).cluster_ip(plan::cluster_ip(number)).port_all(80, 8080).pods(pods)
}

fn deployment(backend: Backend) -> Deployment {
    Deployment::start(backend, |cluster| {
        vec![
            web(cluster, "web", 1, &["pod-a-1", "pod-b-1"]).node_port(30_080),
            web(cluster, "none", 2, &[]),
            web(cluster, "sticky", 3, &["pod-a-1", "pod-a-2", "pod-b-1"]).affinity(60),
        ]
    })
}

/// Runs `fairlead` on node-a.
fn run(deployment: &Deployment, arguments: &[&str]) -> Output {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", deployment.cluster().node('a').netns.name()]);
    command.arg(fairlead().get_program()).args(arguments).output().expect("a program")
}

/// Runs `fairlead` with the frontend's address, and returns its output.
fn ask(deployment: &Deployment, arguments: &[&str], code: i32) -> String {
    let address = deployment.address();
    let output = run(deployment, &[arguments, &["--node-name", "node-a", "--frontend", &address]].concat());
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stdout}{stderr}");
    stdout
}

/// The output of `fairlead trace` on node-a.
fn traced(deployment: &Deployment, arguments: &[&str]) -> String {
    let output = run(deployment, &[&["trace"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn tools(backend: Backend, name: &str) {
    let deployment = deployment(backend);
    let state = deployment.state(deployment.cluster().node('a'));
    let state_dir = state.parent().filter(|_| state.is_file()).unwrap_or(&state).display().to_string();

    let checked = ask(&deployment, &["check", "--backend", name], 0);
    assert!(checked.contains(&format!("backend {name} has programmed")), "{checked}");
    assert!(checked.contains("it streams the view of node-a"), "{checked}");

    let to_web = traced(&deployment, &["172.16.0.1", "172.16.0.11:30080"]);
    let local = "sent to one of 2 endpoints: 10.244.1.11:8080 (50 %, from 10.244.1.1), ";
    assert!(to_web.contains(local) && to_web.contains("source masqueraded, by "), "{to_web}");
    let to_none = traced(&deployment, &["10.244.1.13", "10.96.0.2:80", "-p", "udp"]);
    assert!(to_none.contains("rejected with ICMP port unreachable"), "{to_none}");
    let to_none = traced(&deployment, &["fd00:10:244:1::13", "[fd00:10:96::2]:80", "-o", "json"]);
    let to_none: Value = serde_json::from_str(&to_none).expect("JSON");
    assert!(to_none["paths"][0]["verdict"]["rejected"]["with"].is_string(), "{to_none}");
    // An endpoint may reach itself, with another source: two outcomes.
    let own = traced(&deployment, &["10.244.1.11", "10.96.0.1:80"]);
    assert!(own.contains("50 %: sent to 10.244.1.11:8080; source masqueraded"), "{own}");
    assert!(own.contains("50 %: sent to 10.244.2.11:8080; source unchanged"), "{own}");
    let elsewhere = traced(&deployment, &["172.16.0.11", "172.16.0.12:443"]);
    assert!(elsewhere.contains("no rule handles it as Service traffic"), "{elsewhere}");

    // Cluster IPs of three services and a node port, in two families and with two protocols, and the VIP of the fence.
    let tested = ask(&deployment, &["test", "--count", "10"], 0);
    assert!(tested.contains("0 of 17 VIPs failed"), "{tested}");
    assert!(tested.contains("1 of 3 endpoints in 10 connections"), "{tested}");
    let known = traced(&deployment, &["172.16.0.11", "10.96.0.3:80"]);
    assert!(known.contains("sent to the only endpoint"), "{known}");
    let unknown = traced(&deployment, &["10.244.1.13", "10.96.0.3:80"]);
    assert!(unknown.contains("sent to one of 3 endpoints") && unknown.contains("source unchanged"), "{unknown}");

    deployment.cluster().pod("pod-a-1").stop();
    deployment.cluster().pod("pod-b-1").stop();
    let tested = ask(&deployment, &["test", "--service", "default/web", "--count", "2"], 1);
    assert!(tested.contains("FAIL") && tested.contains("refused"), "{tested}");

    bundled(&deployment, &state_dir, name);
}

fn bundled(deployment: &Deployment, state_dir: &str, name: &str) {
    let key = deployment.path("secret.key");
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n");
    fs::write(&key, pem).expect("a file");
    let (key, file) = (key.display().to_string(), deployment.path("bundle.tar.gz").display().to_string());
    let arguments = ["bundle", "-o", &file, "--backend", name, "--state-dir", state_dir, "--redact-ips"];
    let output = ask(deployment, &[&arguments[..], &["--token-file", &key]].concat(), 0);
    assert!(output.contains("files"), "{output}");
    let unpacked = deployment.path("unpacked");
    fs::create_dir(&unpacked).expect("a directory");
    let tar = Command::new("tar").args(["-xzf", &file, "-C"]).arg(&unpacked).status().expect("tar");
    assert!(tar.success());
    let top = unpacked.join("fairlead-node-a");
    let manifest: Value =
        serde_json::from_slice(&fs::read(top.join("manifest.json")).expect("a manifest")).expect("JSON");
    for wanted in ["check.txt", "sysctls.txt", "frontend.json", "state.json"] {
        let listed = manifest["files"].as_array().expect("a list").iter().any(|file| file["name"] == wanted);
        assert!(listed, "no {wanted}: {manifest:#}");
    }
    let rules = if name == "nftables" { "nft/ip-fairlead1.txt" } else { "iptables/iptables-legacy.txt" };
    assert!(fs::read_to_string(top.join(rules)).expect("rules").contains("default/web") || name == "nftables");
    let mut count = 0;
    for_each_file(&top, &mut |path| {
        count += 1;
        let text = fs::read_to_string(path).expect("text");
        assert!(!text.contains(SECRET), "{}", path.display());
        assert!(!text.contains("10.96.0.1") && !text.contains("10.244.1.11"), "{}", path.display());
    });
    assert_eq!(count, manifest["files"].as_array().expect("a list").len() + 1);
}

fn for_each_file(directory: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { for_each_file(&path, visit) } else { visit(&path) }
    }
}

#[test]
fn commands_inspect_an_nftables_node() {
    tools(Backend::Nft, "nftables");
}

#[test]
fn commands_inspect_an_iptables_node() {
    tools(Backend::IptablesLegacy, "iptables");
}
