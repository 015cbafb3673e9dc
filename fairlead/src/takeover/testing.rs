//! For tests: rules as kube-proxy 1.36 writes them, among rules of other programs.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use proto::model::IpFamily;

/// kube-proxy's rules in iptables mode, and those of other programs, as `iptables-save` prints them.
const ALL: &str = include_str!("testing/kube-proxy.rules");
/// Only those of other programs.
const OTHERS: &str = include_str!("testing/others.rules");

pub(crate) fn all(family: IpFamily) -> String {
    fill(ALL, family)
}

pub(crate) fn others(family: IpFamily) -> String {
    fill(OTHERS, family)
}

/// Fills in the addresses of a family.
fn fill(rules: &str, family: IpFamily) -> String {
    let values = match family {
        IpFamily::V4 => [
            ("loopback", "127.0.0.0/8"),
            ("reject", "icmp-port-unreachable"),
            ("pods", "10.244.0.0/16"),
            ("vip", "10.96.0.10/32"),
            ("idle", "10.96.0.11/32"),
            ("lb", "192.0.2.10/32"),
            ("range", "203.0.113.0/24"),
            ("endpoint1", "10.244.1.5/32"),
            ("endpoint2", "10.244.2.6/32"),
            ("to1", "10.244.1.5:8080"),
            ("to2", "10.244.2.6:8080"),
        ],
        IpFamily::V6 => [
            ("loopback", "::1/128"),
            ("reject", "icmp6-port-unreachable"),
            ("pods", "fd00:10:244::/56"),
            ("vip", "fd00:10:96::a/128"),
            ("idle", "fd00:10:96::b/128"),
            ("lb", "2001:db8:2::a/128"),
            ("range", "2001:db8:3::/64"),
            ("endpoint1", "fd00:10:244:1::5/128"),
            ("endpoint2", "fd00:10:244:2::6/128"),
            ("to1", "[fd00:10:244:1::5]:8080"),
            ("to2", "[fd00:10:244:2::6]:8080"),
        ],
    };
    let replace = |rules: String, (name, value)| rules.replace(&format!("{{{name}}}"), value);
    values.into_iter().fold(rules.to_owned(), replace)
}

/// Runs a program that reads `input`; returns what it prints.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str], input: impl AsRef<[u8]>) -> String {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
