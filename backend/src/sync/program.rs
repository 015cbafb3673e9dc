//! Programs the newest target: when the backend is called, and with what.
//!
//! ```text
//!   stored state ─▶ adopt: wait for a frontend ─▶ reconcile ─▶ apply the difference to the newest target ─┐
//!                                                   ▲ a retry, drift  ▲                                   │
//!                                                   └─────────────────┴───────────────────────────────────┘
//! ```

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use proto::model::{ServicePortFailure, ServicePortKey};
use runtime::{Backoff, Shutdown};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tracing::{debug, info, warn};

use super::{
    MAX_IDLE, Position, Programmed, Reporter, Target,
    reporter::{EndedCall, describe_unusable, log_failures},
};
use crate::{
    Backend, Changes, Drift, SyncReport, backend::Work, conntrack::ConntrackCleaner, drifts::Drifts,
    health::HealthChecks,
};

/// How long a frontend has to answer before the kernel is read for whether an earlier process has programmed it.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// How long a kernel that an earlier process has programmed is left as it is until a frontend answers: the stored state
/// may be older.
pub(super) const ADOPTION: Duration = Duration::from_secs(10);

/// The half that programs. It owns the backend.
pub(crate) struct Programmer<B> {
    options: ProgrammerOptions,
    backend: B,
    targets: watch::Receiver<Target>,
    programmed: watch::Sender<Programmed>,
    /// The target of the last call of the backend.
    current: Target,
    /// Whether the kernel contains it, except for failures and what is unfinished.
    is_known: bool,
    /// Whether the backend is to be called again. See [`SyncReport::unfinished`].
    is_interrupted: bool,
    /// The service ports that lack the current target, with the newest commit that each of them has.
    unfinished: BTreeMap<ServicePortKey, Position>,
    /// The service ports that the last successful call could not program.
    failures: Vec<ServicePortFailure>,
    /// When to reconcile.
    reconcile_at: Option<Instant>,
    backoff: Backoff,
    drifts: Drifts,
    /// Whether the next reconcile follows drift.
    repair_due: bool,
    conntrack: ConntrackCleaner,
    health: HealthChecks,
    reporter: Reporter,
}

/// When a [`Programmer`] programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgrammerOptions {
    /// The shortest and the longest delay after a failure.
    pub(crate) retry_delay: (Duration, Duration),
    /// Whether the node has restarted since a frontend confirmed the stored state.
    pub(crate) is_earlier_boot: bool,
}

impl<B: Backend> Programmer<B> {
    pub(crate) fn new(
        options: ProgrammerOptions,
        backend: B,
        targets: watch::Receiver<Target>,
        programmed: watch::Sender<Programmed>,
        conntrack: ConntrackCleaner,
        health: HealthChecks,
        reporter: Reporter,
    ) -> Self {
        let current = targets.borrow().clone();
        Self {
            options,
            backend,
            targets,
            programmed,
            current,
            is_known: false,
            is_interrupted: false,
            unfinished: BTreeMap::new(),
            failures: Vec::new(),
            reconcile_at: None,
            backoff: Backoff::new(options.retry_delay.0, options.retry_delay.1),
            drifts: Drifts::default(),
            repair_due: false,
            conntrack,
            health,
            reporter,
        }
    }

    /// Programs until `shutdown`. The kernel is left as it is then.
    pub(crate) async fn run(&mut self, mut shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.recv() => {}
            () = self.adopt() => self.reconcile_at = Some(Instant::now()),
        }
        while !shutdown.is_triggered() {
            self.drifts.end_incident();
            let target = self.targets.borrow_and_update().clone();
            let changes = Changes::between(&self.current.state, &target.state);
            if let Some(work) = self.work(&changes) {
                self.call(work, target, &changes).await;
                continue;
            }
            if self.is_known && self.current.number != target.number {
                // A commit or bookmark that changes nothing is programmed at once.
                self.take(target, &changes);
                self.publish(None);
            }
            let reconcile_at = self.reconcile_at;
            tokio::select! {
                () = shutdown.recv() => {}
                // Fails only at the end of the process.
                Ok(()) = self.targets.changed() => {}
                () = sleep_until(reconcile_at.unwrap_or_else(Instant::now)), if reconcile_at.is_some() => {}
                () = self.health.changed() => self.publish_failures(),
                drift = self.backend.drifted(), if self.is_known => self.drifted(&drift),
                () = sleep_until(Instant::now() + MAX_IDLE) => {}
            }
        }
    }

    /// Waits for a first commit or bookmark, or until the stored state is due: later if the kernel may be newer.
    async fn adopt(&mut self) {
        let begun = Instant::now();
        let is_answered = |target: &Target| target.number > 0;
        if self.current.committed.is_none() {
            // Fails only at the end of the process.
            let _ = self.targets.wait_for(is_answered).await;
            return;
        }
        // After a reboot the kernel is empty, which is soon known.
        let wait = if self.options.is_earlier_boot { Duration::ZERO } else { FIRST_ANSWER };
        if timeout_at(begun + wait, self.targets.wait_for(is_answered)).await.is_ok() {
            return;
        }
        let is_programmed = self.backend.is_programmed().await.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "cannot find out whether the kernel is programmed");
            true
        });
        if is_programmed {
            let wait_ms = ADOPTION.as_millis();
            info!(wait_ms, "the kernel is programmed, it is left as it is until a frontend answers");
            let _ = timeout_at(begun + ADOPTION, self.targets.wait_for(is_answered)).await;
        }
    }

    /// What the backend has to do now, if the newest target differs so from the current one.
    fn work(&mut self, changes: &Changes) -> Option<Work> {
        let is_due = self.reconcile_at.is_some_and(|at| at <= Instant::now());
        match self.is_known {
            true if self.is_interrupted || !is_due && !changes.is_empty() => Some(Work::Apply(changes.clone())),
            _ if is_due => {
                self.reconcile_at = None;
                Some(Work::Reconcile)
            }
            _ => None,
        }
    }

    /// Makes a target, which differs so, the current one.
    fn take(&mut self, target: Target, changes: &Changes) {
        for key in &changes.service_ports {
            self.unfinished.entry(key.clone()).or_insert(self.current.complete);
        }
        self.conntrack.committed(changes, Some(&self.current.state.departed(&target.state)));
        if !target.is_confirmed {
            self.conntrack.rolled_back();
        }
        self.current = target;
    }

    /// Lets the backend work.
    async fn call(&mut self, work: Work, target: Target, changes: &Changes) {
        let begun = Instant::now();
        self.take(target, changes);
        self.reporter.begun(begun);
        self.is_known = false;
        let state = &self.current.state;
        self.conntrack.prepare(&work, state);
        let result = match &work {
            Work::Reconcile => self.backend.reconcile(state).await.context("reconcile"),
            Work::Apply(changes) => self.backend.apply(state, changes).await.context("apply"),
        };
        let (took, at) = (begun.elapsed(), SystemTime::now());
        match result {
            Ok(report) => self.succeeded(work, report, took, at),
            Err(error) => {
                self.is_interrupted = false;
                let delay = self.backoff.next_delay();
                self.reconcile_at = Some(Instant::now() + delay);
                self.reporter.failed(B::NAME, &work, &error, delay);
            }
        }
    }

    fn succeeded(&mut self, work: Work, report: SyncReport, took: Duration, at: SystemTime) {
        let unfinished = report.unfinished.as_ref();
        self.is_known = true;
        self.is_interrupted = unfinished.is_some();
        // What this call has programmed completely, also of earlier ones.
        let is_completed = |key: &&ServicePortKey| unfinished.is_none_or(|unfinished| !unfinished.contains(*key));
        let completed = match &work {
            Work::Reconcile => Work::Reconcile,
            Work::Apply(changes) => {
                let service_ports = self.unfinished.keys().filter(is_completed).cloned().collect();
                Work::Apply(Changes { service_ports, ..changes.clone() })
            }
        };
        self.unfinished.retain(|key, _| !is_completed(&key));
        for key in unfinished.into_iter().flatten() {
            self.unfinished.entry(key.clone()).or_default();
        }
        let state = &self.current.state;
        let failed = || report.failures.iter().map(|failure| &failure.key);
        self.conntrack.programmed(&completed, failed().chain(unfinished.into_iter().flatten()));
        if self.unfinished.is_empty() {
            self.conntrack.finished(state, failed());
        }
        self.health.publish(state, &completed);
        if work == Work::Reconcile && std::mem::take(&mut self.repair_due) && report.writes > 0 {
            self.reporter.metrics.repairs.inc();
        }
        if !report.failures.iter().any(|failure| failure.retryable) {
            self.reconcile_at = None;
            self.backoff.reset();
        } else if self.reconcile_at.is_none() {
            // A commit in between must not postpone it.
            self.reconcile_at = Some(Instant::now() + self.backoff.next_delay());
        }
        if self.failures != report.failures {
            log_failures(&report.failures);
            self.failures.clone_from(&report.failures);
        }
        self.reporter.succeeded(B::NAME, &self.current, &report, &EndedCall { completed, took, at });
        self.publish(Some((report, at)));
    }

    /// Publishes what is programmed after a call, or without one.
    fn publish(&mut self, ended: Option<(SyncReport, SystemTime)>) {
        let failures = self.all_failures();
        let is_finished = self.unfinished.is_empty();
        // Before the revision is reported as programmed: observers of that read the failures, too.
        self.reporter.failures(&failures);
        if is_finished {
            self.reporter.finished(&self.current, &self.targets.borrow());
            if self.current.is_confirmed {
                self.conntrack.confirmed();
            }
        }
        self.programmed.send_modify(|programmed| {
            programmed.number = self.current.number;
            programmed.complete = self.unfinished.values().copied().fold(self.current.complete, Position::min);
            programmed.failures = failures;
            if let Some((report, at)) = ended {
                programmed.unfinished = report.unfinished.unwrap_or_default();
                programmed.degraded = describe_unusable(&report.unusable_families);
                programmed.at = at;
            }
        });
    }

    /// Everything that is not programmed or served although the backend has succeeded.
    fn all_failures(&self) -> Vec<ServicePortFailure> {
        self.failures.iter().cloned().chain(self.health.failures()).collect()
    }

    /// Publishes other failures. While the backend fails they wait.
    fn publish_failures(&self) {
        let failures = self.all_failures();
        self.reporter.failures(&failures);
        if self.is_known {
            self.programmed.send_modify(|programmed| programmed.failures = failures);
        }
    }

    /// Lets a repair follow drift.
    fn drifted(&mut self, drift: &Drift) {
        let repair_in = self.drifts.record(drift);
        debug!(?drift, repair_in_ms = repair_in.as_millis(), "drift");
        let repair_at = Instant::now() + repair_in;
        self.is_known = false;
        self.repair_due = true;
        self.reconcile_at = Some(self.reconcile_at.map_or(repair_at, |at| at.min(repair_at)));
        self.reporter.drifted(self.drifts.count);
    }
}
