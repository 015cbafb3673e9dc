//! Makes the kernel what the frontend decided. One half follows the frontend, the other half programs. Neither waits
//! for the other: each reads how far the other one has got.
//!
//! ```text
//!   stream ──▶ Follower: replica ───── Target, the newest ─────▶ Programmer ──▶ Backend ──▶ kernel
//!     ▲           │  └─▶ state file, flows                         │  └─▶ flows, health-check node ports, metrics
//!     └── acks ◀──┴─────────────── Programmed ◀────────────────────┘
//! ```
//!
//! A target replaces the target before, so a backend that is slow skips states. Its work is the difference between the
//! handed target, which is the target of its last call, and the newest one. A call programs a limited part of a large
//! change, and between two calls the newest target is taken. `backlog` has what the kernel lacks of the handed target.
//! Acks follow from comparing the commits of the session with what is programmed.

mod acks;
mod backlog;
mod follow;
mod program;
mod reporter;

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use proto::model::{Epoch, Revision, ServicePortFailure, ServicePortKey};
use tokio::time::Instant;

use crate::{ChangeCounts, NodeState, SyncReport, backend::Work, replica::Origin};
pub(crate) use acks::Acks;
use backlog::{Backlog, Completed};
pub(crate) use follow::Follower;
pub(crate) use program::{Programmer, Schedule};
pub(crate) use reporter::Reporter;

/// The follower runs at least this often, so that a liveness probe can detect that the process hangs.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// A commit or bookmark of any session, in the order in which they are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// Counted since the start; 0: the stored state.
    number: u64,
    epoch: Epoch,
    revision: Revision,
}

/// A state to program.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    state: NodeState,
    /// The number of the commit or bookmark that led to it; 0: the stored state, which no frontend has confirmed.
    number: u64,
    /// The newest commit up to which the state lacks nothing: an earlier one while it withholds a loss.
    complete: Position,
    /// The revision of the committed state.
    committed: Option<(Epoch, Revision)>,
    origin: Origin,
    /// When the state last changed.
    changed_at: Instant,
    /// The operations received until then.
    received: ChangeCounts,
}

/// The progress of the kernel towards the target that was handed to the backend.
#[derive(Debug, Default)]
pub(crate) struct Programmed {
    /// The number of the newest target that the backend has accepted.
    number: u64,
    /// The newest commit up to which the kernel lacks nothing, except for the failures.
    complete: Position,
    /// What the kernel lacks of the handed target, also before the backend has accepted that.
    backlog: Backlog,
    /// The service ports of the handed target that the kernel rejects.
    rejected: BTreeSet<ServicePortKey>,
    /// The namespaces of the service ports of which the kernel lacks something; empty if there are many.
    unfinished_namespaces: BTreeSet<Arc<str>>,
    /// The service ports that cannot be programmed, and the health-check node ports that are not served.
    failures: Vec<ServicePortFailure>,
    /// Which VIPs are not served as a whole, for people: at most one text for each IP family.
    degraded: Vec<String>,
}

impl Target {
    /// A state from the state file.
    pub(crate) fn stored(state: NodeState, committed: Option<(Epoch, Revision)>, origin: Origin) -> Self {
        Self {
            state,
            number: 0,
            complete: Position::default(),
            committed,
            origin,
            changed_at: Instant::now(),
            received: ChangeCounts::default(),
        }
    }
}

impl Programmed {
    /// Nothing of a stored state is known to be programmed.
    pub(crate) fn unknown(stored: &NodeState) -> Self {
        Self { backlog: Backlog::unknown(stored), ..Self::default() }
    }

    /// The service ports that the kernel may have as they were: it lacks something of them, or rejects them.
    pub(crate) fn outdated(&self) -> impl Iterator<Item = &ServicePortKey> {
        self.backlog.service_ports.keys().chain(&self.rejected)
    }

    pub(crate) fn is_outdated(&self, key: &ServicePortKey) -> bool {
        self.backlog.service_ports.contains_key(key) || self.rejected.contains(key)
    }

    /// Whether the kernel may still have VIPs and endpoints that service ports have lost.
    pub(crate) fn is_reconciling(&self) -> bool {
        self.backlog.reconcile.is_some()
    }

    /// A call has succeeded. Returns what it has completed, and the service ports that the kernel has rejected before.
    fn reported(&mut self, handed: &Target, work: Work, report: &SyncReport) -> (Completed, BTreeSet<ServicePortKey>) {
        let rejected = report.failures.iter().map(|failure| failure.key.clone()).collect();
        let retried = mem::replace(&mut self.rejected, rejected);

        let mut completed = self.backlog.reported(handed, work, report);
        completed.concerns_all |= retried != self.rejected;
        (completed, retried)
    }

    /// The backend is about to be called with a state, after another one.
    #[cfg(test)]
    pub(crate) fn hand(&mut self, before: &NodeState, state: &NodeState) {
        let last = Target::stored(before.clone(), None, Origin::Stored);
        self.backlog.hand(&last, &crate::Changes::between(before, state));
    }

    /// A call with a state has succeeded. Returns what flows are told: whether all service ports are concerned, and
    /// those that it has programmed, unless they are outdated.
    #[cfg(test)]
    pub(crate) fn report(
        &mut self,
        state: &NodeState,
        work: Work,
        report: &SyncReport,
    ) -> (bool, BTreeSet<ServicePortKey>) {
        let handed = Target::stored(state.clone(), None, Origin::Stored);
        let (completed, mut tried) = self.reported(&handed, work, report);
        tried.extend(completed.service_ports.into_keys());
        (completed.concerns_all, tried)
    }

    /// The backend has accepted a target.
    fn accepted(&mut self, target: &Target, failures: Vec<ServicePortFailure>, degraded: Vec<String>) {
        // Service ports whose loss is withheld are not in the backlog.
        let withholds = target.complete.number < target.number;
        self.number = target.number;
        self.complete = self.backlog.complete(target.complete);
        self.unfinished_namespaces = if withholds { BTreeSet::new() } else { self.backlog.namespaces() };
        self.failures = failures;
        self.degraded = degraded;
    }
}

#[cfg(test)]
mod tests;
