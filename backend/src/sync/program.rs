//! Programs the newest target: when the backend is called, and with what.
//!
//! ```text
//!   stored state ─▶ adopt: wait for a frontend ─▶ reconcile ─▶ apply the difference to the newest target ─┐
//!                                                   ▲ a retry, drift  ▲                                   │
//!                                                   └─────────────────┴───────────────────────────────────┘
//! ```

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use proto::{model::ServicePortFailure, state::ServicePortChange};
use runtime::{Backoff, Shutdown};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

use super::{
    MAX_IDLE, Programmed, Reporter, Target,
    backlog::Completed,
    reporter::{describe_unserved, log_failures},
};
use crate::{
    Backend, Changes, Drift, SyncReport, backend::Work, drifts::Drifts, flows::Flows, health::HealthChecks,
    observe::SYNC_FAILING, replica::Origin,
};

/// How long a frontend has to answer before the kernel is read for whether an earlier process has programmed it.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// How long a kernel that an earlier process has programmed is left as it is until a frontend answers: the stored state
/// may be older.
pub(super) const ADOPTION: Duration = Duration::from_secs(10);

/// How often the programmer waits for drift while the backend has work without a pause.
const WATCH_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest of these waits.
const MIN_WATCH_TIME: Duration = Duration::from_secs(1);

/// The shortest delay before a failed sync is retried.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The longest delay before a failed sync is retried.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// The half that programs. It owns the backend.
pub(crate) struct Programmer<B> {
    pub(crate) backend: B,
    pub(crate) targets: watch::Receiver<Target>,
    /// The target of the last call of the backend.
    pub(crate) handed: Target,
    /// The progress of the kernel towards the handed target.
    pub(crate) programmed: watch::Sender<Programmed>,
    /// The service ports that the last successful call could not program.
    pub(crate) rejected: Vec<ServicePortFailure>,
    pub(crate) schedule: Schedule,
    pub(crate) drifts: Drifts,
    pub(crate) flows: Arc<Flows>,
    pub(crate) health: HealthChecks,
    pub(crate) reporter: Reporter,
}

/// When the backend is to be called, and with what work.
#[derive(Debug)]
pub(crate) struct Schedule {
    content: Content,
    reconcile_at: Option<Instant>,
    /// Until the reconcile that follows a failed call.
    backoff: Backoff,
    /// Until the reconcile that tries rejected service ports again.
    retries: Backoff,
}

/// How much of the handed target the kernel contains, except for the failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Unknown until a reconcile.
    Unknown,
    /// Not all: the backend is to be called again. See [`SyncReport::unfinished`].
    Partial,
    /// All of it.
    Complete,
}

impl Schedule {
    /// The content of the kernel is unknown.
    pub(crate) fn unknown() -> Self {
        Self {
            content: Content::Unknown,
            reconcile_at: None,
            backoff: Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY),
            retries: Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY),
        }
    }

    /// The work of the backend that is due now, if these changes lead from the handed target to the newest one.
    fn work(&mut self, changes: &Changes) -> Option<Work> {
        let is_due = self.reconcile_at.is_some_and(|at| at <= Instant::now());
        match self.content {
            Content::Partial => Some(Work::Apply),
            Content::Complete if !is_due && !changes.is_empty() => Some(Work::Apply),
            _ if is_due => {
                self.reconcile_at = None;
                Some(Work::Reconcile)
            }
            _ => None,
        }
    }

    fn is_known(&self) -> bool {
        self.content != Content::Unknown
    }

    /// The content of the kernel is unknown until a reconcile, which is due by then.
    fn invalidate(&mut self, reconcile_at: Instant) {
        self.content = Content::Unknown;
        self.reconcile_at = Some(self.reconcile_at.map_or(reconcile_at, |at| at.min(reconcile_at)));
    }

    /// A call has failed. Returns the delay before the reconcile.
    fn failed(&mut self) -> Duration {
        let delay = self.backoff.next_delay();
        self.reconcile_at = None;
        self.invalidate(Instant::now() + delay);
        delay
    }

    /// A call has succeeded.
    fn succeeded(&mut self, report: &SyncReport) {
        self.content = if report.unfinished.is_none() { Content::Complete } else { Content::Partial };
        let has_progressed = report.writes > 0 || self.content == Content::Complete;
        if has_progressed {
            self.backoff.reset();
        }

        let has_retryable = report.failures.iter().any(|failure| failure.retryable);
        if has_retryable {
            self.schedule_retry();
        } else {
            self.reconcile_at = None;
            self.retries.reset();
        }
    }

    /// Lets a reconcile try rejected service ports again. A commit must not postpone one that is scheduled.
    fn schedule_retry(&mut self) {
        if self.reconcile_at.is_none() {
            self.reconcile_at = Some(Instant::now() + self.retries.next_delay());
        }
    }
}

impl<B: Backend> Programmer<B> {
    /// Programs until `shutdown`. The kernel is left as it is then.
    pub(crate) async fn run(&mut self, mut shutdown: Shutdown) {
        if shutdown.run_until_started(self.adopt()).await.is_some() {
            self.schedule.invalidate(Instant::now());
        }
        let mut watched_at = Instant::now();
        while !shutdown.is_triggered() {
            self.drifts.end_incident();
            let target = self.targets.borrow_and_update().clone();
            let changes = Changes::between(&self.handed.state, &target.state);

            let begun = Instant::now();
            let work = self.schedule.work(&changes);
            if let Some(work) = work {
                self.hand(target, &changes);
                self.call(work, &changes).await;
            } else if self.schedule.is_known() && self.handed.number != target.number {
                // A commit or bookmark that changes nothing is programmed at once.
                self.hand(target, &changes);
                self.publish();
            }

            // Drift does not wait for the end of a large change, which may never come.
            if work.is_some() && watched_at.elapsed() < WATCH_INTERVAL {
                continue;
            }
            // A comparison may take as long as a call.
            let watch_time = begun.elapsed().clamp(MIN_WATCH_TIME, MAX_IDLE);
            watched_at = Instant::now();
            let is_idle = work.is_none();
            if is_idle {
                // A timer for it would end the wait for drift, which may be comparing the kernel with the state.
                self.reporter.log_due();
            }
            tokio::select! {
                () = shutdown.recv() => {}
                // Fails only at the end of the process.
                Ok(()) = self.targets.changed(), if is_idle => {}
                () = runtime::sleep_until(self.schedule.reconcile_at), if is_idle => {}
                () = self.health.changed() => self.publish(),
                drift = self.backend.drifted(), if self.schedule.is_known() => self.drifted(&drift),
                () = sleep(if is_idle { MAX_IDLE } else { watch_time }) => {}
            }
        }
        self.reporter.log_applied();
    }

    /// Waits for a first commit or bookmark, or until the stored state is due: later if the kernel may be newer.
    async fn adopt(&mut self) {
        let begun = Instant::now();
        let is_answered = |target: &Target| target.number > 0;
        if self.handed.committed.is_none() {
            // Fails only at the end of the process.
            let _ = self.targets.wait_for(is_answered).await;
            return;
        }

        // After a reboot the kernel is empty, which is soon known.
        let wait = if self.handed.origin == Origin::EarlierBoot { Duration::ZERO } else { FIRST_ANSWER };
        if timeout_at(begun + wait, self.targets.wait_for(is_answered)).await.is_ok() {
            return;
        }

        if self.is_programmed().await {
            let wait_ms = ADOPTION.as_millis();
            info!(wait_ms, "the kernel is already programmed, leaving it unchanged until a frontend responds");
            let _ = timeout_at(begun + ADOPTION, self.targets.wait_for(is_answered)).await;
        }
    }

    /// Whether an earlier process has programmed the kernel; true if that is unknown.
    async fn is_programmed(&mut self) -> bool {
        // The kernel may hang, which a liveness probe has to detect.
        self.reporter.begun(Instant::now());
        let answer = match timeout(SYNC_FAILING, self.backend.is_programmed()).await {
            Ok(answer) => answer,
            Err(_) => {
                let error = anyhow!("the kernel was not read within {} s", SYNC_FAILING.as_secs());
                self.reporter.progress.send_modify(|progress| progress.kernel.error = Some(error.to_string()));
                Err(error)
            }
        };

        answer.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "cannot determine whether the kernel is programmed");
            true
        })
    }

    /// Makes a target the handed one, with the changes that lead to it.
    fn hand(&mut self, target: Target, changes: &Changes) {
        if !changes.is_empty() {
            // Another process is not the only reason for the writes of the call.
            self.drifts.is_suspected = false;
        }
        self.programmed.send_if_modified(|programmed| {
            programmed.backlog.hand(&self.handed, changes);
            // Nothing is acked before the call has succeeded.
            false
        });
        self.handed = target;

        // After the backlog, because otherwise the changes of this state would count as programmed.
        let is_confirmed = self.handed.origin == Origin::Confirmed;
        self.flows.record(|pending| pending.handed(&self.handed.state, is_confirmed));
    }

    /// Lets the backend work on the handed target.
    async fn call(&mut self, work: Work, changes: &Changes) {
        let begun = Instant::now();
        self.reporter.begun(begun);

        let state = &self.handed.state;
        let result = match work {
            Work::Reconcile => self.backend.reconcile(state).await.context("reconcile"),
            Work::Apply => self.backend.apply(state, changes).await.context("apply"),
        };

        match result {
            Ok(report) => self.succeeded(work, &report, begun.elapsed()),
            Err(error) => {
                let delay = self.schedule.failed();
                self.reporter.failed(B::NAME, work, &error, delay);
            }
        }
    }

    fn succeeded(&mut self, work: Work, report: &SyncReport, took: Duration) {
        self.schedule.succeeded(report);
        self.count_repairs(report);
        if self.rejected != report.failures {
            log_failures(&report.failures);
            self.rejected.clone_from(&report.failures);
        }

        let handed = self.handed.clone();
        let mut reported = Default::default();
        self.programmed.send_modify(|programmed| reported = programmed.reported(&handed, work, report));
        let (Completed { service_ports, concerns_all }, retried) = reported;
        let completed: Vec<_> = service_ports.iter().map(|(key, entry)| entry.change(key, &handed.state)).collect();

        // The kernel may accept service ports that it rejected before, without a change of them.
        let tried = completed.iter().map(|change| change.key).chain(&retried);
        self.flows.record(|pending| pending.programmed(concerns_all, tried));
        self.publish_healthy(&completed);
        self.reporter.succeeded(B::NAME, &handed, work, &completed, report, took);
        self.publish();
    }

    /// Counts the repair of a call after drift.
    fn count_repairs(&mut self, report: &SyncReport) {
        if self.drifts.is_suspected && self.accepts_again(report) {
            // Another process is not the only reason for the writes of the call.
            self.drifts.is_suspected = false;
        }
        if self.drifts.reported(report) {
            self.reporter.metrics.repairs.inc();
            self.reporter.progress.send_modify(|progress| progress.kernel.drifts = self.drifts.count);
        }
    }

    /// Whether a service port or an IP family is not rejected any more, which is then written, too.
    fn accepts_again(&self, report: &SyncReport) -> bool {
        let failing: BTreeSet<_> = report.failures.iter().map(|failure| &failure.key).collect();
        let left_out: BTreeSet<_> = report.unusable_families.iter().map(|(family, _)| family).collect();
        let unusable = &self.reporter.progress.borrow().kernel.unusable_families;
        self.rejected.iter().any(|failure| !failing.contains(&failure.key))
            || unusable.iter().any(|(family, _)| !left_out.contains(family))
    }

    /// Lets health-check node ports follow the service ports that a call has completed.
    fn publish_healthy(&self, completed: &[ServicePortChange<'_>]) {
        let backlog = &self.programmed.borrow().backlog;
        // A load balancer sends connections to all ports of a node that it finds healthy.
        let whole = completed.iter().map(|change| change.key).filter(|key| !backlog.has_service_of(key));
        self.health.publish(&self.handed.state, whole);
    }

    /// Publishes what is programmed: after a call, or because the target or the health checks have changed without one.
    fn publish(&mut self) {
        let failures: Vec<_> = self.rejected.iter().cloned().chain(self.health.failures()).collect();
        // Before the revision is reported as programmed: observers of that read the failures, too.
        self.reporter.progress.send_modify(|progress| progress.failures.clone_from(&failures));
        if !self.schedule.is_known() {
            return;
        }

        let degraded = describe_unserved(&self.reporter.progress.borrow().kernel);
        self.programmed.send_modify(|programmed| programmed.accepted(&self.handed, failures, degraded));
        self.reporter.programmed(&self.handed, &self.targets.borrow(), &self.programmed.borrow());
    }

    /// Lets a repair follow drift.
    fn drifted(&mut self, drift: &Drift) {
        let repair_in = self.drifts.record(drift);
        if self.schedule.content != Content::Complete {
            // The repair also writes unfinished service ports.
            self.drifts.is_suspected = false;
        }
        self.schedule.invalidate(Instant::now() + repair_in);
        self.reporter.progress.send_modify(|progress| progress.kernel.drifts = self.drifts.count);
    }
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;
    use crate::{
        NodeState,
        testing::{FakeBackend, FakeKernel, mk_key, mk_state},
    };

    /// Programs a target, of which the kernel takes one service port with each call.
    async fn programmer(kernel: &FakeKernel, state: NodeState, origin: Origin) -> Programmer<FakeBackend> {
        let stored = Target::stored(mk_state().build(), None, Origin::Stored);
        let target = Target { number: 1, origin, ..Target::stored(state, None, Origin::Stored) };
        let changes = Changes::between(&stored.state, &target.state);
        kernel.limit(1);
        let programmed = watch::Sender::new(Programmed::unknown(&stored.state));
        let flows = Flows::without_thread(stored.state.clone(), programmed.subscribe());
        let mut programmer = Programmer {
            backend: kernel.backend(),
            targets: watch::channel(target.clone()).1,
            programmed,
            handed: stored,
            rejected: Vec::new(),
            schedule: Schedule::unknown(),
            drifts: Drifts::default(),
            flows: Arc::new(flows),
            health: HealthChecks::default(),
            reporter: Reporter::new(watch::Sender::default(), Arc::default(), None),
        };
        programmer.hand(target, &changes);
        programmer.call(Work::Reconcile, &changes).await;
        programmer
    }

    /// A large change of one namespace must not delay the flows of the others.
    #[tokio::test]
    async fn flows_of_what_is_programmed_do_not_wait_for_what_is_unfinished() {
        let state = mk_state().service("default/a", |a| a.cluster_ip("10.96.0.1"));
        let state = state.service("default/b", |b| b.cluster_ip("10.96.0.2")).build();
        for (origin, is_confirmed) in [(Origin::Stored, false), (Origin::Confirmed, true)] {
            let programmer = programmer(&FakeKernel::default(), state.clone(), origin).await;
            assert_eq!(programmer.programmed.borrow().backlog.service_ports.len(), 1);
            assert_eq!(programmer.flows.is_confirmed(), is_confirmed);
            // Its end would wait for a thread.
            mem::forget(programmer.flows);
        }
    }

    /// The kernel has the new endpoints when a call has written them, and clients reach them before it reports.
    #[tokio::test(start_paused = true)]
    async fn udp_flows_to_what_a_call_programs_are_not_stale() {
        let dns = |endpoint: &'static str| {
            let dns = |dns: crate::testing::ServiceBuilder| dns.cluster_ip("10.96.0.10").endpoints([endpoint]);
            mk_state().service("default/dns/udp", dns).build()
        };
        let key = mk_key("default/dns/udp");
        let before = dns("10.244.1.1:53");
        let after = dns("10.244.1.2:53");
        let kernel = FakeKernel::default();
        let mut programmer = programmer(&kernel, before.clone(), Origin::Confirmed).await;
        let flows = programmer.flows.clone();
        assert!(flows.compares_udp(&key));

        kernel.slow_reports(Duration::from_secs(1));
        let changes = Changes::between(&before, &after);
        programmer.hand(Target { number: 2, ..Target::stored(after.clone(), None, Origin::Stored) }, &changes);
        let cleanup = async {
            sleep(Duration::from_millis(500)).await;
            assert_eq!(kernel.service_ports(), *after.service_ports());
            assert!(!flows.compares_udp(&key));
        };
        tokio::join!(programmer.call(Work::Apply, &changes), cleanup);

        assert!(flows.compares_udp(&key));
        // Its end would wait for a thread.
        mem::forget(programmer.flows);
    }

    /// The kernel may have what it rejects as it was, and accept it again without a change.
    #[tokio::test]
    async fn udp_flows_of_rejected_service_port_wait_until_it_is_accepted() {
        let key = mk_key("default/dns/udp");
        let state = mk_state().service("default/dns/udp", |dns| dns.cluster_ip("10.96.0.10")).build();
        let kernel = FakeKernel::default();
        kernel.reject(ServicePortFailure::rejected(key.clone(), "no memory"));
        let mut programmer = programmer(&kernel, state, Origin::Confirmed).await;
        assert!(programmer.flows.take_udp());
        assert!(!programmer.flows.compares_udp(&key));

        let unchanged = Changes::default();
        programmer.call(Work::Apply, &unchanged).await;
        assert!(!programmer.flows.take_udp());

        kernel.accept(&key);
        programmer.call(Work::Apply, &unchanged).await;
        assert!(programmer.flows.take_udp());
        assert!(programmer.flows.compares_udp(&key));
        // Its end would wait for a thread.
        mem::forget(programmer.flows);
    }

    /// The notifications of a large loss may overrun, so that only the repair finds it.
    #[tokio::test]
    async fn repair_of_possible_drift_is_counted_if_it_writes_what_no_change_asks_for() {
        let a = mk_state().service("default/a", |a| a.cluster_ip("10.96.0.1"));
        let before = a.clone().build();
        let after = a.service("default/b", |b| b.cluster_ip("10.96.0.2")).build();
        for (drift, is_lost, newest, count) in [
            (Drift::Possible, true, &before, 1),
            (Drift::Possible, false, &before, 0),
            (Drift::Possible, true, &after, 0),
            (Drift::Outdated, true, &before, 0),
        ] {
            let kernel = FakeKernel::default();
            let mut programmer = programmer(&kernel, before.clone(), Origin::Confirmed).await;
            programmer.drifted(&drift);
            if is_lost {
                kernel.lose(&mk_key("default/a"));
            }
            let changes = Changes::between(&before, newest);
            programmer.hand(Target { number: 2, ..Target::stored(newest.clone(), None, Origin::Stored) }, &changes);
            programmer.call(Work::Reconcile, &changes).await;
            assert_eq!(programmer.drifts.count, count, "{drift:?}");
            assert_eq!(programmer.reporter.progress.borrow().kernel.drifts, count);
            // Its end would wait for a thread.
            mem::forget(programmer.flows);
        }
    }

    /// The first call may find nothing to write, or the kernel may reject all of it.
    #[tokio::test]
    async fn repair_of_possible_drift_is_counted_if_a_later_call_writes() {
        let state = mk_state().service("default/a", |a| a.cluster_ip("10.96.0.1"));
        let state = state.service("default/b", |b| b.cluster_ip("10.96.0.2")).build();
        let kernel = FakeKernel::default();
        let mut programmer = programmer(&kernel, state, Origin::Confirmed).await;
        let unchanged = Changes::default();
        programmer.call(Work::Apply, &unchanged).await;
        assert_eq!(programmer.schedule.content, Content::Complete);
        programmer.drifted(&Drift::Possible);
        kernel.lose(&mk_key("default/b"));
        for (work, count) in [(Work::Reconcile, 0), (Work::Apply, 1)] {
            programmer.call(work, &unchanged).await;
            assert_eq!((programmer.drifts.count, programmer.reporter.metrics.repairs.get()), (count, count));
        }
        // Its end would wait for a thread.
        mem::forget(programmer.flows);
    }
}
