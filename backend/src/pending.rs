//! What stands between the last commit and the kernel: whether the backend must do something, when, and which acks wait for it.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use proto::{
    digest::Digest,
    model::{Ack, Revision, ServicePortFailure},
};
use runtime::Backoff;
use tokio::time::Instant;

use crate::{Changes, Drift, drifts::Drifts, stream::Turn};

/// The most acks that wait while the backend fails. A later one says all that an earlier one does.
const MAX_ACKS: usize = 256;

/// The most commits whose time is remembered while the backend fails. The oldest say how long it takes.
const MAX_TRIGGERS: usize = 256;

/// What has to be done, and is owed to the frontend.
#[derive(Debug)]
pub(crate) struct Pending {
    standing: Standing,
    /// What was committed since the backend's last success.
    changes: Changes,
    acks: VecDeque<PendingAck>,
    /// When to reconcile, whatever happens until then.
    retry: Option<Instant>,
    backoff: Backoff,
    drifts: Drifts,
    repair: Repair,
    /// What the backend could not program at its last success.
    failures: Vec<ServicePortFailure>,
    /// Those whose health-check node port nobody answers at, as was said last.
    health_checks: Vec<ServicePortFailure>,
    /// When the oldest change of each commit in `changes` was made in the cluster.
    triggers: Vec<SystemTime>,
}

/// How the kernel and the committed state stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing was ever committed, so the kernel is left as it is.
    Nothing,
    /// Nobody knows what the kernel holds: at the start, and after a failure.
    Unknown,
    /// The kernel holds everything but `changes` and `failures`.
    Known,
}

/// Whether the next reconciliation follows a drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repair {
    None,
    Due,
}

/// Which method of the backend to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Reconcile,
    Apply(Changes),
}

#[derive(Debug)]
struct PendingAck {
    revision: Revision,
    digest: Digest,
    received: Instant,
}

impl Pending {
    /// `retry`: the shortest and the longest delay after a failure.
    pub(crate) fn new(retry: (Duration, Duration)) -> Self {
        Self {
            standing: Standing::Nothing,
            changes: Changes::default(),
            acks: VecDeque::new(),
            retry: None,
            backoff: Backoff::new(retry.0, retry.1),
            drifts: Drifts::default(),
            repair: Repair::None,
            failures: Vec::new(),
            health_checks: Vec::new(),
            triggers: Vec::new(),
        }
    }

    /// There is a committed state now, and these are the changes that led to it. Also for a bookmark, which changes nothing.
    pub(crate) fn commit(&mut self, revision: Revision, digest: Digest, changes: Changes, received: Instant) {
        self.restored();
        self.changes.merge(changes);
        if self.acks.len() == MAX_ACKS {
            self.acks.pop_front();
        }
        self.acks.push_back(PendingAck { revision, digest, received });
    }

    /// What was committed last was changed in the cluster at this time.
    pub(crate) fn triggered(&mut self, trigger: SystemTime) {
        if self.triggers.len() < MAX_TRIGGERS {
            self.triggers.push(trigger);
        }
    }

    /// The times of the changes that are in force now, once.
    pub(crate) fn take_triggers(&mut self) -> Vec<SystemTime> {
        std::mem::take(&mut self.triggers)
    }

    /// There is a committed state, but the kernel may hold anything.
    pub(crate) fn restored(&mut self) {
        if self.standing == Standing::Nothing {
            self.standing = Standing::Unknown;
            self.retry = Some(Instant::now());
        }
    }

    /// Whether the kernel is to stay as it is: if not, whatever happens to it does not matter.
    pub(crate) fn holds(&self) -> bool {
        self.standing == Standing::Known
    }

    /// The kernel seems to have changed behind our back. Says when it will be looked at.
    pub(crate) fn drifted(&mut self, drift: &Drift) -> Duration {
        let delay = self.drifts.seen(drift);
        let repair = Instant::now() + delay;
        self.standing = Standing::Unknown;
        self.repair = Repair::Due;
        self.retry = Some(self.retry.map_or(repair, |retry| retry.min(repair)));
        delay
    }

    /// How often somebody else was seen to change it.
    pub(crate) fn drifts(&self) -> u64 {
        self.drifts.count()
    }

    /// Whether this, which has succeeded, was the first reconciliation after a drift.
    pub(crate) fn repaired(&mut self, work: &Work) -> bool {
        *work == Work::Reconcile && std::mem::replace(&mut self.repair, Repair::None) == Repair::Due
    }

    /// Nobody waits for the acks any more.
    pub(crate) fn lost(&mut self) {
        self.acks.clear();
    }

    /// Whether the frontend waits for an ack.
    pub(crate) fn turn(&self) -> Turn {
        if self.acks.is_empty() { Turn::Theirs } else { Turn::Ours }
    }

    /// What to do now, if anything. What is asked for counts as begun.
    pub(crate) fn begin(&mut self) -> Option<Work> {
        let retry = self.retry.is_some_and(|retry| retry <= Instant::now());
        if retry {
            self.retry = None;
            self.standing = Standing::Unknown;
            self.changes = Changes::default();
            return Some(Work::Reconcile);
        }
        if self.standing == Standing::Known && !self.changes.is_empty() {
            self.standing = Standing::Unknown;
            return Some(Work::Apply(std::mem::take(&mut self.changes)));
        }
        None
    }

    /// When [`Self::begin`] will have something although nothing happens until then.
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.retry
    }

    /// The backend has done what was begun. Says whether other service ports fail than before.
    pub(crate) fn succeeded(&mut self, failures: Vec<ServicePortFailure>) -> bool {
        self.standing = Standing::Known;
        if !failures.iter().any(|failure| failure.retryable) {
            self.retry = None;
            self.backoff.reset();
        } else if self.retry.is_none() {
            // Not put off by each commit.
            self.retry = Some(Instant::now() + self.backoff.next_delay());
        }
        let differs = self.failures != failures;
        self.failures = failures;
        differs
    }

    /// At these health-check node ports nobody answers.
    pub(crate) fn health_checks(&mut self, failures: Vec<ServicePortFailure>) {
        self.health_checks = failures;
    }

    /// All that is not in force although the backend has succeeded.
    pub(crate) fn failures(&self) -> Vec<ServicePortFailure> {
        self.failures.iter().chain(&self.health_checks).cloned().collect()
    }

    /// The backend could not do it. Says when it will be tried again.
    pub(crate) fn failed(&mut self) -> Duration {
        let delay = self.backoff.next_delay();
        self.standing = Standing::Unknown;
        self.retry = Some(Instant::now() + delay);
        delay
    }

    /// What may be acked, now that everything is in force but for the failures.
    pub(crate) fn acks(&mut self) -> Vec<Ack> {
        if self.standing != Standing::Known || !self.changes.is_empty() {
            return Vec::new();
        }
        let (now, failures) = (Instant::now(), self.failures());
        let acks = self.acks.drain(..).map(|PendingAck { revision, digest, received }| Ack {
            revision,
            digest: Some(digest),
            apply_time: now - received,
            failures: failures.clone(),
        });
        acks.collect()
    }
}
