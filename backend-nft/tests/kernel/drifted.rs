//! The backend detects changes of its tables by other processes, and nothing else.

use backend::testing::ProgramAll as _;
use std::time::Duration;

use backend::{
    Backend, Drift, NodeState,
    testing::{Stack, mk_state, synthetic, transition},
};
use backend_nft::Nft;
use netlink::nft::{DataType, Element, NftBatch, NftHandle, NftMonitor, Set, Table, TableFamily};
use tokio::time::timeout;

use super::support::{backend, nft, run};

/// Longer than any notification takes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a test waits to see that no drift is reported.
const QUIET: Duration = Duration::from_millis(100);

fn state(endpoints: &[&str]) -> NodeState {
    let web = |web: backend::testing::ServiceBuilder| web.cluster_ip("10.96.0.1").endpoints(endpoints.to_vec());
    mk_state().service("default/web", web).build()
}

fn two_endpoints() -> NodeState {
    state(&["10.244.1.1:8080", "10.244.2.1:8080"])
}

async fn assert_no_drift(backend: &mut Nft) {
    if let Ok(drift) = timeout(QUIET, backend.drifted()).await {
        panic!("{drift:?}");
    }
}

/// `change` is detected and repaired; after that there is no drift.
async fn assert_detected(backend: &mut Nft, change: &str, expected: &str) {
    nft(change);
    let drift = timeout(TIMEOUT, backend.drifted()).await.unwrap();
    let Drift::Changed { object, process, pid } = drift else { panic!("{change}: {drift:?}") };
    assert_eq!((&*object, &*process), (expected, "nft"), "{change}");
    assert!(pid > 0);
    assert!(backend.reconcile_all(&two_endpoints()).await.unwrap().writes > 0, "{change}");
    assert_no_drift(backend).await;
}

#[test]
fn every_change_of_our_tables_by_others_is_detected() {
    run(|| async {
        let mut backend = backend();
        backend.reconcile_all(&two_endpoints()).await.unwrap();
        assert_no_drift(&mut backend).await;
        for (change, object) in [
            ("delete table ip fairlead1", "rule"),
            ("delete table ip6 fairlead1", "rule"),
            ("flush chain ip fairlead1 services", "rule"),
            ("flush map ip fairlead1 endpoints", "element"),
            ("delete element ip fairlead1 endpoints { 10.96.0.1 . tcp . 80 . 1 }", "element"),
            ("add element ip fairlead1 vips { 1.2.3.4 . tcp . 80 : drop }", "element"),
            ("add rule ip fairlead1 services counter", "rule"),
            ("add chain ip fairlead1 foreign", "chain"),
            ("add set ip fairlead1 foreign { type ipv4_addr ; }", "set"),
            ("add table ip fairlead1 { flags dormant ; }", "table"),
            ("flush ruleset", "rule"),
        ] {
            assert_detected(&mut backend, change, object).await;
        }
    });
}

#[test]
fn our_own_changes_are_no_drift() {
    run(|| async {
        let mut backend = backend();
        let mut state = two_endpoints();
        backend.reconcile_all(&state).await.unwrap();
        for endpoints in [&["10.244.1.1:8080"][..], &[], &["10.244.1.9:8080", "10.244.1.1:8080"]] {
            let changes = transition(&mut state, &self::state(endpoints));
            backend.apply_all(&state, &changes).await.unwrap();
            assert_no_drift(&mut backend).await;
        }
    });
}

#[test]
fn changes_of_other_tables_are_no_drift() {
    run(|| async {
        let mut backend = backend();
        backend.reconcile_all(&two_endpoints()).await.unwrap();
        nft("add table inet fairlead");
        nft("add table ip other");
        nft("add chain ip other fairlead { type filter hook input priority 0 ; }");
        nft("add map ip other vips { type ipv4_addr . inet_proto . inet_service : verdict ; }");
        nft("delete table inet fairlead");
        assert_no_drift(&mut backend).await;
        // Also after a large change of our own, during which notifications are not received.
        let mut state = two_endpoints();
        let changes = transition(&mut state, &synthetic(1_000, 10, Stack::V4));
        backend.apply_all(&state, &changes).await.unwrap();
        nft("delete table ip other");
        assert_no_drift(&mut backend).await;
        assert_eq!(backend.reconcile_all(&state).await.unwrap().writes, 0);
    });
}

/// Notifications are not received during a large commit: the generation shows that there was no other change.
#[test]
fn a_large_commit_is_no_drift() {
    run(|| async {
        let mut backend = backend();
        let state = synthetic(1_000, 20, Stack::V4);
        assert!(backend.reconcile_all(&state).await.unwrap().writes > 20_000);
        assert_no_drift(&mut backend).await;
        nft("flush map ip fairlead1 endpoints-64");
        timeout(TIMEOUT, backend.drifted()).await.unwrap();
    });
}

/// The changes of another table overflow the receive buffer: one reconcile, which writes nothing.
#[test]
fn lost_notifications_lead_to_one_reconcile() {
    run(|| async {
        let mut backend = backend();
        backend.reconcile_all(&two_endpoints()).await.unwrap();
        let (table, set) = (Table::new(TableFamily::Ip, "other"), Set::new("big", [DataType::Ipv4Addr]));
        let mut batch = NftBatch::new();
        batch.add_table(&table);
        batch.add_set(&table, &set);
        let keys: Vec<[u8; 4]> = (0..200_000_u32).map(u32::to_be_bytes).collect();
        batch.add_elements(&table, &set, keys.iter().map(|key| Element::key(key)));
        NftHandle::open().unwrap().commit(&batch).unwrap();
        assert_eq!(timeout(TIMEOUT, backend.drifted()).await.unwrap(), Drift::Possible);
        assert_eq!(backend.reconcile_all(&two_endpoints()).await.unwrap().writes, 0);
        assert_no_drift(&mut backend).await;
    });
}

/// The kernel sends no notifications for elements that rules add.
#[test]
fn elements_added_by_rules_are_no_drift() {
    run(|| async {
        let mut backend = backend();
        backend.reconcile_all(&two_endpoints()).await.unwrap();
        nft("add table ip other");
        nft("add set ip other seen { type ipv4_addr ; flags dynamic, timeout ; timeout 1m ; }");
        nft("add chain ip other out { type filter hook output priority 0 ; }");
        nft("add rule ip other out add @seen { ip daddr }");
        assert!(std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        assert_no_drift(&mut backend).await;
        let mut monitor = NftMonitor::open().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"x", "127.0.0.9:9").unwrap();
        assert!(nft("list set ip other seen").contains("127.0.0.9"));
        assert_eq!(monitor.wait(QUIET).unwrap(), []);
    });
}
