//! A backend that writes nothing: it logs the writes that the backend of this mode would make, and where kube-proxy's
//! rules behave differently.
//!
//! ```text
//!   commit, or every 30 s ──┬─▶ preview (reads the kernel) ──▶ what would be written ─┐
//!                           └─▶ kube_proxy (reads its rules) ─▶ their differences ────┴─▶ log, if it changed
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use backend::{
    Backend, Changes, Difference, Drift, Nat, NodeState, PreviewReport, SyncReport,
    driver::{Driver, DryRunPlane},
};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::diff::{
    self,
    kube_proxy::{self, KubeProxyReport, NOT_COMPARED},
};

/// The interval of comparisons without a commit: other programs write to the kernel, too.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);
/// Comparisons take at most a tenth of the time, because each reads the whole state.
const TIME_SHARE: u32 = 10;
/// How many differences are logged one by one.
const LOGGED_DIFFERENCES: usize = 20;

/// The shadow of a backend.
pub(super) struct Shadow<P: DryRunPlane> {
    /// Only previews are computed, so it writes nothing.
    backend: Driver<P>,
    /// When the next comparison may start.
    not_before: Instant,
    /// When it starts without a commit.
    compare_at: Instant,
    /// The result that was logged last.
    logged: Option<Comparison>,
}

#[derive(Debug, PartialEq, Eq)]
struct Comparison {
    differences: Vec<Difference>,
    kube_proxy: Vec<String>,
}

impl<P: DryRunPlane> Shadow<P> {
    pub(super) fn new(backend: Driver<P>) -> Self {
        let now = Instant::now();
        Self { backend, not_before: now, compare_at: now + COMPARE_INTERVAL, logged: None }
    }

    async fn compare(&mut self, state: &NodeState) -> Result<SyncReport> {
        sleep_until(self.not_before).await;
        let start = Instant::now();
        let PreviewReport { differences, failures } = self.backend.preview(state).await?;
        let report = kube_proxy::compare(state).await.context("cannot read the rules of kube-proxy")?;
        self.not_before = Instant::now() + start.elapsed() * (TIME_SHARE - 1);
        self.compare_at = Instant::now() + COMPARE_INTERVAL;

        let comparison = Comparison { differences, kube_proxy: report.lines() };
        if self.logged.as_ref() == Some(&comparison) {
            debug!("shadow: no change since the last comparison");
        } else {
            comparison.log_totals(&report);
            if self.logged.is_none() {
                info!("shadow: kube-proxy's rules, {NOT_COMPARED}");
            }
            comparison.log_differences();
            self.logged = Some(comparison);
        }
        Ok(SyncReport { failures, ..SyncReport::default() })
    }
}

impl Comparison {
    fn log_totals(&self, report: &KubeProxyReport) {
        let (equal, different, documented) = report.counts();
        info!(
            writes = self.differences.len(),
            kube_proxy_equal = equal,
            kube_proxy_different = different,
            kube_proxy_documented_differences = documented,
            "shadow: would write {}",
            diff::summary(&self.differences)
        );
    }

    fn log_differences(&self) {
        for Difference { kind, subsystem, object, service_port } in self.differences.iter().take(LOGGED_DIFFERENCES) {
            let service_port = service_port.as_ref().map(tracing::field::display);
            info!(service_port, %subsystem, "shadow: {kind} {object}");
        }
        for line in self.kube_proxy.iter().take(LOGGED_DIFFERENCES) {
            info!("shadow: kube-proxy behaves differently: {line}");
        }
    }
}

impl<P: DryRunPlane> Backend for Shadow<P> {
    const NAME: &'static str = P::NAME;
    const NAT: Nat = P::NAT;

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.compare(state).await
    }

    async fn apply(&mut self, state: &NodeState, _changes: &Changes) -> Result<SyncReport> {
        self.compare(state).await
    }

    /// A shadow has no objects in the kernel that could drift. But other programs may change what would be written.
    async fn drifted(&mut self) -> Drift {
        tokio::select! {
            _ = self.backend.drifted() => {}
            () = sleep_until(self.compare_at) => {}
        }
        Drift::Outdated
    }

    async fn cleanup(&mut self) -> Result<()> {
        Ok(())
    }
}
