//! `fairlead status` with real programs: exit codes, `--wait`, and nodes that disconnect and reconnect; and the metrics
//! of a frontend.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use e2e::{Backend, Deployment, fairlead, http_get, manifests::Service, plan};
use nix::sys::signal::Signal;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `fairlead status` and returns the exit code and the JSON document.
fn status(deployment: &Deployment, arguments: &[&str]) -> (i32, Value) {
    let mut command = fairlead();
    command.args(["status", "-o", "json", "--frontend", &deployment.address()]).args(arguments);
    let output = deployment.cluster().outside().run(|| command.output()).expect("fairlead runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = serde_json::from_str(&printed);
    let document = document.unwrap_or_else(|_| panic!("{printed:?} {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().expect("an exit code"), document)
}

fn states(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let nodes = document["nodes"].as_array().expect("nodes").iter();
    let mut states: Vec<_> = nodes.map(|node| (text(&node["node"]), text(&node["state"]))).collect();
    states.sort();
    states
}

fn all(state: &str) -> [(String, String); 2] {
    ["node-a", "node-b"].map(|node| (node.to_owned(), state.to_owned()))
}

#[test]
fn exit_code_tells_whether_all_nodes_are_in_sync() {
    let web = || Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
    let mut deployment = Deployment::start(Backend::Nft, |cluster| vec![web().pods(cluster.pods())]);
    let (code, document) = status(&deployment, &["--wait", "60s"]);
    assert_eq!((code, &document["healthy"]), (0, &true.into()), "{document:#}");
    assert_eq!(states(&document), all("healthy"));
    assert_eq!(document["nodes"][0]["backend"], "nftables");
    assert_eq!(document["summary"]["programmed"], 2, "{document:#}");
    assert_eq!(document["frontends"][0]["programmed_on_all_nodes"], document["frontends"][0]["revision"]);

    deployment.stop_backends(Signal::SIGKILL);
    let (code, document) = status(&deployment, &["--wait", "1s"]);
    assert_eq!(code, 1, "{document:#}");
    assert_eq!(states(&document), all("not_connected_here"));
    assert!(document["frontends"][0]["programmed_on_all_nodes"].is_null(), "{document:#}");
    let (code, document) = status(&deployment, &["--node", "node-a"]);
    assert_eq!((code, states(&document)), (1, all("not_connected_here")[..1].to_vec()));

    deployment.start_backends();
    let (code, document) = status(&deployment, &["--wait", "60s"]);
    assert_eq!((code, states(&document)), (0, all("healthy").to_vec()), "{document:#}");

    deployment.stop_frontend(Signal::SIGKILL);
    let (code, document) = status(&deployment, &[]);
    assert_eq!((code, &document["healthy"]), (2, &false.into()));
}

#[test]
fn metrics_are_served_on_loopback() {
    let deployment = Deployment::start(Backend::Nft, |_| Vec::new());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7601));
    let get = |path: &str| http_get(deployment.cluster().outside(), address, path, TIMEOUT).expect("a response");
    let metrics = get("/metrics").body;
    assert!(metrics.contains("fairlead_frontend_streams{role=\"backend\",mode=\"snapshot\"} 2"), "{metrics}");
    assert!(metrics.contains("fairlead_frontend_nodes_without_backend 0"), "{metrics}");
    assert_eq!(get("/readyz").status, 200);
}
