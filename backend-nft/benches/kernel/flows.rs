//! Measures finding and deleting stale UDP flows among many, which happens after each change of a UDP service port, and
//! finding TCP connections to endpoints that are gone, or half-open ones to endpoints that have departed.

use std::{
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Instant,
};

use backend::{
    NodeState,
    testing::{delete_half_open_connections, delete_stale_udp_flows, mk_state, reset_gone_connections},
};
use netlink::testing::in_netns;

use crate::report::{BenchReport, extra_memory};

/// The number of flows.
const FLOWS: u32 = 100_000;
/// One in this number of flows leads to a removed endpoint.
const STALE: u32 = 10;
/// Of the connections, one in this number leads to an endpoint that is gone.
const GONE: u32 = 100;
const VIP: &str = "10.96.0.10";
const ENDPOINTS: [&str; 2] = ["10.128.0.1", "10.128.0.2"];

pub(crate) fn measure() -> BenchReport {
    let mut report = measure_udp();
    report.extend(measure_tcp());
    report.extend(measure_half_open());
    report
}

fn measure_udp() -> BenchReport {
    in_netns(|| {
        load(FLOWS, "udp", "", STALE);
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

fn measure_tcp() -> BenchReport {
    in_netns(|| {
        // Probes have a way.
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        assert!(Command::new("ip").args(["route", "add", "default", "dev", "lo"]).status().unwrap().success());
        load(FLOWS, "tcp", "ESTABLISHED -u SEEN_REPLY,ASSURED", GONE);
        let mut report = BenchReport::new(1);
        for (what, port, expected) in [("one in a hundred", 53, FLOWS / GONE), ("none", 54, 0)] {
            let [endpoint, gone] = [(ENDPOINTS[0], 53), (ENDPOINTS[1], port)].map(|(ip, port)| format!("{ip}:{port}"));
            let state = mk_state().service("kube-system/dns", |dns| {
                dns.port(53).cluster_ip(VIP).endpoints([&*endpoint]).gone_endpoints([&*gone])
            });
            let state = state.build();
            let start = Instant::now();
            let (handled, memory) = extra_memory(|| reset_gone_connections(&state).unwrap());
            let what = format!("100,000 connections, {what} to an endpoint that is gone");
            report.duration(&format!("{what}: handled"), start.elapsed());
            report.bytes(&format!("{what}: extra memory"), memory);
            assert_eq!(handled, expected as usize, "{what}");
        }
        report
    })
}

fn measure_half_open() -> BenchReport {
    in_netns(|| {
        load(FLOWS, "tcp", "SYN_SENT", GONE);
        let mut report = BenchReport::new(1);
        let [before, after] = [&ENDPOINTS[..], &ENDPOINTS[..1]].map(|endpoints| {
            let endpoints: Vec<_> = endpoints.iter().map(|ip| format!("{ip}:53")).collect();
            let endpoints = || endpoints.iter().map(String::as_str);
            mk_state().service("kube-system/dns", |dns| dns.port(53).cluster_ip(VIP).endpoints(endpoints())).build()
        });
        for (what, expected) in [("one in a hundred", FLOWS / GONE), ("none", 0)] {
            let start = Instant::now();
            let (deleted, memory) = extra_memory(|| delete_half_open_connections(&before, &after).unwrap());
            let what = format!("100,000 half-open connections, {what} to an endpoint that departed");
            report.duration(&format!("{what}: deleted"), start.elapsed());
            report.bytes(&format!("{what}: extra memory"), memory);
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

/// Adds flows to the conntrack table of the network namespace, one in `other` of them to the second endpoint.
fn load(flows: u32, protocol: &str, state: &str, other: u32) {
    let state = if state.is_empty() { String::new() } else { format!(" --state {state}") };
    let mut commands = String::new();
    for n in 0..flows {
        let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 1)) + n / 1_000);
        let port = 10_000 + n % 1_000;
        let endpoint = ENDPOINTS[usize::from(n % other == 0)];
        writeln!(
            commands,
            "-I -p {protocol} -s {client} -d {VIP} --sport {port} --dport 53 --timeout 600{state} -r {endpoint} -q {client} \
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
