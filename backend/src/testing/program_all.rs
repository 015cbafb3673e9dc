//! Calls a backend until everything is programmed.

use anyhow::Result;
use proto::model::ServicePortFailure;

use crate::{Backend, Changes, NodeState, SyncReport};

/// Extends every [`Backend`].
#[allow(async_fn_in_trait, reason = "for tests, which need no Send")]
pub trait ProgramAll: Backend {
    /// Like [`Backend::reconcile`], with all calls of [`Backend::apply`] that follow. Writes and waits are summed up.
    ///
    /// # Errors
    /// Those of the calls.
    async fn reconcile_all(&mut self, state: &NodeState) -> Result<SyncReport> {
        let report = self.reconcile(state).await?;
        self.finish(state, report).await
    }

    /// Like [`Backend::apply`], with all calls that follow.
    ///
    /// # Errors
    /// Those of the calls.
    async fn apply_all(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        let report = self.apply(state, changes).await?;
        self.finish(state, report).await
    }

    /// Continues after a report until nothing is unfinished.
    ///
    /// # Errors
    /// Those of the calls.
    async fn finish(&mut self, state: &NodeState, mut report: SyncReport) -> Result<SyncReport> {
        while report.unfinished.is_some() {
            let next = self.apply(state, &Changes::default()).await?;
            let (writes, lock_wait) = (report.writes + next.writes, report.lock_wait + next.lock_wait);
            report = SyncReport { writes, lock_wait, ..next };
        }
        Ok(report)
    }
}

impl<B: Backend> ProgramAll for B {}

/// Reconciles, and returns the names of the service ports that a fake kernel rejected.
///
/// # Panics
/// When the reconcile fails, or a service port has failed for another reason than `rejected by the test`.
pub async fn rejected_by_test<B: Backend>(backend: &mut B, state: &NodeState) -> Vec<String> {
    let failures = backend.reconcile_all(state).await.unwrap().failures;
    let is_of_test =
        |failure: &ServicePortFailure| failure.retryable && failure.reason.contains("rejected by the test");
    assert!(failures.iter().all(is_of_test), "{failures:?}");
    failures.iter().map(|failure| failure.key.name.to_string()).collect()
}
