//! Tests with the kernel, in a network namespace: flows are created with the `conntrack` command.

use std::{collections::BTreeSet, process::Command};

use netlink::testing::in_netns;

use proto::model::FailureKind;

use super::*;
use crate::{
    Changes,
    testing::{mk_key, mk_state},
};

/// Creates a flow from this client port to port 53 of a VIP, answered by this endpoint.
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

/// The client ports of all flows.
fn client_ports() -> BTreeSet<u16> {
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
fn only_stale_flows_are_deleted() {
    run(async {
        insert_all();
        let mut cleaner = ConntrackCleaner::new(ConntrackCleanup::Enabled, Arc::default());
        cleaner.clean_up(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!(client_ports(), [1, 5, 6, 7].into());
        assert_eq!((cleaner.deleted_flows, cleaner.failures), (4, 0));
        cleaner.clean_up(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!((client_ports(), cleaner.deleted_flows), ([1, 5, 6, 7].into(), 4));
    });
}

#[test]
fn only_changes_that_concern_udp_clean_up() {
    run(async {
        insert_all();
        let all: BTreeSet<_> = (1..=8).collect();
        let mut cleaner = ConntrackCleaner::new(ConntrackCleanup::Disabled, Arc::default());
        cleaner.clean_up(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!(client_ports(), all, "disabled");
        let mut cleaner = ConntrackCleaner::new(ConntrackCleanup::Enabled, Arc::default());
        cleaner.clean_up(&apply("default/web"), &dns(), &[]).await;
        assert_eq!(client_ports(), all, "TCP");
        cleaner.clean_up(&apply("default/gone/udp"), &dns(), &[]).await;
        assert_eq!(cleaner.deleted_flows, 4, "any UDP service port");
        insert("udp", "10.96.0.10", "10.244.1.4", 2);
        cleaner.clean_up(&Work::Apply(Changes { node: true, ..Changes::default() }), &dns(), &[]).await;
        assert_eq!(cleaner.deleted_flows, 5, "the node's addresses");
    });
}

#[test]
fn a_service_port_that_is_not_programmed_keeps_its_flows() {
    run(async {
        insert_all();
        let key = mk_key("default/dns/udp");
        let failure =
            ServicePortFailure { key, reason: "no memory".to_owned(), retryable: true, kind: FailureKind::Program };
        let mut cleaner = ConntrackCleaner::new(ConntrackCleanup::Enabled, Arc::default());
        cleaner.clean_up(&Work::Reconcile, &dns(), &[failure]).await;
        assert_eq!(client_ports(), [1, 2, 3, 5, 6, 7, 8].into());
    });
}

#[test]
fn failed_cleanup_is_repeated_after_any_change() {
    run(async {
        insert_all();
        let mut cleaner = ConntrackCleaner::new(ConntrackCleanup::Enabled, Arc::default());
        cleaner.repeated.failed("no memory");
        cleaner.clean_up(&apply("default/web"), &dns(), &[]).await;
        assert_eq!((cleaner.deleted_flows, cleaner.repeated.is_failing()), (4, false));
    });
}

#[test]
fn more_than_a_batch_is_deleted_among_as_many_that_stay() {
    run(async {
        let stale = 3 * BATCH as u16 / 2;
        (1..=stale).for_each(|port| insert("udp", "10.96.0.10", "10.244.1.4", port));
        (stale + 1..=2 * stale).for_each(|port| insert("udp", "10.96.0.10", "10.244.1.5", port));
        let mut cleaner = ConntrackCleaner::new(ConntrackCleanup::Enabled, Arc::default());
        cleaner.clean_up(&Work::Reconcile, &dns(), &[]).await;
        assert_eq!(cleaner.deleted_flows, u64::from(stale));
        assert_eq!(client_ports(), (stale + 1..=2 * stale).collect());
    });
}
