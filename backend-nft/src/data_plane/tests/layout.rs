//! Tables of another layout are replaced without a large transaction, and without an interruption.

use backend::{
    Backend as _, Changes, SyncReport,
    driver::MAX_TRANSACTION_WRITES,
    testing::{ProgramAll as _, Stack, synthetic, transition},
};

use super::*;

const BUDGET: usize = 1_000;
/// More elements than one transaction has.
const EACH: u32 = 100;

async fn next(driver: &mut FakeDriver, state: &NodeState) -> SyncReport {
    driver.apply(state, &Changes::default()).await.unwrap()
}

fn assert_replaced(kernel: &Fake, intact: &Fake) {
    assert!(!kernel.has_others());
    parts::assert_equal_pools(kernel, intact);
}

/// All VIPs are served after each transaction since the last call.
#[track_caller]
fn assert_served(kernel: &Fake, vips: u32) {
    let steps = kernel.vips_by_transaction();
    assert!(steps.iter().all(|step| step.len() == vips as usize), "{:?}", steps.iter().map(|step| step.len()));
    let written = kernel.written_elements();
    assert!(written.iter().all(|elements| *elements <= BUDGET + 6), "{written:?}");
}

#[tokio::test]
async fn a_large_table_is_replaced_by_slices_while_the_old_one_serves() {
    let (kernel, state) = (Fake::default(), synthetic(50, EACH, Stack::Dual));
    parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap();
    let (intact, elements) = (Fake::default(), kernel.element_counts().values().sum::<usize>());
    parts::in_batches_of(BUDGET, &intact).reconcile_all(&state).await.unwrap();
    kernel.change_layout("fairlead");
    kernel.vips_by_transaction();
    kernel.written_elements();
    kernel.record_reachable();
    let mut driver = parts::in_batches_of(BUDGET, &kernel);
    let applied = driver.reconcile_all(&state).await.unwrap();
    assert!((elements..elements + 200).contains(&applied.writes) && applied.failures.is_empty(), "{applied:?}");
    assert_served(&kernel, 100);
    parts::assert_no_wrong_endpoint([&state, &state], &kernel);
    assert_replaced(&kernel, &intact);
    assert_eq!(parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap().writes, 0);

    // Later changes are programmed as usual.
    let mut state = state;
    let changes = transition(&mut state, &synthetic(49, EACH, Stack::Dual));
    assert!(driver.apply_all(&state, &changes).await.unwrap().writes < 3 * EACH as usize);
}

#[tokio::test]
async fn a_restart_between_two_slices_continues() {
    let (kernel, state) = (Fake::default(), synthetic(100, EACH, Stack::V4));
    parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap();
    let intact = Fake::default();
    parts::in_batches_of(BUDGET, &intact).reconcile_all(&state).await.unwrap();
    for calls in 0.. {
        kernel.change_layout("fairlead");
        kernel.vips_by_transaction();
        kernel.written_elements();
        let mut driver = parts::in_batches_of(BUDGET, &kernel);
        let mut report = driver.reconcile(&state).await.unwrap();
        for _ in 0..calls {
            report = next(&mut driver, &state).await;
        }
        if report.unfinished.is_none() {
            assert!(calls > 8, "{calls}");
            break;
        }
        assert_eq!(report.unfinished.map(|keys| keys.len()), Some(100), "the other table serves, after {calls} calls");
        let applied = parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap();
        assert_eq!(applied.failures, [], "after {calls} calls");
        assert_served(&kernel, 100);
        assert_replaced(&kernel, &intact);
    }
}

/// Changes that arrive meanwhile are in the tables that serve at the end.
#[tokio::test]
async fn changes_during_a_replacement_are_programmed() {
    let (kernel, mut state) = (Fake::default(), synthetic(100, EACH, Stack::V4));
    parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap();
    kernel.change_layout("fairlead");
    let mut driver = parts::in_batches_of(BUDGET, &kernel);
    let mut report = driver.reconcile(&state).await.unwrap();
    for services in (80..100).rev() {
        let changes = transition(&mut state, &synthetic(services, EACH, Stack::V4));
        report = driver.apply(&state, &changes).await.unwrap();
    }
    driver.finish(&state, report).await.unwrap();
    let intact = Fake::default();
    parts::in_batches_of(BUDGET, &intact).reconcile_all(&state).await.unwrap();
    assert_replaced(&kernel, &intact);
}

#[tokio::test]
async fn a_small_table_is_replaced_in_one_transaction() {
    let (kernel, state) = (Fake::default(), synthetic(100, 10, Stack::V4));
    driver(&kernel).reconcile_all(&state).await.unwrap();
    let intact = Fake::default();
    driver(&intact).reconcile_all(&state).await.unwrap();
    kernel.change_layout("fairlead");
    kernel.transactions();
    driver(&kernel).reconcile_all(&state).await.unwrap();
    assert_eq!(kernel.transactions(), 1);
    assert!(kernel.written_elements().iter().all(|elements| *elements <= MAX_TRANSACTION_WRITES));
    assert_replaced(&kernel, &intact);
}

/// Those of earlier versions, also such that were interrupted while they replaced a table, and those of later ones.
#[tokio::test]
async fn tables_of_all_layouts_are_replaced() {
    for name in ["fairlead", "fairlead-standby", "fairlead2", "fairlead10"] {
        let (kernel, state) = (Fake::default(), synthetic(10, 10, Stack::Dual));
        driver(&kernel).reconcile_all(&state).await.unwrap();
        kernel.change_layout(name);
        let mut upgraded = driver(&kernel);
        assert!(upgraded.is_programmed().await.unwrap());
        upgraded.reconcile_all(&state).await.unwrap();
        assert!(!kernel.has_others(), "{name}");
    }
}

/// Nothing is left of a table that another process has altered, and no transaction is large.
#[tokio::test]
async fn a_table_that_was_altered_is_built_again() {
    for (services, transactions) in [(50, 1..=1), (100, 10..=15)] {
        let (kernel, state) = (Fake::default(), synthetic(services, EACH, Stack::V4));
        let intact = Fake::default();
        parts::in_batches_of(BUDGET, &intact).reconcile_all(&state).await.unwrap();
        parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap();
        kernel.change_layout(backend::NFT_TABLE);
        kernel.transactions();
        parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap();
        assert_replaced(&kernel, &intact);
        assert!(transactions.contains(&kernel.transactions()), "{services}");
    }
}
