//! Large differences: several transactions have the result of one, urgent service ports come first, nothing is
//! interrupted.

use std::{collections::BTreeSet, net::IpAddr};

use backend::{
    NodeState,
    dataplane::{DataplaneOptions, Vip, vips},
    driver::Driver,
    testing::{ErrorDetail, History, ProgramAll as _, Stack, mk_state, operations_between, synthetic},
};
use proptest::prelude::*;
use proto::model::{IpFamily, PerFamily, Protocol, ServicePort};

use crate::{
    batch_sizer::BatchSizer,
    data_plane::NftDataPlane,
    fake_driver::FakeDriver,
    kernel::fake::{Fake, FakeTable},
};

fn driver(kernel: &Fake) -> FakeDriver {
    kernel.driver(DataplaneOptions::default())
}

pub(super) fn in_batches_of(elements: usize, kernel: &Fake) -> FakeDriver {
    let data_plane = NftDataPlane::new(kernel.clone(), DataplaneOptions::default());
    Driver::new(data_plane.with_batch_sizer(BatchSizer::of(elements)))
}

fn vip(address: u32) -> Vip {
    Vip::AddressPort { address: std::net::Ipv4Addr::from(address).into(), port: 80, protocol: Protocol::Tcp }
}

/// The services of [`synthetic`], and urgent ones.
fn large(services: u32) -> NodeState {
    let mut state = synthetic(services, 3, Stack::V4);
    let urgent = mk_state()
        .service("default/kubernetes", |api| api.port(443).cluster_ip("10.200.0.1").endpoints(["10.0.0.1:6443"]))
        .service("kube-system/kube-dns/udp", |dns| {
            dns.port(53).cluster_ip("10.200.0.10").endpoints(["10.0.0.2:53", "10.0.0.3:53"])
        })
        .build();
    let node = NodeState::new(state.node().clone());
    backend::testing::apply(&mut state, operations_between(&node, &urgent));
    state
}

/// Whether two kernels have the same elements, except for which endpoint has which slot of its pool: two service ports
/// that exchange VIPs in several transactions give up their pools in between, and their slots with them.
pub(super) fn assert_equal_pools(one: &Fake, other: &Fake) {
    let (shapes, other_shapes) = (one.tables(), other.tables());
    for family in IpFamily::ALL {
        let shape = |tables: &PerFamily<Option<FakeTable>>| tables[family].as_ref().map(FakeTable::shape);
        assert_eq!(shape(&shapes), shape(&other_shapes));
    }
    assert_eq!(one.element_counts(), other.element_counts());
}

/// The endpoints of the service ports that have a VIP in one of two states.
fn allowed(states: [&NodeState; 2], vip: &Vip) -> BTreeSet<(IpAddr, u16)> {
    let has_vip = |port: &ServicePort| {
        IpFamily::ALL.into_iter().any(|family| vips(port, family).iter().any(|(claimed, _)| claimed == vip))
    };
    let service_ports = states.into_iter().flat_map(|state| state.service_ports().values());
    let keys: BTreeSet<_> = service_ports.filter(|it| has_vip(&it.port)).map(|it| &it.port.key).collect();
    let of_key = |key| states.into_iter().filter_map(move |state| state.service_port(key));
    let pools = keys.into_iter().flat_map(of_key).flat_map(|it| [&it.cluster, &it.local]);
    let endpoints = pools.flat_map(|pool| pool.v4.iter().chain(pool.v6.iter()));
    endpoints.map(|endpoint| (endpoint.address, endpoint.port.get())).collect()
}

/// After each transaction, packets reach only endpoints of service ports that have the VIP before or after the change.
pub(super) fn assert_no_wrong_endpoint(states: [&NodeState; 2], kernel: &Fake) {
    for (number, step) in kernel.reachable().into_iter().enumerate() {
        for (vip, endpoints) in step {
            let allowed = allowed(states, &vip);
            let wrong: Vec<_> = endpoints.difference(&allowed).collect();
            assert!(wrong.is_empty(), "transaction {number}: {vip} leads to {wrong:?}, not {allowed:?}");
        }
    }
}

/// Applies the same changes in one transaction each to one kernel, in several to the other.
async fn compare(seed: u64, elements: usize) {
    let (whole, parts) = (Fake::default(), Fake::default());
    parts.record_reachable();
    let mut history = History::new(seed);
    for _ in 0..4 {
        let before = history.state().clone();
        history.jump();
        let (mut in_one, mut in_batches) = (driver(&whole), in_batches_of(elements, &parts));
        in_one.reconcile_all(history.state()).await.unwrap();
        let applied = in_batches.reconcile_all(history.state()).await.unwrap();
        assert_eq!(applied.failures, []);
        assert_no_wrong_endpoint([&before, history.state()], &parts);
        assert_equal_pools(&parts, &whole);
        let before = history.state().clone();
        let changes = history.step();
        in_one.apply_all(history.state(), &changes).await.unwrap();
        in_batches.apply_all(history.state(), &changes).await.unwrap();
        assert_equal_pools(&parts, &whole);
        assert_no_wrong_endpoint([&before, history.state()], &parts);
        assert_eq!(driver(&parts).reconcile_all(history.state()).await.unwrap().writes, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn several_transactions_have_the_result_of_one(seed in any::<u64>(), elements in 1..40_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(compare(seed, elements));
    }
}

/// In this history two Services exchange their cluster IPs.
#[tokio::test]
async fn exchanged_cluster_ips_have_the_same_pools_after_several_transactions() {
    compare(4_458_318_524_220_469_949, 1).await;
}

#[tokio::test]
async fn a_small_difference_is_one_transaction_and_no_difference_is_none() {
    let kernel = Fake::default();
    let mut state = large(4_000);
    driver(&kernel).reconcile_all(&state).await.unwrap();
    assert!(kernel.transactions() > 2);
    assert_eq!(driver(&kernel).reconcile_all(&state).await.unwrap().writes, 0);
    assert_eq!(kernel.transactions(), 0);
    let target = large(3_990);
    backend::testing::transition(&mut state, &target);
    driver(&kernel).reconcile_all(&state).await.unwrap();
    assert_eq!(kernel.transactions(), 1);
}

#[tokio::test]
async fn the_api_and_dns_come_first() {
    let kernel = Fake::default();
    driver(&kernel).reconcile_all(&large(4_000)).await.unwrap();
    let steps = kernel.vips_by_transaction();
    let urgent = [
        Vip::AddressPort { address: [10, 200, 0, 1].into(), port: 443, protocol: Protocol::Tcp },
        Vip::AddressPort { address: [10, 200, 0, 10].into(), port: 53, protocol: Protocol::Udp },
    ];
    assert_eq!(steps[0], BTreeSet::from(urgent));
    assert!(steps.is_sorted_by_key(BTreeSet::len) && steps.len() > 2);
    assert_eq!(steps.last().unwrap().len(), 4_002);
}

/// For a new chain the kernel checks all elements of the maps.
#[tokio::test]
async fn all_chains_are_added_before_the_maps_are_full() {
    let kernel = Fake::default();
    let state = (1..=90).fold(mk_state(), |state, n| {
        let endpoints: Vec<String> = (1..=n).map(|last| format!("10.0.{n}.{last}:80")).collect();
        state.service(&format!("default/svc-{n:02}"), |service| {
            service.cluster_ip(&format!("10.96.0.{n}")).endpoints(endpoints.iter().map(String::as_str))
        })
    });
    in_batches_of(10, &kernel).reconcile_all(&state.build()).await.unwrap();
    let added = kernel.added_chains();
    assert!(added.len() > 20 && added[0] > 90 && added[1..].iter().all(|count| *count == 0), "{added:?}");
}

/// A VIP that exists before and after exists in between.
#[tokio::test]
async fn vips_that_stay_are_always_programmed() {
    for seed in 0..20 {
        let (kernel, mut history) = (Fake::default(), History::new(seed));
        history.jump();
        driver(&kernel).reconcile_all(history.state()).await.unwrap();
        for elements in [1, 5, 20] {
            let before = kernel.vips_by_transaction().pop().unwrap_or_default();
            history.jump();
            in_batches_of(elements, &kernel).reconcile_all(history.state()).await.unwrap();
            let steps = kernel.vips_by_transaction();
            let Some(after) = steps.last() else { continue };
            let kept: BTreeSet<Vip> = before.intersection(after).copied().collect();
            assert!(steps.iter().all(|step| step.is_superset(&kept)), "seed {seed}: {steps:#?}");
        }
    }
}

/// The other service ports of the batch and all other batches are committed.
#[tokio::test]
async fn a_rejection_does_not_affect_other_batches() {
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = Fake::default();
        let (bad, worse) = (vip(0x0a60_0001 + 700), vip(0x0a60_0001));
        kernel.reject([bad, worse], detail);
        let mut driver = in_batches_of(500, &kernel);
        let applied = driver.reconcile_all(&large(1_000)).await.unwrap();
        let failures: Vec<&str> = applied.failures.iter().map(|failure| &*failure.key.name).collect();
        assert_eq!(failures, ["svc-0", "svc-700"], "{detail:?}");
        let steps = kernel.vips_by_transaction();
        assert_eq!(steps.last().unwrap().len(), 1_000, "{detail:?}");

        kernel.reject([], detail);
        let applied = driver.reconcile_all(&large(1_000)).await.unwrap();
        assert_eq!((applied.failures, applied.writes), (vec![], 2 * (3 + 1 + 1)));
    }
}

#[tokio::test]
async fn a_rejected_urgent_service_port_does_not_delay_the_others() {
    for detail in [ErrorDetail::Named, ErrorDetail::Unnamed] {
        let kernel = Fake::default();
        kernel
            .reject([Vip::AddressPort { address: [10, 200, 0, 1].into(), port: 443, protocol: Protocol::Tcp }], detail);
        let applied = driver(&kernel).reconcile_all(&large(300)).await.unwrap();
        let failures: Vec<&str> = applied.failures.iter().map(|failure| &*failure.key.name).collect();
        assert_eq!(failures, ["kubernetes"], "{detail:?}");
        assert_eq!(kernel.vips_by_transaction().last().unwrap().len(), 301);
    }
}
