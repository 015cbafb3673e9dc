//! More rules than fit into one transaction.

use backend::testing::ProgramAll as _;
use backend::{
    Backend as _, Changes, NodeState,
    testing::{Stack, mk_key, mk_state, synthetic, transition},
};
use iptables::Variant;

use super::support::{backend, reconcile, run, saved};

#[test]
fn adding_and_removing_many_services() {
    for variant in Variant::ALL {
        run(move || async move {
            let before = saved(variant);
            let mut backend = backend(variant);
            let mut state = synthetic(120, 5, Stack::Dual);
            backend.reconcile_all(&state).await.unwrap();
            assert_eq!(reconcile(variant, &state).await.writes, 0);
            for services in [10, 120] {
                let changes = transition(&mut state, &synthetic(services, 5, Stack::Dual));
                assert_eq!(backend.apply_all(&state, &changes).await.unwrap().failures, []);
                assert_eq!(reconcile(variant, &state).await.writes, 0);
            }
            // A new instance removes most of it.
            let few = synthetic(10, 5, Stack::Dual);
            assert_ne!(reconcile(variant, &few).await.writes, 0);
            assert_eq!(reconcile(variant, &few).await.writes, 0);
            reconcile(variant, &state).await;
            backend.cleanup().await.unwrap();
            let chains = |lines: Vec<String>| {
                lines
                    .into_iter()
                    .filter(|line| line.contains("KUBE-") || line.contains("FAIRLEAD-"))
                    .collect::<Vec<_>>()
            };
            assert_eq!(chains(saved(variant)), chains(before));
        });
    }
}

/// A service port with two rules for each endpoint in a pool, and a chain with two; and one of another namespace.
fn attack(endpoints: u32, bystander: u32) -> NodeState {
    let address = |n: u32| format!("10.{}.{}.{}:80", 1 + (n >> 16), n >> 8 & 255, n & 255);
    let addresses: Vec<String> = (0..endpoints).map(address).collect();
    let mut state = mk_state();
    if endpoints > 0 {
        state = state.service("evil/large", |large| {
            let large = large.cluster_ip("10.96.0.66").external_ip("198.18.0.66").affinity(60);
            let large = (0..600).fold(large.load_balancer_ip("203.0.113.1"), |large, n| {
                large.source_range(&format!("10.{}.{}.0/25", n / 250, n % 250))
            });
            large.endpoints(addresses.iter().map(String::as_str))
        });
    }
    let own: Vec<String> = (0..bystander).map(address).collect();
    state.service("shop/web", |web| web.cluster_ip("10.96.0.1").endpoints(own.iter().map(String::as_str))).build()
}

/// A service port with many endpoints and source ranges is programmed by several scripts; the next process continues.
#[test]
fn a_change_of_another_namespace_does_not_wait_for_a_large_service_port() {
    for (variant, endpoints, script_lines) in [(Variant::Nft, 900, 1_000), (Variant::Legacy, 3_000, 4_000)] {
        run(move || async move {
            let mut current = attack(0, 1);
            let mut first = backend(variant);
            first.reconcile_all(&current).await.unwrap();
            let changes = transition(&mut current, &attack(endpoints, 1));
            let mut report = first.apply(&current, &changes).await.unwrap();
            let shop = mk_key("shop/web");
            for bystander in 2..4 {
                let changes = transition(&mut current, &attack(endpoints, bystander));
                report = first.apply(&current, &changes).await.unwrap();
                if report.unfinished.as_ref().is_some_and(|unfinished| unfinished.contains(&shop)) {
                    report = first.apply(&current, &Changes::default()).await.unwrap();
                }
                assert!(report.writes <= script_lines, "{variant}: {} writes", report.writes);
                let unfinished = report.unfinished.clone().unwrap_or_default();
                assert!(!unfinished.contains(&shop), "{variant}: another namespace waits for more than two scripts");
            }
            assert!(report.unfinished.is_some_and(|unfinished| unfinished.contains(&mk_key("evil/large"))));
            drop(first);

            let mut second = backend(variant);
            let report = second.reconcile_all(&current).await.unwrap();
            assert_eq!(report.failures, []);
            assert!(report.writes > 0, "{variant}");
            assert_eq!(reconcile(variant, &current).await.writes, 0);
            // A part of its endpoints, then none.
            for endpoints in [endpoints - 1, endpoints / 2, 0] {
                let changes = transition(&mut current, &attack(endpoints, 1));
                assert_eq!(second.apply_all(&current, &changes).await.unwrap().failures, []);
                assert_eq!(reconcile(variant, &current).await.writes, 0);
            }
        });
    }
}
