//! What stands between the last commit and the kernel: what the backend has to do, when, and which acks wait for it.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, SystemTime},
};

use proto::{
    digest::Digest,
    model::{Ack, Revision, ServicePortFailure, ServicePortKey},
};
use runtime::Backoff;
use tokio::time::Instant;

use crate::{Changes, Drift, backend::Work, drifts::Drifts, stream::IdleTimeout};

/// The most acks that wait while the backend fails. A later ack covers the earlier ones.
const MAX_ACKS: usize = 256;

/// The most commits whose propagation time is measured while the backend fails: the oldest ones.
const MAX_TRIGGERS: usize = 256;

/// The most bytes of failures in an ack; the status page and the metrics count all of them.
const MAX_FAILURE_BYTES: usize = 256 << 10;

/// The bytes of a failure in an ack without its texts, at most.
const FAILURE_OVERHEAD: usize = 32;

/// The work of the backend, and the acks that wait for it.
#[derive(Debug)]
pub(crate) struct Pending {
    sync_state: SyncState,
    /// Commits since the backend's last success.
    changes: Changes,
    /// See [`SyncReport::unfinished`](crate::SyncReport::unfinished).
    unfinished: Option<BTreeSet<ServicePortKey>>,
    acks: VecDeque<PendingAck>,
    /// The last ack that was sent while service ports were unfinished; it is repeated when all are programmed.
    early_ack: Option<PendingAck>,
    /// The service ports whose loss is withheld: the kernel has endpoints that the commit has not.
    pub(crate) withheld: usize,
    /// When to reconcile: [`Self::begin`] has work then, even if nothing happens before.
    pub(crate) retry_at: Option<Instant>,
    backoff: Backoff,
    pub(crate) drifts: Drifts,
    /// Whether the next reconcile follows drift.
    repair_due: bool,
    /// The service ports that the last successful sync could not program.
    failures: Vec<ServicePortFailure>,
    /// The health-check node ports that are not served.
    pub(crate) health_check_failures: Vec<ServicePortFailure>,
    /// What does not work on the node, for people; at most one text for each IP family.
    pub(crate) degraded: Vec<String>,
    /// When the oldest change of each commit that is not programmed was made in the cluster, and its service ports.
    triggers: Vec<(SystemTime, BTreeSet<ServicePortKey>)>,
}

/// How the kernel relates to the committed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    /// Nothing was ever committed, so the kernel is left unchanged.
    NothingCommitted,
    /// The content of the kernel is unknown: at the start, and after a failure or drift.
    Unknown,
    /// The kernel contains everything except `changes` and `failures`.
    Applied,
}

#[derive(Clone, Copy, Debug)]
struct PendingAck {
    revision: Revision,
    digest: Digest,
    received: Instant,
}

impl Pending {
    /// `retry_delay`: the shortest and the longest delay after a failure.
    pub(crate) fn new(retry_delay: (Duration, Duration)) -> Self {
        Self {
            sync_state: SyncState::NothingCommitted,
            changes: Changes::default(),
            unfinished: None,
            acks: VecDeque::new(),
            early_ack: None,
            withheld: 0,
            retry_at: None,
            backoff: Backoff::new(retry_delay.0, retry_delay.1),
            drifts: Drifts::default(),
            repair_due: false,
            failures: Vec::new(),
            health_check_failures: Vec::new(),
            degraded: Vec::new(),
            triggers: Vec::new(),
        }
    }

    /// Records a commit, or a bookmark, which changes nothing.
    pub(crate) fn commit(&mut self, revision: Revision, digest: Digest, changes: Changes, received: Instant) {
        self.restored();
        self.changes.merge(changes);
        if self.acks.len() == MAX_ACKS {
            self.acks.pop_front();
        }
        self.acks.push_back(PendingAck { revision, digest, received });
    }

    /// Records when the last commit was changed in the cluster.
    pub(crate) fn triggered(&mut self, trigger: SystemTime, service_ports: BTreeSet<ServicePortKey>) {
        if self.triggers.len() < MAX_TRIGGERS {
            self.triggers.push((trigger, service_ports));
        }
    }

    /// Takes the triggers of the commits that are programmed.
    pub(crate) fn programmed_triggers(&mut self) -> Vec<SystemTime> {
        let unfinished = self.unfinished.as_ref();
        let is_programmed = |(_, service_ports): &mut (_, BTreeSet<ServicePortKey>)| {
            unfinished.is_none_or(|unfinished| service_ports.is_disjoint(unfinished))
        };
        self.triggers.extract_if(.., is_programmed).map(|(trigger, _)| trigger).collect()
    }

    /// Whether everything of the last work is programmed.
    pub(crate) fn is_finished(&self) -> bool {
        self.unfinished.as_ref().is_none_or(BTreeSet::is_empty)
    }

    /// There is a committed state, and the content of the kernel is unknown.
    pub(crate) fn restored(&mut self) {
        if self.sync_state == SyncState::NothingCommitted {
            self.sync_state = SyncState::Unknown;
            self.retry_at = Some(Instant::now());
        }
    }

    /// Whether the kernel contains what was applied, so that drift matters.
    pub(crate) fn is_applied(&self) -> bool {
        self.sync_state == SyncState::Applied
    }

    /// Records drift. Returns the delay before the repair.
    pub(crate) fn drifted(&mut self, drift: &Drift) -> Duration {
        let delay = self.drifts.record(drift);
        let repair_at = Instant::now() + delay;
        self.sync_state = SyncState::Unknown;
        self.repair_due = true;
        self.retry_at = Some(self.retry_at.map_or(repair_at, |retry_at| retry_at.min(repair_at)));
        delay
    }

    /// Whether this work, which has succeeded, was the first reconcile after drift.
    pub(crate) fn repaired(&mut self, work: &Work) -> bool {
        *work == Work::Reconcile && std::mem::take(&mut self.repair_due)
    }

    /// What work has programmed completely: its service ports and the unfinished ones of earlier work, except for those
    /// that are `unfinished` now.
    pub(crate) fn completed(&self, work: &Work, unfinished: Option<&BTreeSet<ServicePortKey>>) -> Work {
        let Work::Apply(changes) = work else { return work.clone() };
        let mut changes = changes.clone();
        match (&self.unfinished, unfinished) {
            (Some(before), Some(unfinished)) => changes.service_ports.extend(before.difference(unfinished).cloned()),
            (Some(before), None) => changes.service_ports.extend(before.iter().cloned()),
            (None, _) => {}
        }
        if let Some(unfinished) = unfinished {
            changes.service_ports.retain(|key| !unfinished.contains(key));
        }
        Work::Apply(changes)
    }

    /// The session has ended, and its acks are void.
    pub(crate) fn lost(&mut self) {
        self.acks.clear();
        self.early_ack = None;
    }

    /// Suspended while the frontend waits for an ack.
    pub(crate) fn idle_timeout(&self) -> IdleTimeout {
        if self.acks.is_empty() { IdleTimeout::Enforced } else { IdleTimeout::Suspended }
    }

    /// The work that is due. The caller must report its result.
    pub(crate) fn begin(&mut self) -> Option<Work> {
        self.drifts.end_incident();
        let is_interrupted = self.sync_state == SyncState::Applied && self.unfinished.is_some() && !self.repair_due;
        if self.retry_at.is_some_and(|retry_at| retry_at <= Instant::now()) && !is_interrupted {
            self.retry_at = None;
            self.sync_state = SyncState::Unknown;
            self.changes = Changes::default();
            return Some(Work::Reconcile);
        }
        if self.sync_state == SyncState::Applied && (!self.changes.is_empty() || self.unfinished.is_some()) {
            self.sync_state = SyncState::Unknown;
            return Some(Work::Apply(std::mem::take(&mut self.changes)));
        }
        None
    }

    /// The work has succeeded. Returns whether the failed service ports are others than before.
    pub(crate) fn succeeded(
        &mut self,
        failures: Vec<ServicePortFailure>,
        unfinished: Option<BTreeSet<ServicePortKey>>,
    ) -> bool {
        self.sync_state = SyncState::Applied;
        self.unfinished = unfinished;
        if !failures.iter().any(|failure| failure.retryable) {
            self.retry_at = None;
            self.backoff.reset();
        } else if self.retry_at.is_none() {
            // A commit in between must not postpone it.
            self.retry_at = Some(Instant::now() + self.backoff.next_delay());
        }
        let differs = self.failures != failures;
        self.failures = failures;
        differs
    }

    /// Everything that is not programmed or served although the sync succeeded.
    pub(crate) fn failures(&self) -> Vec<ServicePortFailure> {
        self.failures.iter().chain(&self.health_check_failures).cloned().collect()
    }

    /// The work has failed. Returns the delay before the retry.
    pub(crate) fn failed(&mut self) -> Duration {
        let delay = self.backoff.next_delay();
        self.sync_state = SyncState::Unknown;
        self.unfinished = None;
        self.retry_at = Some(Instant::now() + delay);
        delay
    }

    /// Takes the acks that are due: the last call of the backend has included all commits. Service ports may be
    /// unfinished.
    pub(crate) fn acks(&mut self) -> Vec<Ack> {
        if self.sync_state != SyncState::Applied || !self.changes.is_empty() {
            return Vec::new();
        }
        let unfinished = self.unfinished.as_ref().map_or(0, BTreeSet::len) + self.withheld;
        let is_finished = unfinished == 0;
        let now = Instant::now();
        let failures = self.acked_failures();
        // A later ack covers the early one.
        let mut due: Vec<PendingAck> = self.acks.drain(..).collect();
        if is_finished && due.is_empty() {
            due.extend(self.early_ack.take());
        } else if !due.is_empty() {
            self.early_ack = due.last().filter(|_| !is_finished).copied();
        }
        let acks = due.into_iter().map(|PendingAck { revision, digest, received }| Ack {
            revision,
            digest: Some(digest),
            apply_time: now - received,
            failures: failures.clone(),
            unfinished: u32::try_from(unfinished).unwrap_or(u32::MAX),
            degraded: self.degraded.clone(),
        });
        acks.collect()
    }

    /// The first failures, up to [`MAX_FAILURE_BYTES`].
    fn acked_failures(&self) -> Vec<ServicePortFailure> {
        let mut bytes = 0;
        let fits = |failure: &&ServicePortFailure| {
            let ServicePortFailure { key, reason, .. } = failure;
            bytes += key.namespace.len() + key.name.len() + key.port_name.len() + reason.len() + FAILURE_OVERHEAD;
            bytes <= MAX_FAILURE_BYTES
        };
        self.failures.iter().chain(&self.health_check_failures).take_while(fits).cloned().collect()
    }
}
