//! Measures finding and deleting stale UDP flows among many, which happens after each change of a UDP service port.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Instant,
};

use backend::{
    NodeState,
    testing::{delete_stale_udp_flows, mk_state},
};
use netlink::testing::in_netns;

use crate::report::{BenchReport, extra_memory};

/// The number of flows.
const FLOWS: u32 = 100_000;
/// One in this number of flows leads to a removed endpoint.
const STALE: u32 = 10;
const VIP: &str = "10.96.0.10";
const ENDPOINTS: [&str; 2] = ["10.128.0.1", "10.128.0.2"];

pub(crate) fn measure() -> BenchReport {
    in_netns(|| {
        load(FLOWS);
        let state = state();
        let mut report = BenchReport::new(1);
        for (what, expected) in [("one in ten stale", FLOWS / STALE), ("none stale", 0)] {
            let start = Instant::now();
            let (deleted, memory) = extra_memory(|| delete_stale_udp_flows(&state).unwrap());
            report.duration(&format!("100,000 UDP flows, {what}: deleted"), start.elapsed());
            report.bytes(&format!("100,000 UDP flows, {what}: extra memory"), memory);
            assert_eq!(deleted, expected as usize, "{what}");
        }
        report
    })
}

/// The second endpoint is removed.
fn state() -> NodeState {
    let endpoint = format!("{}:53", ENDPOINTS[0]);
    mk_state().service("kube-system/dns/udp", |dns| dns.port(53).cluster_ip(VIP).endpoints([&*endpoint])).build()
}

/// Adds flows to the conntrack table of the network namespace.
fn load(flows: u32) {
    let mut commands = String::new();
    for n in 0..flows {
        let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 1)) + n / 1_000);
        let port = 10_000 + n % 1_000;
        let endpoint = ENDPOINTS[usize::from(n % STALE == 0)];
        writeln!(
            commands,
            "-I -p udp -s {client} -d {VIP} --sport {port} --dport 53 --timeout 600 -r {endpoint} -q {client} \
             --reply-port-src 53 --reply-port-dst {port}"
        )
        .unwrap();
    }
    let mut child = Command::new("conntrack")
        .args(["-R", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "conntrack -R -");
}
