//! A backend that writes nothing: it logs what the real one would write, and what kube-proxy's rules do otherwise.
//!
//! ```text
//!   commit, or some time later ──▶ Preview (reads the kernel) ──▶ what would be written ─┐
//!                              └─▶ kube_proxy (reads its rules) ─▶ what they do otherwise ┴─▶ log, when it is new
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use backend::{Backend, Changes, Difference, Drift, NodeState, Preview, PreviewReport, SyncReport};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::diff::{self, kube_proxy};

/// So long after a look the kernel is looked at again, for others write to it.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// A look may take one part in so many of the time: it costs what the whole state is, not what changed.
const SHARE: u32 = 10;
/// How many differences are logged one by one, each time that they are others.
const SHOWN: usize = 20;

/// The shadow of a backend.
#[derive(Debug)]
pub(super) struct Shadow<P> {
    preview: P,
    /// When the kernel may be looked at again.
    not_before: Instant,
    /// When that is done without a commit.
    look_at: Instant,
    /// What was said last.
    said: Option<Said>,
}

#[derive(Debug, PartialEq, Eq)]
struct Said {
    differences: Vec<Difference>,
    kube_proxy: Vec<String>,
}

impl<P: Preview> Shadow<P> {
    pub(super) fn new(preview: P) -> Self {
        let now = Instant::now();
        Self { preview, not_before: now, look_at: now + LOOK_AGAIN, said: None }
    }

    async fn look(&mut self, state: &NodeState) -> Result<SyncReport> {
        sleep_until(self.not_before).await;
        let begun = Instant::now();
        let PreviewReport { differences, failures } = self.preview.preview(state).await?;
        let of_kube_proxy = kube_proxy::compare(state).await;
        let report = of_kube_proxy.context("read what kube-proxy's rules do")?;
        self.not_before = Instant::now() + begun.elapsed() * (SHARE - 1);
        self.look_at = Instant::now() + LOOK_AGAIN;

        let said = Said { differences, kube_proxy: report.lines() };
        if self.said.as_ref() == Some(&said) {
            debug!("shadow: nothing has changed");
        } else {
            let (alike, otherwise, meant) = report.counts();
            let written = diff::summary(&said.differences);
            info!(writes = said.differences.len(), alike, otherwise, meant, "shadow: would write {written}");
            for Difference { kind, subsystem, object, service_port } in said.differences.iter().take(SHOWN) {
                let service_port = service_port.as_ref().map(tracing::field::display);
                info!(service_port, %subsystem, "shadow: {kind} {object}");
            }
            for line in said.kube_proxy.iter().take(SHOWN) {
                info!("shadow: kube-proxy does otherwise: {line}");
            }
            self.said = Some(said);
        }
        Ok(SyncReport { failures, ..SyncReport::default() })
    }
}

impl<P: Preview> Backend for Shadow<P> {
    const NAME: &'static str = P::NAME;

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.look(state).await
    }

    async fn apply(&mut self, state: &NodeState, _changes: &Changes) -> Result<SyncReport> {
        self.look(state).await
    }

    /// It is no drift of ours: nothing of ours is there. But what would be written may be something else.
    async fn drifted(&mut self) -> Drift {
        tokio::select! {
            _ = self.preview.drifted() => {}
            () = sleep_until(self.look_at) => {}
        }
        Drift::Possible
    }

    async fn cleanup(&mut self) -> Result<()> {
        Ok(())
    }
}
