//! What stands between the last commit and the kernel: what the backend has to do, when, and which acks wait for it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, SystemTime},
};

use proto::{
    digest::Digest,
    model::{Ack, Revision, ServicePortFailure, ServicePortKey},
};
use runtime::Backoff;
use tokio::time::Instant;

use crate::{Changes, Drift, backend::Work, drifts::Drifts, stream::IdleTimeout};

/// For how long the ack of a commit waits until the commit is programmed: most are, and then need no second ack.
const ACK_DELAY: Duration = Duration::from_millis(100);

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
    /// Whether the backend is to be called again. See [`SyncReport::unfinished`](crate::SyncReport::unfinished).
    is_interrupted: bool,
    /// The last commit of the session. Revisions before that are 0.
    committed: Revision,
    /// The service ports that do not have it, with the last commit that each of them has; 0 if that is unknown.
    unfinished: BTreeMap<ServicePortKey, Revision>,
    /// The same for those whose loss is withheld: the kernel has endpoints that are not committed.
    withheld: Option<Revision>,
    acks: VecDeque<PendingAck>,
    /// The last ack of the session, and when its commit was received.
    sent: Option<(Instant, Ack)>,
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

/// A commit or bookmark that is not acked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingAck {
    pub(crate) revision: Revision,
    /// Of the committed state.
    pub(crate) digest: Digest,
    pub(crate) received_at: Instant,
}

impl Pending {
    /// `retry_delay`: the shortest and the longest delay after a failure.
    pub(crate) fn new(retry_delay: (Duration, Duration)) -> Self {
        Self {
            sync_state: SyncState::NothingCommitted,
            changes: Changes::default(),
            is_interrupted: false,
            committed: Revision(0),
            unfinished: BTreeMap::new(),
            withheld: None,
            acks: VecDeque::new(),
            sent: None,
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

    /// Records a commit, or a bookmark, which changes nothing. `is_withholding`: a loss of it, or of an earlier commit,
    /// is not among the changes.
    pub(crate) fn commit(&mut self, ack: PendingAck, changes: Changes, is_withholding: bool) {
        self.restored();
        // A repair may be of the revision that is committed already.
        let before = self.committed.min(Revision(ack.revision.0.saturating_sub(1)));
        for key in &changes.service_ports {
            self.unfinished.entry(key.clone()).or_insert(before);
        }
        self.changes.merge(changes);
        self.withheld = is_withholding.then(|| self.withheld.unwrap_or(before));
        self.committed = ack.revision;
        if self.acks.len() == MAX_ACKS {
            self.acks.pop_front();
        }
        self.acks.push_back(ack);
    }

    /// Records when the last commit was changed in the cluster.
    pub(crate) fn triggered(&mut self, trigger: SystemTime, service_ports: BTreeSet<ServicePortKey>) {
        if self.triggers.len() < MAX_TRIGGERS {
            self.triggers.push((trigger, service_ports));
        }
    }

    /// Takes the triggers of the commits that are programmed.
    pub(crate) fn programmed_triggers(&mut self) -> Vec<SystemTime> {
        let unfinished = &self.unfinished;
        let is_programmed = |(_, service_ports): &mut (_, BTreeSet<ServicePortKey>)| {
            !service_ports.iter().any(|key| unfinished.contains_key(key))
        };
        self.triggers.extract_if(.., is_programmed).map(|(trigger, _)| trigger).collect()
    }

    /// Whether everything is programmed.
    pub(crate) fn is_finished(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// The newest commit up to which everything is programmed, except for the failures.
    fn programmed(&self) -> Revision {
        self.unfinished.values().chain(&self.withheld).copied().fold(self.committed, Revision::min)
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
        let is_completed = |key: &&ServicePortKey| unfinished.is_none_or(|unfinished| !unfinished.contains(*key));
        let service_ports = self.unfinished.keys().filter(is_completed).cloned().collect();
        Work::Apply(Changes { service_ports, ..changes.clone() })
    }

    /// The session has ended, and its acks are void.
    pub(crate) fn lost(&mut self) {
        self.acks.clear();
        self.sent = None;
        for revision in self.unfinished.values_mut().chain(&mut self.withheld).chain([&mut self.committed]) {
            *revision = Revision(0);
        }
    }

    /// Suspended while the frontend waits for an ack.
    pub(crate) fn idle_timeout(&self) -> IdleTimeout {
        if self.acks.is_empty() { IdleTimeout::Enforced } else { IdleTimeout::Suspended }
    }

    /// The work that is due. The caller must report its result.
    pub(crate) fn begin(&mut self) -> Option<Work> {
        self.drifts.end_incident();
        let is_interrupted = self.sync_state == SyncState::Applied && self.is_interrupted && !self.repair_due;
        if self.retry_at.is_some_and(|retry_at| retry_at <= Instant::now()) && !is_interrupted {
            self.retry_at = None;
            self.sync_state = SyncState::Unknown;
            self.changes = Changes::default();
            return Some(Work::Reconcile);
        }
        if self.sync_state == SyncState::Applied && (!self.changes.is_empty() || self.is_interrupted) {
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
        self.is_interrupted = unfinished.is_some();
        let unfinished = unfinished.unwrap_or_default();
        self.unfinished.retain(|key, _| unfinished.contains(key));
        for key in unfinished {
            self.unfinished.entry(key).or_default();
        }
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
        self.is_interrupted = false;
        self.retry_at = Some(Instant::now() + delay);
        delay
    }

    /// Takes the acks that are due. While the backend fails or hangs there are none.
    pub(crate) fn acks(&mut self) -> Vec<Ack> {
        if self.sync_state != SyncState::Applied || !self.changes.is_empty() {
            return Vec::new();
        }
        let (now, is_finished, programmed) = (Instant::now(), self.is_finished(), self.programmed());
        let (failures, degraded) = (self.acked_failures(), self.degraded.clone());
        let Some(first) = self.acks.front() else {
            let Some((received_at, sent)) = &mut self.sent else { return Vec::new() };
            let is_more = sent.programmed != programmed;
            // Failures that change with each part of a large change wait for the last one.
            let differs = is_more || is_finished && (sent.failures != failures || sent.degraded != degraded);
            if differs {
                let apply_time = if is_more { now - *received_at } else { sent.apply_time };
                *sent = Ack { programmed, apply_time, failures, degraded, ..sent.clone() };
            }
            return differs.then(|| sent.clone()).into_iter().collect();
        };
        if !is_finished && now < first.received_at + ACK_DELAY {
            return Vec::new();
        }
        let ack = |PendingAck { revision, digest, received_at }| Ack {
            received: revision,
            programmed: programmed.min(revision),
            digest: Some(digest),
            apply_time: now - received_at,
            failures: failures.clone(),
            degraded: degraded.clone(),
        };
        self.sent = self.acks.back().map(|last| (last.received_at, ack(*last)));
        self.acks.drain(..).map(ack).collect()
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
