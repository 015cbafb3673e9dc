//! How far the agent is, for health checks, metrics and people.

use std::{
    ops::AddAssign,
    time::{Duration, SystemTime},
};

use proto::model::{Epoch, Operation, PerFamily, Revision, ServicePortFailure};
use tokio::time::Instant;

use crate::metrics::NoLocalEndpoints;

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
    pub failures: Vec<ServicePortFailure>,
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
    /// Whether load balancers may go on sending new traffic to this node, as committed last.
    pub eligible: bool,
    /// The service ports that were committed last.
    pub service_ports: usize,
    /// What frontends have said, since the start.
    pub received: ChangeCounts,
    /// How much of it is not in the kernel.
    pub pending: ChangeCounts,
    /// Since when there is something that should be in the kernel and is not, or is not known to be.
    pub pending_since: Option<Instant>,
    /// When there was something to do last.
    pub last_queued: Option<SystemTime>,
    /// When the backend succeeded last.
    pub last_success: Option<SystemTime>,
    /// When the loop was last seen to turn.
    pub turned: Option<Instant>,
    /// Service ports in force that have endpoints on other nodes only, although their policy is Local.
    pub no_local: PerFamily<NoLocalEndpoints>,
}

/// Operations, as kube-proxy counts them: by what they change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Service ports that are put or removed.
    pub service_ports: u64,
    /// Pools that are changed or replaced.
    pub endpoints: u64,
}

impl ChangeCounts {
    /// Counts operations. Facts and resets are none of these.
    pub(crate) fn of(operations: &[Operation]) -> Self {
        let mut tally = Self::default();
        for operation in operations {
            match operation {
                Operation::PutServicePort(_) | Operation::RemoveServicePort(_) => tally.service_ports += 1,
                Operation::ChangePool { .. } | Operation::ReplacePool { .. } => tally.endpoints += 1,
                Operation::PutNode(_) | Operation::PutCluster(_) | Operation::ResetBucket(_) => {}
            }
        }
        tally
    }
}

impl AddAssign for ChangeCounts {
    fn add_assign(&mut self, Self { service_ports, endpoints }: Self) {
        self.service_ports += service_ports;
        self.endpoints += endpoints;
    }
}
