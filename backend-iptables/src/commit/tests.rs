//! A kernel that refuses, or breaks off: the others are programmed all the same, and what was not is tried again.

use backend::{
    Backend, NodeState,
    dataplane::DataplaneOptions,
    testing::{Stack, apply, mk_key, mk_state, operations_between, synthetic, transition},
};
use proto::model::Operation;

use crate::kernel::fake::{Explains, Fake, FakeDriver};

use super::*;

fn state(services: u8) -> NodeState {
    (1..=services).fold(mk_state(), |state, n| service(state, n, ["10.244.1.1:80", "10.244.1.2:80"])).build()
}

fn service(state: backend::testing::StateBuilder, n: u8, endpoints: [&str; 2]) -> backend::testing::StateBuilder {
    state.service(&format!("default/svc-{n:03}"), |service| {
        service.cluster_ip(&format!("10.96.0.{n}")).endpoints(endpoints)
    })
}

fn without(mut state: NodeState, keys: &[&str]) -> NodeState {
    apply(&mut state, keys.iter().map(|key| Operation::RemoveServicePort(mk_key(key))).collect::<Vec<_>>());
    state
}

fn driver(kernel: &Fake) -> FakeDriver {
    kernel.driver(DataplaneOptions::default())
}

/// What a kernel holds that was given nothing but this.
async fn shape(state: &NodeState) -> Vec<String> {
    let kernel = Fake::default();
    driver(&kernel).reconcile(state).await.unwrap();
    kernel.tables(IpFamily::V4).shape()
}

async fn failures(driver: &mut FakeDriver, state: &NodeState) -> Vec<String> {
    let applied = driver.reconcile(state).await.unwrap();
    assert!(applied.failures.iter().all(|failure| failure.retryable && failure.reason.contains("poisonous")));
    applied.failures.iter().map(|failure| failure.key.name.to_string()).collect()
}

#[tokio::test]
async fn the_culprit_is_left_out_and_named() {
    for (explains, most) in [(Explains::Yes, 4), (Explains::No, 40)] {
        let kernel = Fake::default();
        // The tools name the first line that they do not like, and go no further.
        kernel.refuse(["10.96.0.7/32", "10.96.0.90/32"], explains);
        let mut driver = driver(&kernel);
        assert_eq!(failures(&mut driver, &state(100)).await, ["svc-007", "svc-090"]);
        let asked = kernel.asked().len();
        assert!((3..=most).contains(&asked), "{explains:?}: {asked} scripts");

        // All others are in force, and stay so.
        let others = without(state(100), &["default/svc-007", "default/svc-090"]);
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&others).await);
        assert_eq!(driver.reconcile(&state(100)).await.unwrap().writes, 0);

        // When the kernel takes it, it is no failure any more.
        kernel.refuse([], explains);
        assert_eq!(failures(&mut driver, &state(100)).await, [""; 0]);
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&state(100)).await);
    }
}

#[tokio::test]
async fn a_refused_change_is_tried_again_when_it_is_touched() {
    for explains in [Explains::Yes, Explains::No] {
        let kernel = Fake::default();
        let mut driver = driver(&kernel);
        let mut current = state(3);
        driver.reconcile(&current).await.unwrap();
        kernel.refuse(["10.244.1.9:80", "10.96.0.9/32"], explains);

        // One cannot have its endpoint; the other one, which changes with it, has its own.
        let other = service(mk_state(), 1, ["10.244.1.1:80", "10.244.1.8:80"]);
        let target =
            service(service(other, 2, ["10.244.1.1:80", "10.244.1.9:80"]), 3, ["10.244.1.1:80", "10.244.1.2:80"]);
        let target = target.build();
        let changes = transition(&mut current, &target);
        let applied = driver.apply(&current, &changes).await.unwrap();
        let names: Vec<_> = applied.failures.iter().map(|failure| failure.key.name.as_ref()).collect();
        assert_eq!(names, ["svc-002"]);
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&without(target.clone(), &["default/svc-002"])).await);

        // A change of another one still reports it, and writes what it is.
        let fewer = without(target.clone(), &["default/svc-003"]);
        let changes = transition(&mut current, &fewer);
        assert_eq!(driver.apply(&current, &changes).await.unwrap().failures.len(), 1);
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&without(fewer, &["default/svc-002"])).await);

        // Touched, it is tried again.
        kernel.refuse([], explains);
        let changes = transition(&mut current, &without(state(2), &["default/svc-001"]));
        assert_eq!(driver.apply(&current, &changes).await.unwrap().failures, []);
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&current).await);
    }
}

/// Halving puts the others in force step by step: what was there meanwhile stays until it has ended.
#[tokio::test]
async fn what_was_there_stays_while_a_culprit_is_looked_for() {
    let kernel = Fake::default();
    driver(&kernel).reconcile(&state(20)).await.unwrap();
    kernel.asked();
    kernel.refuse(["10.96.0.25/32"], Explains::No);
    assert_eq!(failures(&mut driver(&kernel), &without(state(30), &["default/svc-001"])).await, ["svc-025"]);
    let asked = kernel.asked();
    let steps: Vec<_> = asked.iter().flat_map(|asked| &asked.steps).collect();
    for n in 2..=20 {
        let vip = format!("-d 10.96.0.{n}/32");
        let leads = |tables: &&&crate::kernel::fake::Tables| {
            tables.rules(iptables::Table::Nat, crate::names::SERVICES).iter().any(|line| line.contains(&vip))
        };
        assert_eq!(steps.iter().filter(leads).count(), steps.len(), "{vip}");
    }
}

#[tokio::test]
async fn too_many_refusals_are_something_else() {
    let kernel = Fake::default();
    kernel.refuse(["10.96.0."], Explains::No);
    assert!(driver(&kernel).reconcile(&state(200)).await.is_err());
}

/// The API server and DNS do not wait for thousands of others. One of them that is refused costs nobody else anything.
#[tokio::test]
async fn on_an_empty_node_the_urgent_ones_come_first() {
    let urgent = mk_state()
        .service("default/kubernetes", |api| api.cluster_ip("10.200.0.1").endpoints(["10.0.0.1:6443"]))
        .service("kube-system/kube-dns", |dns| dns.port(53).cluster_ip("10.200.0.10").endpoints(["10.244.0.2:53"]));
    let mut all = synthetic(MANY as u32, 2, Stack::V4);
    apply(&mut all, operations_between(&mk_state().build(), &urgent.build()));
    for poison in [None, Some("10.200.0.10/32")] {
        let kernel = Fake::default();
        kernel.refuse(poison, Explains::Yes);
        let applied = driver(&kernel).reconcile(&all).await.unwrap();
        assert_eq!(applied.failures.len(), usize::from(poison.is_some()));
        let asked = kernel.asked();
        let urgent = |script: &str| {
            ["10.200.0.1/32", "10.200.0.10/32"].map(|vip| script.contains(&format!("-d {vip} "))) == [true; 2]
                && script.lines().count() < 100
        };
        assert!(urgent(&asked[0].script), "{}", asked[0].script);
        assert_eq!(asked[0].accepted, poison.is_none());
        let dns = poison.map(|_| "kube-system/kube-dns");
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&without(all.clone(), dns.as_slice())).await);

        // On a node that has something nothing comes first.
        driver(&kernel).reconcile(&all).await.unwrap();
        assert!(kernel.asked().len() <= 2);
    }
}

/// Nobody is to blame for what all need.
#[tokio::test]
async fn what_belongs_to_no_service_port_is_an_error() {
    for explains in [Explains::Yes, Explains::No] {
        let kernel = Fake::default();
        kernel.refuse(["kubernetes postrouting rules"], explains);
        let error = format!("{:#}", driver(&kernel).reconcile(&state(3)).await.unwrap_err());
        assert!(error.contains("the kernel rejected the base ruleset"), "{error}");
        // It stops at once: no service port is tried.
        assert!(kernel.asked().len() <= 2);
    }
}

/// After a failure nobody knows what is there: it is looked at, and what is missing is written.
#[tokio::test]
async fn a_failure_leads_to_a_look_at_everything() {
    for parts in [0, 1] {
        let kernel = Fake::default();
        let mut driver = driver(&kernel);
        let mut current = state(3);
        driver.reconcile(&current).await.unwrap();
        kernel.die_after(parts);
        let changes = transition(&mut current, &state(4));
        let error = driver.apply(&current, &changes).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "a signal has ended it");
        assert_ne!(kernel.tables(IpFamily::V4).shape(), shape(&state(4)).await);

        // The next change is no less, even when it is one of something else.
        let changes = transition(&mut current, &without(state(4), &["default/svc-001"]));
        driver.apply(&current, &changes).await.unwrap();
        assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&current).await);
    }
}

/// Who has removed our rules makes the next change one that the kernel does not take.
#[tokio::test]
async fn a_change_that_does_not_fit_leads_to_a_look_at_everything() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut current = state(3);
    driver.reconcile(&current).await.unwrap();
    kernel.stranger(IpFamily::V4, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
    let changes = transition(&mut current, &without(state(3), &["default/svc-001"]));
    assert_eq!(driver.apply(&current, &changes).await.unwrap().failures, []);
    assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&current).await);
}

#[tokio::test]
async fn a_restart_writes_nothing() {
    let kernel = Fake::default();
    assert_ne!(driver(&kernel).reconcile(&state(9)).await.unwrap().writes, 0);
    kernel.asked();
    assert_eq!(driver(&kernel).reconcile(&state(9)).await.unwrap().writes, 0);
    assert_eq!(kernel.asked(), []);
}

#[tokio::test]
async fn a_family_without_iptables_is_left_out() {
    let both = mk_state().service("default/web", |web| {
        let web = web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1");
        web.endpoints(["10.244.1.1:80", "[fd00:244::1]:80"])
    });
    let (both, kernel) = (both.build(), Fake::default());
    kernel.uninstall(IpFamily::V6);
    let mut driver = driver(&kernel);
    let mut current = both.clone();
    driver.reconcile(&current).await.unwrap();
    assert_eq!(kernel.tables(IpFamily::V4).shape(), shape(&both).await);
    let changes = transition(&mut current, &without(both, &["default/web"]));
    driver.apply(&current, &changes).await.unwrap();
    assert!(kernel.asked().iter().all(|asked| asked.family == IpFamily::V4));

    kernel.uninstall(IpFamily::V4);
    let error = driver.reconcile(&current).await.unwrap_err();
    assert_eq!(error.to_string(), "iptables is not installed");
}
