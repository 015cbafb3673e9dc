//! The contract of a [`Backend`], independent of its kernel objects: a fresh instance, which knows the kernel only by
//! reading it, must find nothing to write.
//!
//! Each check takes a factory of instances that share one kernel (one network namespace), like successive processes on
//! a node. The kernel may contain anything at first.

use super::{History, ProgramAll as _};
use crate::{Backend, NodeState, SyncReport};

/// Runs all checks with random states from `seed`.
pub async fn check_all<B: Backend>(mut make: impl FnMut() -> B, seed: u64) {
    empty_state(&mut make).await;
    apply_equals_reconcile(&mut make, seed, 40).await;
    reconcile_works_from_any_state(&mut make, seed, 10).await;
    cleanup_removes_everything(&mut make, seed).await;
}

/// A state without service ports can be programmed.
pub async fn empty_state<B: Backend>(mut make: impl FnMut() -> B) {
    let history = History::new(0);
    reconcile(&mut make(), history.state(), "empty state").await;
    assert_programmed(&mut make, history.state(), "empty state").await;
}

/// After each commit of a random history, `apply` leaves the kernel as `reconcile` would.
pub async fn apply_equals_reconcile<B: Backend>(mut make: impl FnMut() -> B, seed: u64, steps: usize) {
    let mut history = History::new(seed);
    history.jump();
    let mut backend = make();
    reconcile(&mut backend, history.state(), &format!("seed {seed}, begin")).await;
    for step in 0..steps {
        let changes = history.step();
        let at = format!("seed {seed}, step {step}, {changes:?}");
        let applied = backend.apply_all(history.state(), &changes).await;
        check(applied.unwrap_or_else(|error| panic!("{at}: apply: {error:#}")), &at);
        assert_programmed(&mut make, history.state(), &at).await;
    }
}

/// `reconcile` leads from any state to any other, in the same process and after a restart.
pub async fn reconcile_works_from_any_state<B: Backend>(mut make: impl FnMut() -> B, seed: u64, states: usize) {
    let (mut history, mut backend) = (History::new(seed), make());
    for state in 0..states {
        history.jump();
        let at = format!("seed {seed}, state {state}");
        if state % 2 == 0 {
            backend = make();
        }
        reconcile(&mut backend, history.state(), &at).await;
        let again = reconcile(&mut backend, history.state(), &at).await;
        assert_eq!(again.writes, 0, "{at}: a second reconcile had to write");
        assert_programmed(&mut make, history.state(), &at).await;
    }
}

/// `cleanup` may be called at any time, and a reconcile restores what it removed. A fresh instance notices both.
pub async fn cleanup_removes_everything<B: Backend>(mut make: impl FnMut() -> B, seed: u64) {
    let mut history = History::new(seed);
    history.jump();
    let mut backend = make();
    reconcile(&mut backend, history.state(), "before cleanup").await;
    assert!(is_programmed(&mut make()).await, "a fresh instance takes the kernel for empty");
    for round in 0..2 {
        backend.cleanup().await.unwrap_or_else(|error| panic!("cleanup, round {round}: {error:#}"));
    }
    assert!(!is_programmed(&mut make()).await, "a fresh instance does not notice the cleanup");
    let restored = reconcile(&mut backend, history.state(), "after cleanup").await;
    assert_ne!(restored.writes, 0, "cleanup removed nothing");
    assert_programmed(&mut make, history.state(), "after cleanup").await;
    make().cleanup().await.expect("cleanup by a fresh instance");
    make().cleanup().await.expect("cleanup of an empty kernel");
}

async fn is_programmed<B: Backend>(backend: &mut B) -> bool {
    backend.is_programmed().await.unwrap_or_else(|error| panic!("is it programmed: {error:#}"))
}

/// A fresh instance finds nothing to write.
async fn assert_programmed<B: Backend>(make: &mut impl FnMut() -> B, state: &NodeState, at: &str) {
    let applied = reconcile(&mut make(), state, at).await;
    assert_eq!(applied.writes, 0, "{at}: a fresh instance had to write");
}

async fn reconcile<B: Backend>(backend: &mut B, state: &NodeState, at: &str) -> SyncReport {
    let applied = backend.reconcile_all(state).await;
    check(applied.unwrap_or_else(|error| panic!("{at}: reconcile: {error:#}")), at)
}

fn check(applied: SyncReport, at: &str) -> SyncReport {
    assert_eq!(applied.failures, [], "{at}");
    applied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeKernel;

    #[tokio::test]
    async fn fake_fulfils_the_contract() {
        for seed in 0..20 {
            let kernel = FakeKernel::default();
            check_all(|| kernel.backend(), seed).await;
        }
    }

    #[tokio::test]
    #[should_panic(expected = "a fresh instance had to write")]
    async fn backend_that_loses_a_service_port_fails_the_contract() {
        let mut history = History::new(1);
        while history.state().service_ports().is_empty() {
            history.step();
        }
        let kernel = FakeKernel::default();
        reconcile(&mut kernel.backend(), history.state(), "begin").await;
        kernel.lose(history.state().service_ports().keys().next().unwrap());
        assert_programmed(&mut || kernel.backend(), history.state(), "later").await;
    }
}
