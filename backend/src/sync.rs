//! The one loop: when the kernel is touched, and when the frontend is told.
//!
//! ```text
//!   stored state ──▶ reconcile
//!                        │
//!        ┌───────────────▼──────────────────────────────────────────────┐
//!        │ event ──▶ replica ──▶ pending ──▶ apply | reconcile ──▶ acks  │──▶ until shutdown
//!        │   ▲                                   │ stale UDP flows      │
//!        │   └──────── backlog of what comes ◀───┘ while it runs        │
//!        └──────────────────────────────────────────────────────────────┘
//! ```

use std::{
    collections::VecDeque,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use proto::model::{ClientMessage, ServerMessage, ServicePortFailure};
use runtime::{ReadyGuard, Shutdown};
use tokio::{
    pin,
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, error, info, warn};

use crate::{
    Backend, ChangeCounts, Changes, Connect, Progress, Store, SyncReport,
    conntrack::Sweeper,
    health::Health,
    metrics::{Metrics, NoLocal},
    pending::{Pending, Work},
    replica::{Origin, Outcome, Replica},
    stream::{StreamEvent, StreamFollower, Turn},
};

/// The most events that are taken in while the backend works. With more than that the frontend has to wait.
const MAX_BACKLOG: usize = 32;

/// The loop turns at least this often, so that who asks can tell that it does.
pub(crate) const TURN: Duration = Duration::from_secs(10);

/// Everything that the loop works with.
pub(crate) struct Loop<B, C> {
    pub(crate) backend: B,
    pub(crate) backend_version: String,
    /// Since when this run lasts.
    pub(crate) started: SystemTime,
    pub(crate) stream: StreamFollower<C>,
    pub(crate) replica: Replica,
    pub(crate) store: Option<Store>,
    pub(crate) pending: Pending,
    pub(crate) sweeper: Sweeper,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) no_local: NoLocal,
    /// Released when the kernel holds a state for the first time.
    pub(crate) ready: Option<ReadyGuard>,
}

/// What came while the backend was working.
type Backlog = VecDeque<(Instant, StreamEvent)>;

/// What the backend has done.
struct Done {
    result: Result<SyncReport>,
    took: Duration,
    /// When, for who measures from another machine's time.
    at: SystemTime,
}

impl<B: Backend, C: Connect> Loop<B, C> {
    /// Follows the frontend until `shutdown`. The kernel stays as it is then.
    pub(crate) async fn run(mut self, mut shutdown: Shutdown) {
        if self.replica.held().is_some() {
            self.pending.restored();
        }
        while !shutdown.is_triggered() {
            // Nobody waits for this.
            self.progress.send_if_modified(|progress| {
                progress.turned = Some(Instant::now());
                false
            });
            if let Some(work) = self.pending.begin() {
                let backlog = self.program(work).await;
                self.settle();
                self.catch_up(backlog);
                continue;
            }
            self.settle();
            let wake = self.pending.wake();
            let Self { stream, replica, backend, backend_version, started, pending, progress, health, .. } = &mut self;
            tokio::select! {
                () = shutdown.recv() => {}
                event = stream.next(pending.turn(), || replica.hello(B::NAME, backend_version, *started)) => {
                    // The next round begins with a new session, if this one was given up.
                    let _ = self.take(Instant::now(), event);
                }
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
                () = sleep_until(Instant::now() + TURN) => {}
                () = health.changed() => {
                    // The next ack says it: a bookmark comes within seconds.
                    pending.health_checks(health.failures());
                    progress.send_modify(|progress| progress.failures = pending.failures());
                }
                drift = backend.drifted(), if pending.holds() => {
                    let repair_in = pending.drifted(&drift);
                    progress.send_modify(|progress| progress.drifts = pending.drifts());
                    debug!(?drift, ?repair_in, "drift");
                }
            }
        }
        self.flush();
        info!("stopped, the kernel stays as it is");
    }

    /// Lets the backend work. The stream goes on being read meanwhile, but for a new session: that would have to say what is
    /// held, which is in the backlog.
    async fn program(&mut self, work: Work) -> Backlog {
        let begun = Instant::now();
        self.progress.send_modify(|progress| {
            progress.pending_since.get_or_insert(begun);
        });
        let Self { stream, replica, backend, backend_version, started, sweeper, .. } = self;
        let mut backlog = Backlog::new();
        let state = replica.state();
        let done = {
            let call = async {
                let result = match &work {
                    Work::Reconcile => backend.reconcile(state).await.context("reconcile"),
                    Work::Apply(changes) => backend.apply(state, changes).await.context("apply"),
                };
                let done = Done { result, took: begun.elapsed(), at: SystemTime::now() };
                if let Ok(SyncReport { failures, .. }) = &done.result {
                    sweeper.follow(&work, state, failures).await;
                }
                done
            };
            pin!(call);
            let mut read = true;
            loop {
                tokio::select! {
                    biased;
                    done = &mut call => break done,
                    event = stream.next(Turn::Ours, || replica.hello(B::NAME, backend_version, *started)), if read => {
                        read = !matches!(event, StreamEvent::Lost) && backlog.len() + 1 < MAX_BACKLOG;
                        backlog.push_back((Instant::now(), event));
                    }
                }
            }
        };
        self.programmed(&work, done);
        backlog
    }

    fn programmed(&mut self, work: &Work, Done { result, took, at }: Done) {
        let held = self.replica.held();
        let changed = match work {
            Work::Reconcile => None,
            Work::Apply(changes) => Some(changes.service_ports.len()),
        };
        match result {
            Ok(SyncReport { writes, failures, lock_wait }) => {
                let state = self.replica.state();
                self.health.publish(state, work);
                let no_local = self.no_local.update(state, work);
                self.metrics.synced(work, took, writes);
                for trigger in self.pending.take_triggers() {
                    self.metrics.programmed(trigger, at);
                }
                if self.pending.repaired(work) && writes > 0 {
                    self.metrics.repaired();
                }
                info!(
                    revision = held.map(|(_, revision)| revision.0),
                    services = changed.unwrap_or(self.replica.state().service_ports().len()),
                    writes,
                    ms = took.as_micros() as f64 / 1e3,
                    lock_wait_ms = (!lock_wait.is_zero()).then_some(lock_wait.as_micros() as f64 / 1e3),
                    "{}",
                    if changed.is_some() { "applied" } else { "reconciled" },
                );
                if self.pending.succeeded(failures.clone()) {
                    log_failures(&failures);
                }
                let failures = self.pending.failures();
                self.progress.send_modify(|progress| {
                    (progress.programmed, progress.error, progress.failures) = (held, None, failures);
                    progress.lock_wait += lock_wait;
                    progress.deleted_flows = self.sweeper.deleted;
                    progress.failed_sweeps = self.sweeper.failed;
                    progress.no_local = no_local;
                    (progress.pending, progress.pending_since) = (ChangeCounts::default(), None);
                    progress.last_success = Some(at);
                });
                self.ready = None;
            }
            Err(error) => {
                self.metrics.failed(work);
                let retry_in = self.pending.failed();
                let error = format!("{error:#}");
                error!(backend = B::NAME, %error, ?retry_in, "kernel not programmed");
                self.progress.send_modify(|progress| progress.error = Some(error));
            }
        }
    }

    /// Takes in what came while the backend worked. What follows in a session that was given up is void.
    fn catch_up(&mut self, backlog: Backlog) {
        for (received, event) in backlog {
            if self.take(received, event).is_break() {
                return;
            }
        }
    }

    /// Breaks when it has given the session up.
    fn take(&mut self, received: Instant, event: StreamEvent) -> ControlFlow<()> {
        match event {
            StreamEvent::Connected => self.progress.send_modify(|progress| progress.connected = true),
            StreamEvent::Lost => self.lost(),
            StreamEvent::Server(event) => {
                if let ServerMessage::Welcome(welcome) = &event {
                    self.metrics.session(welcome.mode);
                }
                let outcome = self.replica.take(event, self.store.as_mut());
                self.progress.send_modify(|progress| {
                    progress.last_contact = Some(received);
                    progress.committed = self.replica.held();
                    progress.refused_operations = self.replica.refused;
                    progress.digest_mismatches = self.replica.mismatches;
                    progress.backwards = self.replica.backwards;
                });
                match outcome {
                    Ok(Outcome::Nothing) => {}
                    Ok(Outcome::Reply(reply)) => self.stream.reply(reply),
                    Ok(Outcome::Ack(revision, digest, changes, origin)) => {
                        self.committed(&changes, origin, received);
                        self.pending.commit(revision, digest, changes, received);
                    }
                    Ok(Outcome::HeldBack(revision, loss)) => {
                        let ask_in = self.stream.hold();
                        error!(
                            %revision, ?ask_in,
                            "held back, what was programmed stays: {loss}, which is more than --max-loss; what a snapshot says then is believed"
                        );
                        self.progress.send_modify(|progress| progress.held_back += 1);
                        self.lost();
                        return ControlFlow::Break(());
                    }
                    Err(violation) => {
                        warn!(%violation, "the frontend breaks the protocol");
                        self.stream.give_up("it broke the protocol");
                        self.lost();
                        return ControlFlow::Break(());
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Takes note of a commit before it is put in force.
    fn committed(&mut self, changes: &Changes, Origin { trigger, tally }: Origin, received: Instant) {
        let concerns_kernel = !changes.is_empty();
        if let Some(trigger) = trigger.filter(|_| concerns_kernel) {
            self.pending.triggered(trigger);
        }
        self.progress.send_modify(|progress| {
            progress.eligible = self.replica.state().node().eligible;
            progress.service_ports = self.replica.state().service_ports().len();
            progress.received += tally;
            if concerns_kernel {
                progress.pending += tally;
                progress.pending_since.get_or_insert(received);
                progress.last_queued = Some(SystemTime::now());
            }
        });
    }

    fn lost(&mut self) {
        self.replica.lost();
        self.pending.lost();
        self.progress.send_modify(|progress| progress.connected = false);
    }

    /// Says and writes down what is in force.
    fn settle(&mut self) {
        self.pending.health_checks(self.health.failures());
        let acks = self.pending.acks();
        if !acks.is_empty() {
            // Also without a call of the backend: a commit or a bookmark that changes nothing is in force at once.
            let held = self.replica.held();
            self.progress.send_modify(|progress| progress.programmed = held);
        }
        for ack in acks {
            self.stream.reply(ClientMessage::Ack(ack));
        }
        self.flush();
    }

    fn flush(&mut self) {
        if let (Some(store), Some((epoch, revision))) = (&mut self.store, self.replica.held()) {
            store.flush(self.replica.state(), epoch, revision);
        }
    }
}

fn log_failures(failures: &[ServicePortFailure]) {
    for ServicePortFailure { key, reason, retryable, kind: _ } in failures {
        warn!(service = %key, reason, retryable, "service port not programmed");
    }
    if failures.is_empty() {
        info!("all service ports are programmed again");
    }
}

#[cfg(test)]
mod tests;
