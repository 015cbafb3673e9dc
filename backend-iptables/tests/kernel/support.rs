//! Helpers: a network namespace with a runtime, the backend under test, and the iptables programs.

use backend::testing::ProgramAll as _;
use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use backend::{
    NodeState, SyncReport,
    dataplane::{DataplaneOptions, LocalDetector},
};
use backend_iptables::Iptables;
use iptables::Variant;
pub(crate) use netlink::testing::block_on_in_netns as run;

/// Pods are in 10.244.0.0/16 and fd00:244::/32.
pub(crate) fn options() -> DataplaneOptions {
    let cidrs = ["10.244.0.0/16", "fd00:244::/32"];
    let local_detector = LocalDetector::ClusterCidr(cidrs.map(|cidr| cidr.parse().unwrap()).to_vec());
    DataplaneOptions { local_detector, ..DataplaneOptions::default() }
}

pub(crate) fn backend(variant: Variant) -> Iptables {
    backend_iptables::open(options(), Some(variant))
}

/// Reconciles with a new instance, as after a restart.
pub(crate) async fn reconcile(variant: Variant, state: &NodeState) -> SyncReport {
    backend(variant).reconcile_all(state).await.unwrap()
}

/// Runs a command line with this input, and returns its output.
#[track_caller]
pub(crate) fn tool(command_line: &str, input: impl AsRef<[u8]>) -> String {
    let mut words = command_line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    // A private namespace needs no lock of the machine.
    command.env("XTABLES_LOCKFILE", "/proc/thread-self/ns/net");
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The rules of both families, without comments and counters.
pub(crate) fn saved(variant: Variant) -> Vec<String> {
    let saved = ["iptables", "ip6tables"].map(|name| tool(&format!("{name}-{variant}-save"), ""));
    let saved = saved.concat();
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap_or_default().to_owned()).collect()
}
