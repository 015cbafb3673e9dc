//! What a sync computes is proportional to what it changes.

use backend::{
    Backend as _, Changes,
    testing::{ProgramAll as _, Stack, synthetic, transition},
};

use super::*;
use crate::desired::work::{self, Work};

const SERVICES: u32 = 3_000;
const EACH: u32 = 10;
/// Endpoints and a verdict for each service; and an element for its cluster IP, which is shared.
const ELEMENTS: usize = (SERVICES * (EACH + 1)) as usize;

#[tokio::test]
async fn each_service_port_is_computed_once_in_a_reconcile() {
    let (kernel, state) = (Fake::default(), synthetic(SERVICES, EACH, Stack::V4));
    work::take();
    let written = driver(&kernel).reconcile_all(&state).await.unwrap().writes;
    assert!(written > ELEMENTS + SERVICES as usize);
    assert!(kernel.transactions() > 4);
    assert_eq!(work::take(), Work { service_ports: 2 * SERVICES as usize, elements: ELEMENTS }, "cold start");

    assert_eq!(driver(&kernel).reconcile_all(&state).await.unwrap().writes, 0);
    assert_eq!(work::take(), Work { service_ports: 2 * SERVICES as usize, elements: ELEMENTS }, "restart");
}

#[tokio::test]
async fn a_change_after_a_restart_computes_what_has_changed() {
    let (kernel, mut state) = (Fake::default(), synthetic(SERVICES, EACH, Stack::V4));
    driver(&kernel).reconcile_all(&state).await.unwrap();
    let mut driver = driver(&kernel);
    driver.reconcile_all(&state).await.unwrap();
    work::take();
    let changes = transition(&mut state, &synthetic(SERVICES - 1, EACH, Stack::V4));
    driver.apply_all(&state, &changes).await.unwrap();
    let Work { service_ports, elements } = work::take();
    assert!(service_ports <= 2 && elements <= EACH as usize + 1, "{service_ports} {elements}");
}

/// Its elements are computed once, for its size and all transactions.
#[tokio::test]
async fn a_large_service_port_is_computed_once_for_all_of_its_transactions() {
    let kernel = Fake::default();
    let mut driver = parts::in_batches_of(500, &kernel);
    let state = |endpoints: u32| synthetic(1, endpoints, Stack::V4);
    let mut current = state(1);
    driver.reconcile_all(&current).await.unwrap();
    work::take();
    let changes = transition(&mut current, &state(20_000));
    let mut report = driver.apply(&current, &changes).await.unwrap();
    while report.unfinished.is_some() {
        report = driver.apply(&current, &Changes::default()).await.unwrap();
    }
    assert!(kernel.transactions() >= 40);
    let Work { service_ports, elements } = work::take();
    assert!(service_ports <= 2 && elements <= 20_100, "{service_ports} {elements}");
}
