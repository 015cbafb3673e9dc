//! Programs the newest target: when the backend is called, and with what.
//!
//! ```text
//!   stored state ─▶ adopt: wait for a frontend ─▶ reconcile ─▶ apply the difference to the newest target ─┐
//!                                                   ▲ a retry, drift  ▲                                   │
//!                                                   └─────────────────┴───────────────────────────────────┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use proto::{
    model::{Ack, NodeInfo, ServicePortFailure, ServicePortKey},
    state::ServicePortChange,
};
use runtime::{Backoff, Shutdown};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

use super::{
    MAX_IDLE, Position, Programmed, Reporter, Target,
    reporter::{describe_unserved, log_failures},
};
use crate::{
    Backend, Changes, Drift, NodeState, ServiceName, SyncReport,
    ascending::ascending,
    backend::Work,
    drifts::Drifts,
    flows::{Flows, PendingFlows},
    health::HealthChecks,
    observe::SYNC_FAILING,
};

/// How long a frontend has to answer before the kernel is read for whether an earlier process has programmed it.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// How long a kernel that an earlier process has programmed is left as it is until a frontend answers: the stored state
/// may be older.
pub(super) const ADOPTION: Duration = Duration::from_secs(10);

/// While the backend has work without a pause, it waits for drift this often, and at least so long each time.
const WATCH_INTERVAL: Duration = Duration::from_secs(30);
const WATCH_TIME: Duration = Duration::from_secs(1);

/// The half that programs. It owns the backend.
pub(crate) struct Programmer<B> {
    pub(crate) backend: B,
    pub(crate) targets: watch::Receiver<Target>,
    pub(crate) programmed: watch::Sender<Programmed>,
    pub(crate) sync: SyncState,
    /// Until the reconcile that follows a failed call.
    pub(crate) backoff: Backoff,
    /// Until the reconcile that tries rejected service ports again.
    pub(crate) retries: Backoff,
    pub(crate) drifts: Drifts,
    pub(crate) flows: Arc<Flows>,
    pub(crate) health: HealthChecks,
    pub(crate) reporter: Reporter,
}

/// What is known of the content of the kernel, and when the backend is to be called.
pub(crate) struct SyncState {
    /// The target of the last call of the backend.
    current: Arc<Target>,
    content: Content,
    /// The service ports that lack the current target, with the target that each of them has.
    unfinished: BTreeMap<ServicePortKey, Arc<Target>>,
    /// The service ports that the last successful call could not program.
    failures: Vec<ServicePortFailure>,
    reconcile_at: Option<Instant>,
    /// Whether the next reconcile follows drift, or the last one did and nothing is written yet.
    repair_due: bool,
    /// Whether what that reconcile writes was changed by another process: no change of the state asks for it.
    is_suspected: bool,
}

/// How much of the current target the kernel contains, except for the failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Unknown until a reconcile.
    Unknown,
    /// All of it.
    Complete,
    /// All but what is unfinished: the backend is to be called again. See [`SyncReport::unfinished`].
    Partial,
    /// The same, and a reconcile of the target with this number is unfinished: what that target lacked may still be in
    /// the kernel.
    Reconciling(u64),
}

impl SyncState {
    /// Nothing of a stored state is known to be programmed.
    pub(crate) fn unknown(stored: Target) -> Self {
        let none = NodeState::new(NodeInfo::unknown(stored.state.node().name.clone()));
        let none = Arc::new(Target::unconfirmed(none, None));
        Self {
            unfinished: stored.state.service_ports().keys().map(|key| (key.clone(), none.clone())).collect(),
            current: Arc::new(stored),
            content: Content::Unknown,
            failures: Vec::new(),
            reconcile_at: None,
            repair_due: false,
            is_suspected: false,
        }
    }

    /// What the backend has to do now, if the newest target differs so from the current one.
    fn work(&mut self, changes: &Changes) -> Option<Work> {
        let is_due = self.reconcile_at.is_some_and(|at| at <= Instant::now());
        match self.content {
            Content::Partial | Content::Reconciling(_) => Some(Work::Apply),
            Content::Complete if !is_due && !changes.is_empty() => Some(Work::Apply),
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
            self.unfinished.entry(key.clone()).or_insert_with(|| self.current.clone());
        }
        self.is_suspected &= changes.is_empty();
        self.current = Arc::new(target);
    }

    /// A call of the backend has succeeded. `before`: the content before it. Returns the service ports that have the
    /// current target now, with the one that they had.
    fn succeeded(&mut self, before: Content, work: Work, report: &SyncReport) -> BTreeMap<ServicePortKey, Arc<Target>> {
        self.content = match (before, work) {
            _ if report.unfinished.is_none() => Content::Complete,
            _ if work == Work::Reconcile || report.has_read => Content::Reconciling(self.current.number),
            (Content::Reconciling(number), Work::Apply) => Content::Reconciling(number),
            _ => Content::Partial,
        };
        let none = BTreeSet::new();
        let unfinished = report.unfinished.as_ref().unwrap_or(&none);
        let Self { content, ref current, .. } = *self;
        let is_removed = |key: &ServicePortKey| current.state.service_port(key).is_none();
        let is_older = |had: &Target| matches!(content, Content::Reconciling(number) if had.number < number.max(1));
        // A large change has many transactions: each costs one pass over what is unfinished.
        let mut is_unfinished = ascending(unfinished);
        let mut lacks = |key: &ServicePortKey, had: &Target| is_unfinished(key) || is_removed(key) && is_older(had);
        let completed = self.unfinished.extract_if(.., |key, had| !lacks(key, had)).collect();
        // After a reconcile. What the kernel has of them is unknown.
        let unknown = Arc::new(Target { number: 0, complete: Position::default(), ..(*self.current).clone() });
        let mut is_known = ascending(self.unfinished.keys());
        let new: Vec<_> = unfinished.iter().filter(|key| !is_known(key)).cloned().collect();
        drop(is_known);
        self.unfinished.extend(new.into_iter().map(|key| (key, unknown.clone())));
        completed
    }

    /// The newest target of which the kernel lacks nothing, except for the failures: that of the service port that has
    /// been unfinished for longest.
    fn complete(&self) -> &Target {
        let targets = self.unfinished.values().chain([&self.current]);
        targets.min_by_key(|target| (target.complete, target.number)).unwrap_or(&self.current)
    }

    fn is_known(&self) -> bool {
        self.content != Content::Unknown
    }

    /// The content of the kernel is unknown until a reconcile, which is due by then.
    fn invalidate(&mut self, reconcile_at: Instant) {
        self.content = Content::Unknown;
        self.reconcile_at = Some(self.reconcile_at.map_or(reconcile_at, |at| at.min(reconcile_at)));
    }
}

impl<B: Backend> Programmer<B> {
    /// Programs until `shutdown`. The kernel is left as it is then. `is_after_boot`: the node has restarted since a
    /// frontend confirmed the stored state.
    pub(crate) async fn run(&mut self, is_after_boot: bool, mut shutdown: Shutdown) {
        if shutdown.run_until_started(self.adopt(is_after_boot)).await.is_some() {
            self.sync.invalidate(Instant::now());
        }
        let mut watched_at = Instant::now();
        while !shutdown.is_triggered() {
            self.drifts.end_incident();
            let target = self.targets.borrow_and_update().clone();
            let changes = Changes::between(&self.sync.current.state, &target.state);
            let begun = Instant::now();
            let work = self.sync.work(&changes);
            if let Some(work) = work {
                self.take(target, &changes);
                self.call(work, &changes).await;
            } else if self.sync.is_known() && self.sync.current.number != target.number {
                // A commit or bookmark that changes nothing is programmed at once.
                self.take(target, &changes);
                self.publish(None);
            }
            // Drift does not wait for the end of a large change, which may never come.
            if work.is_some() && watched_at.elapsed() < WATCH_INTERVAL {
                continue;
            }
            // A comparison may take as long as a call.
            let watch_time = begun.elapsed().clamp(WATCH_TIME, MAX_IDLE);
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
                () = runtime::sleep_until(self.sync.reconcile_at), if is_idle => {}
                () = self.health.changed() => self.publish(None),
                drift = self.backend.drifted(), if self.sync.is_known() => self.drifted(&drift),
                () = sleep(if is_idle { MAX_IDLE } else { watch_time }) => {}
            }
        }
        self.reporter.log_applied();
    }

    /// Waits for a first commit or bookmark, or until the stored state is due: later if the kernel may be newer.
    async fn adopt(&mut self, is_after_boot: bool) {
        let begun = Instant::now();
        let is_answered = |target: &Target| target.number > 0;
        // It fails only at the end of the process.
        if self.sync.current.committed.is_none() {
            let _ = self.targets.wait_for(is_answered).await;
            return;
        }
        // After a reboot the kernel is empty, which is soon known.
        let wait = if is_after_boot { Duration::ZERO } else { FIRST_ANSWER };
        if timeout_at(begun + wait, self.targets.wait_for(is_answered)).await.is_ok() {
            return;
        }
        // It may hang, which a liveness probe has to detect.
        self.reporter.begun(Instant::now());
        let answer = timeout(SYNC_FAILING, self.backend.is_programmed()).await;
        let answer = answer.unwrap_or_else(|_| {
            let error = anyhow!("the kernel was not read within {} s", SYNC_FAILING.as_secs());
            self.reporter.progress.send_modify(|progress| progress.error = Some(error.to_string()));
            Err(error)
        });
        let is_programmed = answer.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "cannot find out whether the kernel is programmed");
            true
        });
        if is_programmed {
            let wait_ms = ADOPTION.as_millis();
            info!(wait_ms, "the kernel is programmed, it is left as it is until a frontend answers");
            let _ = timeout_at(begun + ADOPTION, self.targets.wait_for(is_answered)).await;
        }
    }

    fn take(&mut self, target: Target, changes: &Changes) {
        if !target.is_confirmed {
            self.flows.record(PendingFlows::rolled_back);
        }
        self.sync.take(target, changes);
    }

    /// Lets the backend work on the current target.
    async fn call(&mut self, work: Work, changes: &Changes) {
        let begun = Instant::now();
        self.reporter.begun(begun);
        let before = mem::replace(&mut self.sync.content, Content::Unknown);
        let state = &self.sync.current.state;
        self.flows.record(|pending| pending.prepare(state));
        let result = match work {
            Work::Reconcile => self.backend.reconcile(state).await.context("reconcile"),
            Work::Apply => self.backend.apply(state, changes).await.context("apply"),
        };
        match result {
            Ok(report) => self.succeeded(before, work, report, begun.elapsed()),
            Err(error) => {
                let delay = self.backoff.next_delay();
                self.sync.reconcile_at = None;
                self.sync.invalidate(Instant::now() + delay);
                self.reporter.failed(B::NAME, work, &error, delay);
            }
        }
    }

    fn succeeded(&mut self, before: Content, work: Work, report: SyncReport, took: Duration) {
        let completed = self.sync.succeeded(before, work, &report);
        let SyncState { current, unfinished, failures, reconcile_at, repair_due, is_suspected, .. } = &mut self.sync;
        let state = &current.state;
        let completed = completed.iter().map(|(key, had)| {
            let (before, after) = (had.state.service_port(key), state.service_port(key));
            ServicePortChange { key, before, after }
        });
        let completed: Vec<_> = completed.collect();
        let failed = report.failures.iter().map(|failure| &failure.key).chain(unfinished.keys());
        self.flows.record(|pending| pending.programmed(work == Work::Reconcile, failed));
        // A load balancer sends connections to all ports of a node that it finds healthy.
        let is_whole = |change: &&ServicePortChange<'_>| !has_port_of(unfinished, change.key);
        self.health.publish(state, completed.iter().filter(is_whole).map(|change| change.key));
        if *is_suspected {
            // A service port or an IP family that is not rejected any more is written, too.
            let failing: BTreeSet<_> = report.failures.iter().map(|failure| &failure.key).collect();
            let left_out: BTreeSet<_> = report.unusable_families.iter().map(|(family, _)| family).collect();
            let unusable = &self.reporter.progress.borrow().unusable_families;
            *is_suspected = failures.iter().all(|failure| failing.contains(&failure.key))
                && unusable.iter().all(|(family, _)| left_out.contains(family));
        }
        if *repair_due && report.writes > 0 {
            self.reporter.metrics.repairs.inc();
            if *is_suspected {
                self.drifts.found();
                self.reporter.progress.send_modify(|progress| progress.drifts = self.drifts.count);
            }
        }
        // The kernel may reject all transactions of the first call.
        *repair_due &= report.writes == 0 && report.unfinished.is_some();
        if report.unfinished.is_none() {
            self.drifts.repaired();
        }
        if report.writes > 0 || report.unfinished.is_none() {
            self.backoff.reset();
        }
        if !report.failures.iter().any(|failure| failure.retryable) {
            *reconcile_at = None;
            self.retries.reset();
        } else if reconcile_at.is_none() {
            // A commit in between must not postpone it.
            *reconcile_at = Some(Instant::now() + self.retries.next_delay());
        }
        if *failures != report.failures {
            log_failures(&report.failures);
            failures.clone_from(&report.failures);
        }
        self.reporter.succeeded(B::NAME, current, work, &completed, &report, took);
        self.publish(Some(report));
    }

    /// Publishes what is programmed: after a call, or because the target or the health checks have changed without one.
    fn publish(&mut self, report: Option<SyncReport>) {
        let SyncState { current, unfinished, failures, .. } = &self.sync;
        let failures: Vec<_> = failures.iter().cloned().chain(self.health.failures()).collect();
        // Before the revision is reported as programmed: observers of that read the failures, too.
        self.reporter.progress.send_modify(|progress| progress.failures.clone_from(&failures));
        if !self.sync.is_known() {
            return;
        }
        let complete = self.sync.complete();
        if unfinished.is_empty() {
            self.reporter.finished(current, &self.targets.borrow());
        } else if complete.complete.number > 0 {
            // While changes keep coming, the newest one may never be programmed completely.
            self.reporter.programmed(complete.committed);
        }
        // The flows of those that are unfinished wait on their own.
        if current.is_confirmed {
            self.flows.record(PendingFlows::confirmed);
        }
        let degraded = describe_unserved(&self.reporter.progress.borrow());
        // Service ports whose loss is withheld are not among them.
        let withholds = current.complete.number < current.number;
        let unfinished_namespaces = if withholds { BTreeSet::new() } else { few_namespaces(unfinished.keys()) };
        self.programmed.send_modify(|programmed| {
            programmed.number = current.number;
            programmed.complete = complete.complete;
            programmed.failures = failures;
            programmed.degraded = degraded;
            programmed.unfinished_namespaces = unfinished_namespaces;
            if let Some(report) = report {
                programmed.unfinished = report.unfinished.unwrap_or_default();
            }
        });
    }

    /// Lets a repair follow drift.
    fn drifted(&mut self, drift: &Drift) {
        let repair_in = self.drifts.record(drift);
        self.sync.is_suspected = *drift == Drift::Possible && self.sync.content == Content::Complete;
        self.sync.invalidate(Instant::now() + repair_in);
        self.sync.repair_due = true;
        self.reporter.progress.send_modify(|progress| progress.drifts = self.drifts.count);
    }
}

/// The namespaces of service ports in ascending order; none if an Ack does not name so many.
fn few_namespaces<'a>(keys: impl Iterator<Item = &'a ServicePortKey>) -> BTreeSet<Arc<str>> {
    let mut namespaces = BTreeSet::new();
    for key in keys {
        if !namespaces.contains(&key.namespace) {
            if namespaces.len() == Ack::MAX_UNFINISHED_NAMESPACES {
                return BTreeSet::new();
            }
            namespaces.insert(key.namespace.clone());
        }
    }
    namespaces
}

/// Whether one of these is a port of the Service that this one belongs to.
fn has_port_of(unfinished: &BTreeMap<ServicePortKey, Arc<Target>>, key: &ServicePortKey) -> bool {
    let service = ServiceName::of(key);
    unfinished.range(service.first_key()..).next().is_some_and(|(key, _)| service.contains(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeBackend, FakeKernel, mk_key, mk_state};

    #[test]
    fn many_namespaces_are_not_named() {
        let keys = |count| (0..count).map(|n| mk_key(&format!("ns-{n:02}/web"))).collect::<Vec<_>>();
        assert_eq!(few_namespaces([keys(16), keys(16)].concat().iter()).len(), 16);
        assert_eq!(few_namespaces(keys(17).iter()), BTreeSet::new());
    }

    /// Programs a target, of which the kernel takes one service port with each call.
    async fn programmer(kernel: &FakeKernel, state: NodeState, is_confirmed: bool) -> Programmer<FakeBackend> {
        let stored = Target::unconfirmed(mk_state().build(), None);
        let target = Target { number: 1, is_confirmed, ..Target::unconfirmed(state, None) };
        let changes = Changes::between(&stored.state, &target.state);
        kernel.limit(1);
        let mut programmer = Programmer {
            backend: kernel.backend(),
            targets: watch::channel(target.clone()).1,
            programmed: watch::Sender::default(),
            sync: SyncState::unknown(stored.clone()),
            backoff: Backoff::new(Duration::ZERO, Duration::ZERO),
            retries: Backoff::new(Duration::ZERO, Duration::ZERO),
            drifts: Drifts::default(),
            flows: Arc::new(Flows::without_thread(stored.state)),
            health: HealthChecks::default(),
            reporter: Reporter::new(watch::Sender::default(), Arc::default(), None),
        };
        programmer.take(target, &changes);
        programmer.call(Work::Reconcile, &changes).await;
        programmer
    }

    /// A large change of one namespace must not delay the flows of the others.
    #[tokio::test]
    async fn flows_of_what_is_programmed_do_not_wait_for_what_is_unfinished() {
        let state = mk_state().service("default/a", |a| a.cluster_ip("10.96.0.1"));
        let state = state.service("default/b", |b| b.cluster_ip("10.96.0.2")).build();
        for is_confirmed in [false, true] {
            let programmer = programmer(&FakeKernel::default(), state.clone(), is_confirmed).await;
            assert_eq!(programmer.sync.unfinished.len(), 1);
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
        let mut programmer = programmer(&kernel, before.clone(), true).await;
        let flows = programmer.flows.clone();
        assert!(flows.compares_udp(&key));

        kernel.slow_reports(Duration::from_secs(1));
        let changes = Changes::between(&before, &after);
        programmer.take(Target { number: 2, ..Target::unconfirmed(after.clone(), None) }, &changes);
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
            let mut programmer = programmer(&kernel, before.clone(), true).await;
            programmer.drifted(&drift);
            if is_lost {
                kernel.lose(&mk_key("default/a"));
            }
            let changes = Changes::between(&before, newest);
            programmer.take(Target { number: 2, ..Target::unconfirmed(newest.clone(), None) }, &changes);
            programmer.call(Work::Reconcile, &changes).await;
            assert_eq!(programmer.drifts.count, count, "{drift:?}");
            assert_eq!(programmer.reporter.progress.borrow().drifts, count);
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
        let mut programmer = programmer(&kernel, state, true).await;
        let unchanged = Changes::default();
        programmer.call(Work::Apply, &unchanged).await;
        assert_eq!(programmer.sync.content, Content::Complete);
        programmer.drifted(&Drift::Possible);
        kernel.lose(&mk_key("default/b"));
        for (work, count) in [(Work::Reconcile, 0), (Work::Apply, 1)] {
            programmer.call(work, &unchanged).await;
            assert_eq!((programmer.drifts.count, programmer.reporter.metrics.repairs.get()), (count, count));
        }
        // Its end would wait for a thread.
        mem::forget(programmer.flows);
    }

    /// Otherwise the frontend would wait for all of the reconcile, which changes of others may prolong for ever.
    #[test]
    fn a_removal_is_complete_before_the_reconcile_that_preceded_it() {
        let with = |names: &[&str]| {
            let state = names.iter().fold(mk_state(), |state, name| state.service(name, |service| service.port(80)));
            state.build()
        };
        let target = |number, names: &[&str]| Target { number, ..Target::unconfirmed(with(names), None) };
        let mut sync = SyncState::unknown(target(0, &["default/before"]));
        let mut step = |target: Target, work, unfinished: &[&str]| {
            let changes = Changes::between(&sync.current.state, &target.state);
            sync.take(target, &changes);
            let unfinished = Some(unfinished.iter().map(|key| mk_key(key)).collect());
            let completed = sync.succeeded(sync.content, work, &SyncReport { unfinished, ..SyncReport::default() });
            completed.into_keys().map(|key| key.to_string()).collect::<Vec<_>>()
        };
        let first = step(target(1, &["default/a", "default/b"]), Work::Reconcile, &["default/b"]);
        assert_eq!(first, ["default/a/tcp"], "the kernel may still have what was removed before");
        assert_eq!(step(target(2, &["default/b"]), Work::Apply, &["default/b"]), ["default/a/tcp"]);
        assert_eq!(step(target(3, &["default/b"]), Work::Apply, &[]), ["default/b/tcp"]);

        // What the kernel has of a service port is unknown after a reconcile that did not reach it.
        let both = || target(3, &["default/b", "default/c"]);
        step(both(), Work::Apply, &[]);
        step(both(), Work::Reconcile, &["default/b", "default/c"]);
        assert_eq!(step(target(4, &["default/b"]), Work::Apply, &["default/b"]), [""; 0]);
    }
}
