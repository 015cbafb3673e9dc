//! The reports about programming: progress, metrics and log lines.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::{
    model::{IpFamily, ServicePortFailure},
    state::ServicePortChange,
};
use runtime::{
    ReadyGuard, TokenBucket,
    failure::{Recovery, Repeated},
};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, error, info, warn};

use super::{Programmed, Target};
use crate::{LINE_RATE, Progress, SyncReport, backend::Work, metrics::Metrics, progress::KernelProgress};

/// Publishes [`Progress`] and counts [`Metrics`].
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(super) progress: watch::Sender<Progress>,
    pub(super) metrics: Arc<Metrics>,
    /// Released when the kernel contains a state for the first time.
    ready: Option<ReadyGuard>,
    sync_failures: Repeated,
    lines: TokenBucket,
    /// The calls of the backend since the last line.
    unlogged: UnloggedCalls,
    /// The calls up to the last change that is programmed, which have no line yet.
    deferred: Option<UnloggedCalls>,
}

/// Calls of the backend for one log line: those that together program one change or state, or several changes.
#[derive(Clone, Copy, Debug, Default)]
struct UnloggedCalls {
    is_reconcile: bool,
    /// The last revision that is programmed.
    revision: Option<u64>,
    /// How often everything was programmed.
    syncs: usize,
    service_ports: usize,
    writes: usize,
    took: Duration,
    lock_wait: Duration,
}

impl Reporter {
    pub(crate) fn new(progress: watch::Sender<Progress>, metrics: Arc<Metrics>, ready: Option<ReadyGuard>) -> Self {
        Self {
            progress,
            metrics,
            ready,
            sync_failures: Repeated::default(),
            lines: TokenBucket::full(Instant::now()),
            unlogged: UnloggedCalls::default(),
            deferred: None,
        }
    }

    pub(super) fn begun(&self, at: Instant) {
        self.progress.send_modify(|progress| {
            progress.changes.pending_since.get_or_insert(at);
        });
    }

    /// The kernel has got further. `newest`: the newest target.
    pub(super) fn programmed(&mut self, handed: &Target, newest: &Target, programmed: &Programmed) {
        let Programmed { complete, backlog, .. } = programmed;
        let is_finished = backlog.is_empty();
        self.progress.send_modify(|progress| {
            progress.kernel.unfinished = backlog.service_ports.len();
            if is_finished {
                progress.programmed = handed.committed;
                progress.changes.pending = newest.received - handed.received;
                let is_newest = newest.state == handed.state;
                progress.changes.pending_since = if is_newest { None } else { Some(newest.changed_at) };
            } else if complete.number > 0 {
                // While changes keep coming, the newest change may never be programmed completely.
                progress.programmed = Some((complete.epoch, complete.revision));
            }
        });
        if is_finished || complete.number > 0 {
            self.ready = None;
        }
    }

    /// A call of the backend has succeeded, which has completed these changes.
    pub(super) fn succeeded(
        &mut self,
        backend: &str,
        target: &Target,
        work: Work,
        completed: &[ServicePortChange<'_>],
        report: &SyncReport,
        took: Duration,
    ) {
        let SyncReport { writes, lock_wait, unfinished, has_read: _, unusable_families, failures: _ } = report;
        if let Some(Recovery { count, duration }) = self.sync_failures.recovered() {
            info!(backend, failures = count, after_ms = duration.as_millis(), "kernel programmed again");
        }

        if work == Work::Reconcile {
            self.log_applied();
            // The writes of an unfinished change are not part of the reconcile.
            self.unlogged = UnloggedCalls::default();
        }
        let calls = &mut self.unlogged;
        calls.writes += writes;
        calls.took += took;
        calls.lock_wait += *lock_wait;
        match work {
            Work::Reconcile => {
                calls.is_reconcile = true;
                calls.service_ports = target.state.service_ports().len();
            }
            Work::Apply if calls.is_reconcile => {}
            Work::Apply => calls.service_ports += completed.len(),
        }

        let revision = target.committed.map(|(_, revision)| revision.0);
        if let Some(unfinished) = unfinished {
            debug!(revision, unfinished = unfinished.len(), writes, took_ms = milliseconds(took), "partly programmed");
        } else {
            calls.revision = revision;
            calls.syncs += 1;
            self.deferred = Some(*calls);
            debug!(revision, writes, took_ms = milliseconds(took), "programmed");
            if calls.is_reconcile {
                self.log_applied();
            } else {
                self.log_due();
            }
        }

        self.metrics.synced(work, took, *writes);
        log_unusable_families(&self.progress.borrow().kernel.unusable_families, unusable_families);
        self.progress.send_modify(|progress| {
            let kernel = &mut progress.kernel;
            kernel.error = None;
            kernel.lock_wait += *lock_wait;
            kernel.count_no_local(completed);
            kernel.count_vips(completed);
            kernel.unusable_families.clone_from(unusable_families);
            kernel.last_success = Some(SystemTime::now());
            // Each transaction is progress.
            progress.changes.pending_since = Some(Instant::now());
        });
    }

    /// As [`Self::log_applied`], if it is time for a line: changes in between share the next line. The last changes
    /// have a line within [`MAX_IDLE`](super::MAX_IDLE).
    pub(super) fn log_due(&mut self) {
        if self.deferred.is_some() && self.lines.take(LINE_RATE, Instant::now()).is_ok() {
            self.log_applied();
        }
    }

    /// Logs the changes that are programmed and have no line yet.
    pub(super) fn log_applied(&mut self) {
        let Some(calls) = self.deferred.take() else { return };
        self.unlogged = UnloggedCalls::default();
        let UnloggedCalls { is_reconcile, revision, syncs, service_ports, writes, took, lock_wait } = calls;

        let took_ms = milliseconds(took);
        let lock_wait_ms = if lock_wait.is_zero() { None } else { Some(milliseconds(lock_wait)) };
        let syncs = if syncs > 1 { Some(syncs) } else { None };
        let event = if is_reconcile { "reconciled" } else { "applied" };
        info!(revision, service_ports, writes, took_ms, lock_wait_ms, syncs, "{event}");
    }

    pub(super) fn failed(&mut self, backend: &str, work: Work, error: &anyhow::Error, retry_in: Duration) {
        self.metrics.failed(work);
        self.log_applied();
        self.unlogged = UnloggedCalls::default();
        let error = format!("{error:#}");
        let retry_in_ms = retry_in.as_millis();
        if self.sync_failures.failed(&error).is_news {
            error!(backend, error, retry_in_ms, "cannot program the kernel, retrying");
        } else {
            debug!(backend, error, retry_in_ms, "still cannot program the kernel");
        }
        self.progress.send_modify(|progress| progress.kernel.error = Some(error));
    }
}

/// The most service ports that are logged when the failures change.
const MAX_LOGGED: usize = 8;

pub(super) fn log_failures(failures: &[ServicePortFailure]) {
    for ServicePortFailure { key, reason, retryable, kind: _ } in failures.iter().take(MAX_LOGGED) {
        warn!(service_port = %key, reason, retryable, "service port not programmed");
    }
    match failures.len() {
        0 => info!("all service ports are programmed again"),
        count if count > MAX_LOGGED => warn!(count, logged = MAX_LOGGED, "many service ports are not programmed"),
        _ => {}
    }
}

/// Logs which families cannot be programmed any more, or again.
fn log_unusable_families(before: &[(IpFamily, String)], now: &[(IpFamily, String)]) {
    for (family, error) in now.iter().filter(|unusable| !before.contains(unusable)) {
        warn!(%family, error, "cannot program an IP family, its VIPs are not served; the other one is programmed");
    }
    let is_usable = |family: &IpFamily| now.iter().all(|(of, _)| of != family);
    for (family, _) in before.iter().filter(|(family, _)| is_usable(family)) {
        info!(%family, "IP family programmed again");
    }
}

/// The texts in acks about VIPs that are not served because of their family.
pub(super) fn describe_unserved(kernel: &KernelProgress) -> Vec<String> {
    kernel.unserved_families().map(|(family, reason)| format!("{family} is not programmed: {reason}")).collect()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{replica::Origin, testing::mk_state};

    #[tokio::test(start_paused = true)]
    async fn changes_without_a_pause_share_lines() {
        let mut reporter = Reporter::new(watch::Sender::default(), Arc::default(), None);
        let target = Target::stored(mk_state().build(), None, Origin::Stored);
        let mut call = |work| {
            let report = SyncReport { writes: 1, ..SyncReport::default() };
            reporter.succeeded("fake", &target, work, &[], &report, Duration::from_millis(1));
            (reporter.deferred.is_none(), reporter.unlogged.writes)
        };
        let mut lines = 0;
        for _ in 0..6_000 {
            let (is_logged, unlogged) = call(Work::Apply);
            lines += usize::from(is_logged);
            assert!(is_logged == (unlogged == 0) && unlogged <= 50, "{unlogged}");
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!((100..150).contains(&lines), "{lines} in a minute");
        assert_eq!(call(Work::Reconcile), (true, 0), "not delayed, and without the writes of changes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_fails_is_not_in_the_line_of_those_before() {
        let mut reporter = Reporter::new(watch::Sender::default(), Arc::default(), None);
        let target = Target::stored(mk_state().build(), None, Origin::Stored);
        let mut report = SyncReport { writes: 1, ..SyncReport::default() };
        while reporter.deferred.is_none() {
            reporter.succeeded("fake", &target, Work::Apply, &[], &report, Duration::from_millis(1));
        }
        report.unfinished = Some(BTreeSet::new());
        reporter.succeeded("fake", &target, Work::Apply, &[], &report, Duration::from_millis(1));
        assert_eq!((reporter.deferred.map(|calls| calls.writes), reporter.unlogged.writes), (Some(1), 2));
        reporter.failed("fake", Work::Apply, &anyhow::anyhow!("no memory"), Duration::ZERO);
        assert!(reporter.deferred.is_none() && reporter.unlogged.writes == 0);
    }
}
