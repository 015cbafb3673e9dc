//! The backend contract tests, and random states that nft must be able to list.

use backend::testing::ProgramAll as _;
use backend::{
    NodeState,
    testing::{History, contract, mk_state, transition},
};

use super::support::{assert_readable, backend, reconcile, run};

#[test]
fn an_empty_state_is_programmed() {
    run(|| contract::empty_state(backend));
}

#[test]
fn apply_equals_reconcile() {
    run(|| async {
        for seed in 0..10 {
            contract::apply_equals_reconcile(backend, seed, 40).await;
        }
    });
}

#[test]
fn reconcile_works_from_any_state() {
    run(|| contract::reconcile_works_from_any_state(backend, 7, 40));
}

#[test]
fn cleanup_removes_everything() {
    run(|| contract::cleanup_removes_everything(backend, 3));
}

/// nft can list every state.
#[test]
fn random_states_are_readable() {
    run(|| async {
        let (mut history, mut backend) = (History::new(11), backend());
        for _ in 0..25 {
            history.jump();
            backend.reconcile_all(history.state()).await.unwrap();
            assert_readable();
            let changes = history.step();
            backend.apply_all(history.state(), &changes).await.unwrap();
            assert_readable();
        }
    });
}

/// Pools whose endpoints move between the maps for each size.
#[test]
fn pools_of_every_size_are_programmed() {
    run(|| async {
        let mut backend = backend();
        let mut state = sized(0);
        backend.reconcile_all(&state).await.unwrap();
        for size in [1, 16, 17, 64, 65, 256, 257, 300, 2, 0] {
            let changes = transition(&mut state, &sized(size));
            let applied = backend.apply_all(&state, &changes).await.unwrap();
            assert_eq!(applied.failures, []);
            assert_eq!(reconcile(&state).await.writes, 0, "{size} endpoints");
            assert_readable();
        }
    });
}

/// Adjacent ranges, ranges at both ends of the address space, and ranges next to those of another service.
#[test]
fn source_ranges_of_every_kind_are_programmed() {
    run(|| async {
        let mut backend = backend();
        let mut state = restricted(&[]);
        backend.reconcile_all(&state).await.unwrap();
        for ranges in [
            &["10.0.0.0/24", "fd00:2::/64"][..],
            &["10.0.0.0/16", "10.0.0.0/24", "fd00:2::/48"],
            &["10.0.0.128/25", "10.0.1.0/24", "fd00:2::/64", "fd00:2:0:1::/64"],
            &["10.0.0.0/8", "fd00:2::7/128"],
            &["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"],
            &["0.0.0.0/32", "255.255.255.255/32", "::/128", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"],
            &["192.168.1.0/24", "203.0.113.0/32", "fd00:1::/64"],
            &["203.0.113.0/24", "192.168.1.0/24", "::/0"],
            &["0.0.0.0/0", "10.0.0.0/8"],
            &[],
        ] {
            let changes = transition(&mut state, &restricted(ranges));
            let applied = backend.apply_all(&state, &changes).await.unwrap();
            assert_eq!(applied.failures, []);
            assert_eq!(reconcile(&state).await.writes, 0, "{ranges:?}");
            assert_readable();
        }
    });
}

fn restricted(ranges: &[&str]) -> NodeState {
    mk_state()
        .service("default/lb", |lb| {
            let lb = lb.load_balancer_ip("203.0.113.1").load_balancer_ip("fd00:203::1");
            ranges.iter().fold(lb, |lb, range| lb.source_range(range))
        })
        .service("default/other", |other| {
            let other = other.load_balancer_ip("203.0.113.2").load_balancer_ip("fd00:203::2");
            other.source_range("10.0.0.64/26").source_range("fd00:2::/96")
        })
        .build()
}

fn sized(endpoints: u16) -> NodeState {
    let v4 = (0..endpoints).map(|n| format!("10.244.{}.{}:8080", n / 250, n % 250 + 1));
    let v6 = (0..endpoints).map(|n| format!("[fd00:244::{:x}]:8080", n + 1));
    let all: Vec<String> = v4.chain(v6).collect();
    mk_state()
        .service("default/web", |web| {
            let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").node_port(30080);
            web.external_ip("203.0.113.1").endpoints(all.iter().map(String::as_str))
        })
        .build()
}
