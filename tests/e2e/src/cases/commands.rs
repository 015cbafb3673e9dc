//! The commands `local` and `cleanup`.

use std::net::SocketAddr;

use super::expect::assert_pods;
use crate::{
    client::Client,
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT, fairlead},
    manifests::Service,
    plan::{self, IpFamily},
    process::Process,
    wait::eventually,
    wire::{Failure, Protocol},
};

const PORT: u16 = 80;

/// `fairlead local` programs a node at the first start, after a change, and after a restart.
pub fn local_runs_frontend_and_backend(backend: Backend) {
    let cluster = Cluster::start();
    let directory = tempfile::tempdir().expect("a directory");
    let manifests = cluster.manifests(&directory.path().join("manifests"));
    manifests.apply(&web(&cluster, &["pod-a-1", "pod-b-1"]));
    let node = cluster.node('a');
    let start = |log: &str| {
        let command = backend.local(manifests.directory(), &node.name, &directory.path().join("state"));
        let process = Process::spawn(&node.netns, command, &directory.path().join(log));
        process.wait_for_line("ready: node state programmed", 0, TIMEOUT);
        process
    };
    let client = node.pod(3).client();
    let process = start("first.log");
    assert_web(&client, &["pod-a-1", "pod-b-1"]);

    let mark = process.mark();
    manifests.apply(&web(&cluster, &["pod-b-2"]));
    process.wait_for_line(": applied", mark, TIMEOUT);
    eventually("the change is programmed", TIMEOUT, || {
        (client.tcp(vip(IpFamily::V6)).expect("an answer").pod == "pod-b-2").then_some(())
    });
    eventually("the change is programmed", TIMEOUT, || {
        (client.tcp(vip(IpFamily::V4)).expect("an answer").pod == "pod-b-2").then_some(())
    });
    assert!(process.terminate().success());
    assert_web(&client, &["pod-b-2"]);
    let _process = start("second.log");
    assert_web(&client, &["pod-b-2"]);
}

/// `fairlead cleanup` removes all kernel objects of Fairlead and no others; `--dry-run` lists them first.
pub fn cleanup_removes_only_objects_of_fairlead(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &["pod-a-1"])]);
    let before = Cluster::builder().nodes(1).pods_per_node(0).start();
    let netns = deployment.cluster().node('a').netns.clone();
    for netns in [&netns, &before.node('a').netns] {
        backend.add_foreign_objects(netns);
    }
    backend.create_empty_tables(&before.node('a').netns);
    deployment.stop_backends(nix::sys::signal::Signal::SIGTERM);
    let client = deployment.cluster().pod("pod-a-3").client();
    assert_web(&client, &["pod-a-1"]);
    let state = deployment.state(deployment.cluster().node('a'));
    let cleanup = |arguments: &[&str]| {
        let mut command = fairlead();
        command.args(["cleanup", "--backend", backend.name(), "--state-dir"]).arg(&state).args(arguments);
        let output = netns.finish(&mut command);
        assert!(output.status.success(), "{output:?}");
        // The widths of columns may differ.
        let lines = String::from_utf8(output.stdout).expect("UTF-8 output");
        let lines = lines.lines();
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let announced = cleanup(&["--dry-run"]);
    assert_web(&client, &["pod-a-1"]);
    assert!(announced.len() > 1 && announced[0].starts_with("WOULD REMOVE"), "{announced:?}");
    let expected = [&announced[1..], &["nothing to remove".to_owned()]];
    for expected in expected {
        // A second cleanup has nothing to remove.
        assert!(cleanup(&[]).ends_with(expected));
        assert_eq!(std::fs::read_dir(&state).expect("the directory stays").count(), 0);
        assert_eq!(backend.rules(&netns), backend.rules(&before.node('a').netns));
        let client = client.clone().with_deadline(std::time::Duration::from_millis(100));
        assert_eq!(client.tcp(vip(IpFamily::V4)), Err(Failure::TimedOut));
    }
    deployment.start_backends();
    assert_web(&client, &["pod-a-1"]);
}

fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods(pods.iter().map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}

#[track_caller]
fn assert_web(client: &Client, pods: &[&str]) {
    for family in IpFamily::ALL {
        Protocol::ALL.into_iter().for_each(|protocol| assert_pods(client, protocol, vip(family), pods));
    }
}
