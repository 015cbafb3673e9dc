//! All rules for each kind of service, as `iptables-save` prints them: those of kube-proxy, unless a test explains the
//! difference.

mod base;
mod external;
mod internal;

use backend::{
    ServicePortState,
    dataplane::{DataplaneOptions, LocalDetector},
    testing::{ServiceBuilder, mk_state},
};
use proto::model::IpFamily;

use super::*;

/// A service port whose chains end in `XPGD46QRK7WJZT7O`. Endpoints on port 80 have these:
///
/// ```text
///   10.180.0.1       SXIVWICOYRO3J4NJ
///   10.180.0.2       LXVODXWDISEETFEF
///   10.180.0.3       ICDUIKC33SFI6ZPR
///   fd00:10:180::1   OGYCNMB4EMRUSJ6N
///   fd00:10:180::2   P2NYGPDH7GVZACN4
/// ```
fn service(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> ServicePortState {
    named("ns1/svc1:p80", build)
}

fn named(key: &str, build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> ServicePortState {
    mk_state().service(key, build).build().service_ports().values().next().unwrap().clone()
}

/// Pods are in 10.0.0.0/8 and fd00:10::/32.
fn pods() -> DataplaneOptions {
    within(&["10.0.0.0/8", "fd00:10::/32"])
}

fn within(cidrs: &[&str]) -> DataplaneOptions {
    let cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    DataplaneOptions { local_detector: LocalDetector::ClusterCidr(cidrs), ..DataplaneOptions::default() }
}

/// All rules of a service port: those in shared chains, sorted; then its own chains by name, with their rules in order.
fn written(service: &ServicePortState, family: IpFamily, options: &DataplaneOptions) -> Vec<String> {
    let node = mk_state().build().node().clone();
    let effective = options.effective(&node);
    let Some(Desired { mut chains, lines, .. }) = desired(service, family, &effective, &node.addresses, |_| true)
    else {
        return Vec::new();
    };
    let mut written: Vec<String> =
        lines.iter().map(|(shared, line)| format!("{} -A {} {line}", shared.table(), shared.chain())).collect();
    written.sort_unstable();
    chains.sort_by(|one, two| (one.table, &one.name).cmp(&(two.table, &two.name)));
    written.extend(
        chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(move |rule| format!("{} -A {} {rule}", chain.table, chain.name))),
    );
    written
}

/// Compares line by line.
#[track_caller]
fn assert_lines(found: &[String], expected: &str) {
    let expected: Vec<&str> = expected.lines().filter(|line| !line.is_empty()).collect();
    assert!(found == expected, "found:\n{}\n\nexpected:\n{}", found.join("\n"), expected.join("\n"));
}

#[track_caller]
fn assert_written(service: &ServicePortState, family: IpFamily, expected: &str) {
    assert_lines(&written(service, family, &pods()), expected);
}

/// The lines that contain a text.
fn with(word: &str, lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| line.contains(word)).collect()
}
