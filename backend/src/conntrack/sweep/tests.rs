//! Against the kernel, in a network namespace of their own: flows are made with the `conntrack` command.

use std::{collections::BTreeSet, process::Command};

use netlink::testing::in_netns;

use proto::model::FailureKind;

use super::*;
use crate::{
    Changes,
    testing::{mk_key, mk_state},
};

/// A flow to port 53 of this VIP, answered by this endpoint, from this port of a client.
fn insert(protocol: &str, vip: &str, endpoint: &str, port: u16) {
    let client = if vip.contains(':') { "fd00:9::9" } else { "10.9.9.9" };
    let state = if protocol == "tcp" { "--state ESTABLISHED" } else { "" };
    let args = format!(
        "-I -p {protocol} -s {client} -d {vip} --sport {port} --dport 53 --timeout 600 \
         -r {endpoint} -q {client} --reply-port-src 53 --reply-port-dst {port} {state}"
    );
    let output = Command::new("conntrack").args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The ports of the clients of the flows that are there.
fn ports() -> BTreeSet<u16> {
    let list = |family| Command::new("conntrack").args(["-L", "-f", family]).output().unwrap().stdout;
    let text = String::from_utf8([list("ipv4"), list("ipv6")].concat()).unwrap();
    let port = |line: &str| line.split_once("sport=")?.1.split(' ').next()?.parse().ok();
    text.lines().map(|line| port(line).unwrap()).collect()
}

fn run(test: impl Future<Output = ()> + Send + 'static) {
    in_netns(|| tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test));
}

fn dns() -> NodeState {
    mk_state()
        .service("default/dns/udp", |dns| {
            let dns = dns.port(53).cluster_ip("10.96.0.10").cluster_ip("fd00:96::a");
            dns.endpoints(["10.244.1.5:53", "[fd00:244:1::5]:53"])
        })
        .service("default/empty/udp", |empty| empty.port(53).cluster_ip("10.96.0.11"))
        .build()
}

fn insert_all() {
    insert("udp", "10.96.0.10", "10.244.1.5", 1);
    insert("udp", "10.96.0.10", "10.244.1.4", 2);
    insert("udp", "10.96.0.10", "10.96.0.10", 3);
    insert("udp", "10.96.0.11", "10.244.1.4", 4);
    insert("udp", "10.96.0.12", "10.244.1.4", 5);
    insert("tcp", "10.96.0.10", "10.244.1.4", 6);
    insert("udp", "fd00:96::a", "fd00:244:1::5", 7);
    insert("udp", "fd00:96::a", "fd00:244:1::4", 8);
}

fn apply(key: &str) -> Work {
    Work::Apply(Changes { service_ports: [mk_key(key)].into(), ..Changes::default() })
}

#[test]
fn stale_flows_of_both_families_go_and_no_others() {
    run(async {
        insert_all();
        let mut sweeper = Sweeper::new(ConntrackCleanup::Enabled, Arc::default());
        sweeper.follow(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!(ports(), [1, 5, 6, 7].into());
        assert_eq!((sweeper.deleted, sweeper.failed), (4, 0));
        sweeper.follow(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!((ports(), sweeper.deleted), ([1, 5, 6, 7].into(), 4));
    });
}

#[test]
fn only_changes_that_concern_udp_are_followed() {
    run(async {
        insert_all();
        let all: BTreeSet<_> = (1..=8).collect();
        let mut sweeper = Sweeper::new(ConntrackCleanup::Disabled, Arc::default());
        sweeper.follow(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!(ports(), all, "when told not to");
        let mut sweeper = Sweeper::new(ConntrackCleanup::Enabled, Arc::default());
        sweeper.follow(&apply("default/web"), &dns(), &[]).await;
        assert_eq!(ports(), all, "TCP");
        sweeper.follow(&apply("default/gone/udp"), &dns(), &[]).await;
        assert_eq!(sweeper.deleted, 4, "any UDP service port");
        insert("udp", "10.96.0.10", "10.244.1.4", 2);
        sweeper.follow(&Work::Apply(Changes { node: true, ..Changes::default() }), &dns(), &[]).await;
        assert_eq!(sweeper.deleted, 5, "the node's addresses");
    });
}

#[test]
fn a_service_port_that_is_not_programmed_keeps_its_flows() {
    run(async {
        insert_all();
        let key = mk_key("default/dns/udp");
        let failure =
            ServicePortFailure { key, reason: "no memory".to_owned(), retryable: true, kind: FailureKind::Program };
        let mut sweeper = Sweeper::new(ConntrackCleanup::Enabled, Arc::default());
        sweeper.follow(&Work::Reconcile, &dns(), &[failure]).await;
        assert_eq!(ports(), [1, 2, 3, 5, 6, 7, 8].into());
    });
}

#[test]
fn what_failed_is_done_with_the_next_change_of_anything() {
    run(async {
        insert_all();
        let mut sweeper = Sweeper::new(ConntrackCleanup::Enabled, Arc::default());
        sweeper.owed = Owed::Sweep;
        sweeper.follow(&apply("default/web"), &dns(), &[]).await;
        assert_eq!((sweeper.deleted, sweeper.owed), (4, Owed::Nothing));
    });
}

/// More than one batch, among as many that stay.
#[test]
fn many_flows() {
    run(async {
        let stale = 3 * BATCH as u16 / 2;
        (1..=stale).for_each(|port| insert("udp", "10.96.0.10", "10.244.1.4", port));
        (stale + 1..=2 * stale).for_each(|port| insert("udp", "10.96.0.10", "10.244.1.5", port));
        let mut sweeper = Sweeper::new(ConntrackCleanup::Enabled, Arc::default());
        sweeper.follow(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!(sweeper.deleted, u64::from(stale));
        assert_eq!(ports(), (stale + 1..=2 * stale).collect());
    });
}
