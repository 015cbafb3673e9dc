//! The sync loop: when the kernel is programmed, and when the frontend gets an ack.
//!
//! ```text
//!   stored state ──▶ reconcile: at once, or when a frontend has answered or does not
//!                        │
//!        ┌───────────────▼───────────────────────────────────────────────────┐
//!        │ event ──▶ replica  ──▶ pending ──▶ apply | reconcile ──▶ acks     │──▶ until shutdown
//!        │   ▲                       ▲             │ stale UDP flows         │
//!        │   │                       └─ unfinished ┤                         │
//!        │   └──────── backlog of events ◀─────────┘ received meanwhile      │
//!        └───────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A call of the backend programs a limited part of a large change. Between two calls, the events that were received
//! meanwhile are added to what is to be programmed.

mod reporter;

use std::{
    collections::{BTreeSet, VecDeque},
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use proto::model::{ClientMessage, ServerMessage};
use runtime::Shutdown;
use tokio::{
    pin,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    Backend, Connect, SyncReport,
    backend::Work,
    conntrack::ConntrackCleaner,
    health::HealthChecks,
    pending::{Pending, PendingAck},
    replica::{Reaction, Replica},
    resets::ConnectionResetter,
    stream::{IdleTimeout, StreamEvent, StreamFollower},
};
pub(crate) use reporter::Reporter;

/// The most events that are received while the backend works. Beyond that the stream's flow control stops the frontend.
const MAX_BACKLOG: usize = 32;

/// How long a frontend has to answer before the kernel is read for whether an earlier process has programmed it.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// How long a kernel that an earlier process has programmed is left as it is until a frontend answers: the stored state
/// may be older.
const ADOPTION: Duration = Duration::from_secs(10);

/// The loop runs at least this often, so that a liveness probe can detect that it hangs.
pub(crate) const MAX_IDLE: Duration = Duration::from_secs(10);

/// The loop with everything that it calls.
pub(crate) struct SyncLoop<B, C> {
    pub(crate) backend: B,
    pub(crate) stream: StreamFollower<C>,
    pub(crate) replica: Replica,
    pub(crate) pending: Pending,
    pub(crate) conntrack: ConntrackCleaner,
    pub(crate) resets: ConnectionResetter,
    pub(crate) health: HealthChecks,
    pub(crate) reporter: Reporter,
    /// Since when a stored state waits for a frontend.
    pub(crate) restoring: Option<Instant>,
}

/// A call of the backend that has ended.
struct EndedCall {
    /// The part of its work that is programmed completely.
    completed: Work,
    took: Duration,
    /// When it ended.
    at: SystemTime,
}

/// The events received while the backend was working.
type Backlog = VecDeque<(Instant, StreamEvent)>;

impl<B: Backend, C: Connect> SyncLoop<B, C> {
    /// Follows the frontend until `shutdown`. The kernel is left as it is then.
    pub(crate) async fn run(mut self, mut shutdown: Shutdown) {
        if self.replica.committed().is_some() {
            let begun = Instant::now();
            // After a reboot the kernel is empty, which is soon known.
            let wait = if self.replica.is_of_earlier_boot() { Duration::ZERO } else { FIRST_ANSWER };
            self.restoring = Some(begun);
            self.pending.retry_at = Some(begun + wait);
        }
        while !shutdown.is_triggered() {
            self.reporter.iterated();
            self.postpone().await;
            if let Some(work) = self.pending.begin() {
                let backlog = self.program(work).await;
                self.send_acks();
                // The rest of an ended session is void.
                let _ = backlog.into_iter().try_for_each(|(received, event)| self.handle(received, event));
                continue;
            }
            self.send_acks();
            let retry_at = self.pending.retry_at;
            let confirm_at = self.replica.confirm_at();
            let Self { backend, stream, replica, pending, health, reporter, .. } = &mut self;
            tokio::select! {
                () = shutdown.recv() => {}
                event = stream.next(pending.idle_timeout(), || replica.hello()) => {
                    // If the session was ended, the next iteration begins another one.
                    let _ = self.handle(Instant::now(), event);
                }
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
                () = sleep_until(Instant::now() + MAX_IDLE) => {}
                () = health.changed() => {
                    pending.health_check_failures = health.failures();
                    reporter.failures(pending);
                }
                () = sleep_until(confirm_at.unwrap_or_else(Instant::now)), if confirm_at.is_some() => {
                    info!("requesting a snapshot from another frontend to confirm the withheld loss");
                    replica.request_snapshot();
                    stream.change_frontend();
                    self.lost();
                }
                drift = backend.drifted(), if pending.is_applied() => {
                    let repair_in = pending.drifted(&drift);
                    debug!(?drift, repair_in_ms = repair_in.as_millis(), "drift");
                    reporter.progress.send_modify(|progress| progress.drifts = pending.drifts.count);
                }
            }
        }
        self.replica.finish().await;
        info!("stopped, the kernel is left as it is");
    }

    /// The stored state is due. Postpones it once if the kernel may be newer.
    async fn postpone(&mut self) {
        let is_due = self.pending.retry_at.is_some_and(|at| at <= Instant::now());
        let Some(begun) = self.restoring.take_if(|_| is_due) else { return };
        let is_programmed = self.backend.is_programmed().await.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "cannot find out whether the kernel is programmed");
            true
        });
        if is_programmed {
            let wait_ms = ADOPTION.as_millis();
            info!(wait_ms, "the kernel is programmed, it is left as it is until a frontend answers");
            self.pending.retry_at = Some(begun + ADOPTION);
        }
    }

    /// Lets the backend work. Events of the open session are received meanwhile, but no new session begins: its hello
    /// would have to include the commits in the backlog.
    async fn program(&mut self, work: Work) -> Backlog {
        let begun = Instant::now();
        self.reporter.progress.send_modify(|progress| progress.pending_since = progress.pending_since.or(Some(begun)));
        let Self { backend, stream, replica, pending, conntrack, .. } = self;
        let pending = &*pending;
        let replica = &*replica;
        let state = replica.state();
        let mut backlog = Backlog::new();
        let (result, call) = {
            conntrack.prepare(&work, state);
            let call = async {
                let result = match &work {
                    Work::Reconcile => backend.reconcile(state).await.context("reconcile"),
                    Work::Apply(changes) => backend.apply(state, changes).await.context("apply"),
                };
                let took = begun.elapsed();
                let at = SystemTime::now();
                let unfinished = result.as_ref().ok().and_then(|report| report.unfinished.as_ref());
                let completed = pending.completed(&work, unfinished);
                if let Ok(SyncReport { failures, unfinished, .. }) = &result {
                    let failed = || failures.iter().map(|failure| &failure.key);
                    conntrack.programmed(&completed, failed().chain(unfinished.iter().flatten()));
                    if unfinished.iter().all(BTreeSet::is_empty) {
                        conntrack.finished(state, failed());
                    }
                }
                (result, EndedCall { completed, took, at })
            };
            pin!(call);
            let mut receive = true;
            loop {
                tokio::select! {
                    biased;
                    finished = &mut call => break finished,
                    event = stream.next(IdleTimeout::Suspended, || replica.hello()), if receive => {
                        receive = !matches!(event, StreamEvent::Lost) && backlog.len() + 1 < MAX_BACKLOG;
                        backlog.push_back((Instant::now(), event));
                    }
                }
            }
        };
        self.finish(&work, result, &call);
        backlog
    }

    /// Records the result of a call of the backend for this work.
    fn finish(&mut self, work: &Work, result: Result<SyncReport>, call: &EndedCall) {
        let Self { replica, pending, health, reporter, .. } = self;
        match result {
            Ok(report) => {
                health.publish(replica.state(), &call.completed);
                if pending.repaired(work) && report.writes > 0 {
                    reporter.metrics.repairs.inc();
                }
                if pending.succeeded(report.failures.clone(), report.unfinished.clone()) {
                    reporter::log_failures(&report.failures);
                }
                pending.degraded = reporter::describe_unusable(&report.unusable_families);
                for trigger in pending.programmed_triggers() {
                    reporter.metrics.propagated(trigger, call.at);
                }
                // Before the revision is reported as programmed: observers of that read the failures, too.
                reporter.failures(pending);
                reporter.succeeded(B::NAME, replica, &report, call);
            }
            Err(error) => reporter.failed(B::NAME, work, &error, pending.failed()),
        }
    }

    /// Breaks when it has ended the session.
    fn handle(&mut self, at: Instant, event: StreamEvent) -> ControlFlow<()> {
        match event {
            StreamEvent::Connected => self.connected(true),
            StreamEvent::Lost => self.lost(),
            StreamEvent::Message(message) => return self.handle_message(at, message),
        }
        ControlFlow::Continue(())
    }

    fn handle_message(&mut self, at: Instant, message: ServerMessage) -> ControlFlow<()> {
        if let ServerMessage::Welcome(welcome) = &message {
            self.reporter.metrics.session(welcome.mode);
        }
        let reaction = self.replica.handle(message);
        self.reporter.received(at, &self.replica);
        match reaction {
            Ok(Reaction::None) => {}
            Ok(Reaction::Reply(reply)) => self.stream.reply(reply),
            Ok(Reaction::Commit(revision, digest, changes, origin)) => {
                self.restoring = None;
                if let Some(trigger) = origin.trigger.filter(|_| !changes.is_empty()) {
                    self.pending.triggered(trigger, changes.service_ports.clone());
                }
                self.reporter.committed(self.replica.state(), &changes, origin.counts, at);
                self.reporter.withheld(&self.replica, origin.loss);
                if self.replica.is_rolled_back() {
                    self.conntrack.rolled_back();
                }
                self.conntrack.committed(&changes, origin.departed.as_ref());
                self.resets.committed(origin.departed, &changes, self.replica.state());
                let ack = PendingAck { revision, digest, received_at: at };
                self.pending.commit(ack, changes, self.replica.withheld_service_ports() > 0);
            }
            Err(violation) => {
                warn!(%violation, "the frontend violated the protocol");
                self.stream.end_session("protocol violation");
                self.lost();
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn lost(&mut self) {
        self.replica.lost();
        self.pending.lost();
        self.connected(false);
    }

    fn connected(&self, connected: bool) {
        self.reporter.progress.send_modify(|progress| progress.connected = connected);
    }

    /// Acks and stores what is programmed.
    fn send_acks(&mut self) {
        self.pending.health_check_failures = self.health.failures();
        let acks = self.pending.acks();
        if !acks.is_empty() && self.pending.is_finished() {
            // Also without a call of the backend: a commit or bookmark that changes nothing is programmed at once.
            let committed = self.replica.committed();
            self.reporter.progress.send_modify(|progress| progress.programmed = committed);
            if !self.replica.is_rolled_back() {
                self.conntrack.confirmed();
            }
        }
        for ack in acks {
            self.stream.reply(ClientMessage::Ack(ack));
        }
        self.reporter.state_file(self.replica.flush().as_deref());
    }
}

#[cfg(test)]
mod tests;
