//! The test cluster removes its namespaces however a test ends, and reports when programs in it start and end.

use std::{fs, panic, process::Command, time::Duration};

use e2e::{Cluster, Process, eventually, leftovers, remove_dead_namespaces};
use nix::sys::signal::Signal;

const TIMEOUT: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn dropped_cluster_leaves_no_namespace() {
    let cluster = Cluster::start();
    let prefix = cluster.prefix().to_owned();
    assert_eq!(leftovers(&prefix).len(), 9);
    drop(cluster);
    assert_eq!(leftovers(&prefix), [""; 0]);
}

#[test]
fn panicking_test_leaves_no_namespace() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let panicked = panic::catch_unwind(|| {
        let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
        sender.send(cluster.prefix().to_owned()).expect("a listener");
        cluster.outside().run(|| panic!("in a namespace"));
    });
    let message = panicked.expect_err("the panic is propagated");
    assert_eq!(message.downcast_ref::<&str>(), Some(&"in a namespace"));
    assert_eq!(leftovers(&receiver.recv().expect("a prefix")), [""; 0]);
}

#[test]
fn only_namespaces_of_dead_runs_are_removed() {
    // Stands for the test that created the namespace. It lives until the setup is complete, since other tests also
    // remove namespaces of dead processes.
    let mut owner = Command::new("sleep").arg("60").spawn().expect("sleep");
    let cluster = Cluster::builder().nodes(1).pods_per_node(0).start();
    let left = format!("fl-{}-1-outside", owner.id());
    let status = Command::new("ip").args(["netns", "add", &left]).status().expect("ip");
    assert!(status.success());
    // Only the removal of the namespace kills this process.
    let mut orphan = Command::new("ip").args(["netns", "exec", &left, "sleep", "60"]).spawn().expect("ip");
    eventually("the orphan is in the namespace", TIMEOUT, || {
        let pids = Command::new("ip").args(["netns", "pids", &left]).output().expect("ip").stdout;
        (!pids.is_empty()).then_some(())
    });

    remove_dead_namespaces();
    assert_eq!(leftovers(&left), [left.as_str()], "its owner is alive");
    owner.kill().expect("SIGKILL for the owner");
    owner.wait().expect("its end");
    remove_dead_namespaces();
    assert!(!orphan.wait().expect("its end").success());
    // Another test may be removing it at the same time.
    eventually("the namespace is gone", TIMEOUT, || leftovers(&left).is_empty().then_some(()));
    assert_eq!(leftovers(cluster.prefix()).len(), 2);
}

#[test]
fn ended_and_dropped_programs_are_detected() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(0).start();
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let spawn = |script: &str| Process::spawn(&cluster.node('a').netns, shell(script), &log);

    let ended = spawn("echo last line");
    let missing = panic::catch_unwind(panic::AssertUnwindSafe(|| ended.wait_for_line("ready", 0, TIMEOUT)));
    let message = missing.expect_err("there is no such line");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.ends_with("last line"), "{message}");

    let stubborn = spawn("trap '' TERM; echo ready; while :; do sleep 0.01; done");
    stubborn.wait_for_line("ready", 0, TIMEOUT);
    stubborn.signal(Signal::SIGTERM);
    assert_eq!(stubborn.wait(Duration::from_millis(50)), None);
    let process = format!("/proc/{}", stubborn.pid());
    assert!(fs::exists(&process).expect("procfs"));
    drop(stubborn);
    assert!(!fs::exists(&process).expect("procfs"));
}
