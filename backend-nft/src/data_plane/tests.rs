//! A kernel that rejects service ports: the others are programmed.

mod kernel;
mod large;
mod layout;
mod parts;
mod work;

use std::time::Duration;

use backend::{
    Backend as _, Drift, NodeState,
    dataplane::{DataplaneOptions, Vip},
    testing::{ErrorDetail, ProgramAll as _, mk_state, rejected_by_test, transition},
};
use proto::model::{IpFamily, Protocol};

use crate::{fake_driver::FakeDriver, kernel::fake::Fake};

fn state(services: u8) -> NodeState {
    (1..=services)
        .fold(mk_state(), |state, n| {
            state.service(&format!("default/svc-{n:03}"), |service| {
                service.cluster_ip(&format!("10.96.0.{n}")).endpoints(["10.244.1.1:80", "10.244.1.2:80"])
            })
        })
        .build()
}

fn vip(n: u8) -> Vip {
    Vip::AddressPort { address: [10, 96, 0, n].into(), port: 80, protocol: Protocol::Tcp }
}

fn driver(kernel: &Fake) -> FakeDriver {
    kernel.driver(DataplaneOptions::default())
}

/// The kernel lacks a family: the other one is programmed, and both once it has them.
#[tokio::test(start_paused = true)]
async fn unsupported_family_is_left_out_until_the_kernel_supports_it() {
    let both = mk_state().service("default/web", |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1");
        web.endpoints(["10.244.1.1:80", "[fd00:244::1]:80"])
    });
    let state = both.build();
    let reference = Fake::default();
    driver_on(&reference, &state).await;
    for (family, other) in [(IpFamily::V4, IpFamily::V6), (IpFamily::V6, IpFamily::V4)] {
        let kernel = Fake::default();
        kernel.set_unsupported(Some(family));
        let mut driver = driver(&kernel);
        // It may be for another reason, so it is tried twice.
        driver.reconcile_all(&state).await.unwrap_err();
        let report = driver.reconcile_all(&state).await.unwrap();
        assert_eq!(report.failures, []);
        assert_eq!(report.unusable_families, [(family, "operation not supported".to_owned())]);
        assert_eq!(kernel.tables()[other], reference.tables()[other]);
        assert_eq!(kernel.tables()[family], None);
        // Changes and reconciles do not try it again.
        let mut changed = state.clone();
        let changes = transition(&mut changed, &without(state.clone(), "default/web"));
        driver.apply_all(&changed, &changes).await.unwrap();
        driver.reconcile_all(&state).await.unwrap();
        assert_eq!(kernel.tables()[family], None);

        kernel.set_unsupported(None);
        assert_eq!(driver.drifted().await, Drift::Outdated);
        let report = driver.reconcile_all(&state).await.unwrap();
        assert_eq!((report.unusable_families, kernel.tables()), (vec![], reference.tables()));
        let drifted = tokio::time::timeout(Duration::from_secs(3600), driver.drifted()).await;
        drifted.unwrap_err();
    }
}

#[tokio::test]
async fn rejected_service_ports_are_left_out_and_reported() {
    for (detail, most) in [(ErrorDetail::Named, 3), (ErrorDetail::Unnamed, 45)] {
        let kernel = Fake::default();
        kernel.reject([vip(7), vip(90)], detail);
        let mut driver = driver(&kernel);
        assert_eq!(rejected_by_test(&mut driver, &state(100)).await, ["svc-007", "svc-090"]);
        let transactions = kernel.transactions();
        assert!((2..=most).contains(&transactions), "{detail:?}: {transactions} transactions");

        // All others are programmed, and stay so.
        let (mut others, rest) = (state(100), Fake::default());
        for key in ["default/svc-007", "default/svc-090"] {
            others = without(others, key);
        }
        driver_on(&rest, &others).await;
        assert_eq!(kernel.tables(), rest.tables());
        assert_eq!(driver.reconcile_all(&state(100)).await.unwrap().writes, 0);

        // Once the kernel accepts them there are no failures.
        kernel.reject([], detail);
        let applied = driver.reconcile_all(&state(100)).await.unwrap();
        assert_eq!(applied.failures, []);
        // Each has two endpoints, a verdict and its cluster IP.
        assert_eq!(applied.writes, 2 * 4);
    }
}

#[tokio::test]
async fn a_rejected_service_port_is_retried_when_it_changes() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut current = state(3);
    driver.reconcile_all(&current).await.unwrap();
    kernel.reject([vip(2)], ErrorDetail::Named);

    let target = mk_state()
        .service("default/svc-001", |service| service.cluster_ip("10.96.0.1").endpoints(["10.244.1.9:80"]))
        .service("default/svc-002", |service| service.cluster_ip("10.96.0.2").endpoints(["10.244.1.9:80"]))
        .service("default/svc-003", |service| {
            service.cluster_ip("10.96.0.3").endpoints(["10.244.1.1:80", "10.244.1.2:80"])
        })
        .build();
    let changes = transition(&mut current, &target);
    let applied = driver.apply_all(&current, &changes).await.unwrap();
    assert_eq!(applied.failures.len(), 1);
    assert_eq!(applied.failures[0].key.name.as_ref(), "svc-002");

    // A change of another service port still reports it; its own removal removes its earlier form.
    let changes = transition(&mut current, &without(target.clone(), "default/svc-003"));
    assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures.len(), 1);
    let target = without(current.clone(), "default/svc-002");
    let changes = transition(&mut current, &target);
    assert_eq!(driver.apply_all(&current, &changes).await.unwrap().failures, []);
    let fresh = Fake::default();
    driver_on(&fresh, &target).await;
    assert_eq!(kernel.tables(), fresh.tables());
}

#[tokio::test]
async fn any_number_of_service_ports_may_be_rejected() {
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = Fake::default();
        kernel.reject((1..=200).map(vip), detail);
        let mut driver = driver(&kernel);
        assert_eq!(rejected_by_test(&mut driver, &state(250)).await.len(), 200);
        assert_eq!(kernel.vips_by_transaction().last().unwrap().len(), 50);
    }
}

async fn driver_on(kernel: &Fake, state: &NodeState) {
    driver(kernel).reconcile_all(state).await.unwrap();
}

fn without(mut state: NodeState, key: &str) -> NodeState {
    use backend::testing::{apply, mk_key};
    use proto::model::Operation;

    apply(&mut state, [Operation::RemoveServicePort(mk_key(key))]);
    state
}

#[tokio::test]
async fn tables_that_nobody_else_has_changed_are_not_listed_again() {
    let (kernel, mut current) = (Fake::default(), state(3));
    let mut driver = driver(&kernel);
    driver.reconcile_all(&current).await.unwrap();
    let changes = transition(&mut current, &state(5));
    driver.apply_all(&current, &changes).await.unwrap();
    assert_eq!(driver.reconcile_all(&current).await.unwrap().writes, 0);
    assert_eq!(kernel.lists(), 1);
    // Changes of others are found and repaired.
    assert!(kernel.remove_any(7));
    assert_eq!(driver.reconcile_all(&current).await.unwrap().writes, 1);
    assert_eq!(kernel.lists(), 2);
    kernel.driver(DataplaneOptions::default()).reconcile_all(&state(4)).await.unwrap();
    assert!(driver.reconcile_all(&current).await.unwrap().writes > 0);
    assert_eq!((kernel.lists(), driver.reconcile_all(&current).await.unwrap().writes), (4, 0));
}
