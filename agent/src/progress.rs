//! How far the agent is, for health checks, metrics and people.

use std::time::Duration;

use proto::model::{Epoch, Failure, Revision};
use tokio::time::Instant;

/// How far the agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether there is a session with a frontend.
    pub connected: bool,
    /// When the frontend was heard last. How old this is says how stale the node may be.
    pub last_contact: Option<Instant>,
    /// The last committed state.
    pub committed: Option<(Epoch, Revision)>,
    /// The last state that is in force, but for `failures`.
    pub programmed: Option<(Epoch, Revision)>,
    /// Why the backend could not program anything at its last try; `None` after a success.
    pub error: Option<String>,
    /// What is not in force of the last programmed state.
    pub failures: Vec<Failure>,
    /// Operations of the frontend that made no sense, since the start.
    pub refused_operations: u64,
    /// Commits that reflect less of the cluster than what was held before, since the start: those of a frontend that is behind another one.
    pub backwards: u64,
    /// Changes that were held back because they take away too much, since the start.
    pub held_back: u64,
    /// Digests that were not as the frontend said, since the start.
    pub digest_mismatches: u64,
    /// UDP flows that led nowhere any more and were deleted, since the start.
    pub deleted_flows: u64,
    /// How often somebody else was seen to change what had been programmed, since the start.
    pub drifts: u64,
    /// How long the backend has waited for others who change the kernel's rules, since the start.
    pub lock_wait: Duration,
    /// How often looking for such flows has failed, since the start.
    pub failed_sweeps: u64,
}
