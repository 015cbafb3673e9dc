//! The progress of a backend process, for health checks, metrics and the status page.

use std::{
    ops::AddAssign,
    time::{Duration, SystemTime},
};

use proto::{
    model::{Epoch, IpFamily, Operation, PerFamily, Revision, ServicePortFailure},
    state::ServicePortChange,
};
use tokio::time::Instant;

use crate::ServicePortState;

/// The progress of a backend process. Counters are since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub(crate) connected: bool,
    /// The time of the last message from a frontend. Its age is the staleness of the node.
    pub(crate) last_contact: Option<Instant>,
    /// The revision of the committed state.
    pub committed: Option<(Epoch, Revision)>,
    /// The revision that the kernel contains, except for `failures`.
    pub programmed: Option<(Epoch, Revision)>,
    /// Why the last sync failed as a whole; `None` after a success.
    pub(crate) error: Option<String>,
    /// The service ports of the programmed revision that are not programmed.
    pub failures: Vec<ServicePortFailure>,
    /// The service ports of a large change that are committed, but not programmed yet.
    pub(crate) unfinished: usize,
    /// The IP families that the kernel cannot program, and why.
    pub(crate) unusable_families: Vec<(IpFamily, String)>,
    /// The service ports with VIPs of each family, up to the programmed revision.
    pub(crate) with_vips: PerFamily<usize>,
    /// The deviations from the protocol.
    pub protocol: ProtocolCounters,
    /// How often losses were withheld because they exceed the loss limit.
    pub(crate) rejected_losses: u64,
    /// The service ports that keep their endpoints until a snapshot confirms that they lost them.
    pub withheld_service_ports: usize,
    /// The service ports without their endpoints on this node, which has restarted, until a frontend confirms them.
    pub unconfirmed_service_ports: usize,
    /// Whether the Node object is gone, and its last facts are used.
    pub retains_node: bool,
    /// Whether the Node object has no addresses, and its last ones are used.
    pub(crate) retains_addresses: bool,
    /// Stale UDP flows that were deleted.
    pub(crate) deleted_flows: u64,
    /// Connections to endpoints that are gone, which are reset.
    pub(crate) reset_connections: u64,
    /// How often another process was seen to change our kernel objects.
    pub(crate) drifts: u64,
    /// The time that the backend waited for locks that other processes held.
    pub(crate) lock_wait: Duration,
    pub(crate) state_file_error: Option<String>,
    /// Whether load balancers may send new traffic to this node, as of the last commit.
    pub(crate) eligible: bool,
    /// The service ports of the committed state.
    pub(crate) service_ports: usize,
    /// The operations received from frontends.
    pub(crate) received: ChangeCounts,
    /// Those that are not programmed yet.
    pub(crate) pending: ChangeCounts,
    /// Since when the kernel is, or may be, different from the committed state.
    pub(crate) pending_since: Option<Instant>,
    /// When the last change was committed.
    pub(crate) last_queued: Option<SystemTime>,
    pub(crate) last_success: Option<SystemTime>,
    /// When the process last followed the frontend.
    pub(crate) last_iteration: Option<Instant>,
    /// The programmed service ports with traffic policy Local and endpoints on other nodes only.
    pub(crate) no_local: PerFamily<NoLocalEndpoints>,
}

/// Operations by what they change, as kube-proxy counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeCounts {
    /// Service ports that are put or removed.
    pub(crate) service_ports: u64,
    /// Pools that are changed or replaced.
    pub(crate) pools: u64,
}

/// The deviations from the protocol since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolCounters {
    /// Operations of the frontend that could not be applied.
    pub rejected_operations: u64,
    /// Digests that differed from the frontend's.
    pub digest_mismatches: u64,
    /// Commits that reflect an older version of the cluster than the one before: those of a frontend that lags behind
    /// another one.
    pub rollbacks: u64,
}

/// The number of service ports with traffic policy Local and endpoints on other nodes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoLocalEndpoints {
    pub(crate) internal: usize,
    pub(crate) external: usize,
}

impl Progress {
    /// Counts the service ports with VIPs, with what has been programmed.
    pub(crate) fn count_vips(&mut self, changes: &[ServicePortChange<'_>]) {
        for ServicePortChange { before, after, .. } in changes {
            for family in IpFamily::ALL {
                let has_vips = |ServicePortState { port, .. }: &ServicePortState| {
                    port.cluster_ips[family].is_some() || port.external_policy_ips(family).next().is_some()
                };
                let [before, after] = [before, after].map(|service| usize::from(service.is_some_and(has_vips)));
                let count = &mut self.with_vips[family];
                *count = *count + after - before;
            }
        }
    }

    /// Whether the kernel can program a family.
    pub(crate) fn is_usable(&self, family: IpFamily) -> bool {
        self.unusable_families.iter().all(|(of, _)| *of != family)
    }

    /// The families with VIPs that the kernel cannot program, and why.
    pub(crate) fn unserved_families(&self) -> impl Iterator<Item = &(IpFamily, String)> {
        self.unusable_families.iter().filter(|(family, _)| self.with_vips[*family] > 0)
    }

    /// Whether there are VIPs, and none of them is served.
    pub(crate) fn serves_nothing(&self) -> bool {
        let mut with_vips = IpFamily::ALL.into_iter().filter(|family| self.with_vips[*family] > 0);
        self.unserved_families().next().is_some() && with_vips.all(|family| !self.is_usable(family))
    }
}

impl ChangeCounts {
    /// Counts operations. Facts and resets count as neither.
    pub(crate) fn of(operations: &[Operation]) -> Self {
        let mut counts = Self::default();
        for operation in operations {
            match operation {
                Operation::PutServicePort(_) | Operation::RemoveServicePort(_) => counts.service_ports += 1,
                Operation::ChangePool { .. } | Operation::ReplacePool { .. } => counts.pools += 1,
                Operation::PutNode(_) | Operation::PutCluster(_) | Operation::ResetBucket(_) => {}
            }
        }
        counts
    }
}

impl AddAssign for ChangeCounts {
    fn add_assign(&mut self, Self { service_ports, pools }: Self) {
        self.service_ports += service_ports;
        self.pools += pools;
    }
}
