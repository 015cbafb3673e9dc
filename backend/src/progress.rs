//! The progress of a backend process, for health checks, metrics and the status page.

use std::{
    ops::{AddAssign, Sub},
    time::{Duration, SystemTime},
};

use proto::{
    model::{Epoch, IpFamily, Operation, PerFamily, Revision, ServicePortFailure, TrafficPolicy},
    state::ServicePortChange,
};
use tokio::time::Instant;

use crate::{NodeState, ServicePortState};

/// The progress of a backend process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub(crate) stream: StreamProgress,
    /// The deviations from the protocol.
    pub protocol: ProtocolCounters,

    /// The revision of the committed state.
    pub committed: Option<(Epoch, Revision)>,
    /// The service ports of the committed state.
    pub(crate) service_ports: usize,
    /// The Node object of the committed state.
    pub node: NodeProgress,
    /// The losses that are in the committed state, but not in the kernel.
    pub losses: LossProgress,
    /// Why the committed state cannot be stored.
    pub(crate) state_file_error: Option<String>,

    pub(crate) changes: ChangeProgress,

    /// The revision that the kernel contains, except for `failures`.
    pub programmed: Option<(Epoch, Revision)>,
    /// The service ports of the programmed revision that are not programmed.
    pub failures: Vec<ServicePortFailure>,
    pub(crate) kernel: KernelProgress,
    pub(crate) flows: FlowCounters,
}

/// The session with a frontend, and the loop that follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamProgress {
    pub(crate) connected: bool,
    /// The time of the last message from a frontend. Its age is the staleness of the node.
    pub(crate) last_contact: Option<Instant>,
    /// When the process last followed the frontend: a loop that hangs does so no more.
    pub(crate) last_iteration: Option<Instant>,
}

/// The deviations from the protocol since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolCounters {
    /// Operations of the frontend that could not be applied.
    pub rejected_operations: u64,
    /// Digests that differed from the frontend's.
    pub digest_mismatches: u64,
    /// Commits that reflect an older version of the cluster than the commit before: the frontend lags behind another
    /// one.
    pub rollbacks: u64,
}

/// The Node object, as of the last commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeProgress {
    /// Whether load balancers may send new traffic to this node.
    pub(crate) eligible: bool,
    /// Whether the Node object is gone, and its last facts are used.
    pub is_retained: bool,
    /// Whether the Node object has no addresses, and its last addresses are used.
    pub(crate) retains_addresses: bool,
}

/// The losses that await the confirmation of a frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossProgress {
    /// How often losses were withheld because they exceed the loss limit, since the start of the process.
    pub(crate) rejected: u64,
    /// The service ports that keep their endpoints until a snapshot confirms that they lost them.
    pub withheld_service_ports: usize,
    /// The service ports without their endpoints on this node, which has restarted, until a frontend confirms them.
    pub unconfirmed_service_ports: usize,
}

/// The changes that frontends have sent, and whether the kernel has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeProgress {
    /// The operations since the start of the process.
    pub(crate) received: ChangeCounts,
    /// The operations that are not programmed yet.
    pub(crate) pending: ChangeCounts,
    /// Since when the kernel is, or may be, different from the committed state.
    pub(crate) pending_since: Option<Instant>,
    /// When the last change was committed.
    pub(crate) last_queued: Option<SystemTime>,
}

/// The reports of the calls of the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelProgress {
    /// Why the last sync failed as a whole; `None` after a success.
    pub(crate) error: Option<String>,
    pub(crate) last_success: Option<SystemTime>,
    /// The service ports of a large change that are committed, but not programmed yet.
    pub(crate) unfinished: usize,
    /// The IP families that the kernel cannot program, and why.
    pub(crate) unusable_families: Vec<(IpFamily, String)>,
    /// The service ports with VIPs of each family, up to the programmed revision.
    pub(crate) with_vips: PerFamily<usize>,
    /// The programmed service ports with traffic policy Local and endpoints on other nodes only.
    pub(crate) no_local: PerFamily<NoLocalEndpoints>,
    /// How often another process was seen to change our kernel objects, since the start of the process.
    pub(crate) drifts: u64,
    /// The time that the backend has waited for locks that other processes held, since the start of the process.
    pub(crate) lock_wait: Duration,
}

/// The flows that changes have left behind, since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCounters {
    /// Stale UDP flows, which were deleted.
    pub(crate) deleted_udp: u64,
    /// TCP connections to endpoints that are gone, which are reset.
    pub(crate) reset_connections: u64,
}

/// The number of operations by the kind of object, as kube-proxy counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeCounts {
    /// Service ports that are put or removed.
    pub(crate) service_ports: u64,
    /// Pools that are changed or replaced.
    pub(crate) pools: u64,
}

/// The number of service ports with traffic policy Local and endpoints on other nodes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoLocalEndpoints {
    pub(crate) internal: usize,
    pub(crate) external: usize,
}

impl NodeProgress {
    pub(crate) fn of(state: &NodeState) -> Self {
        Self {
            eligible: state.node().eligible,
            is_retained: state.retains_node(),
            retains_addresses: state.retains_addresses(),
        }
    }
}

impl KernelProgress {
    /// Counts the service ports with VIPs after these changes have been programmed.
    pub(crate) fn count_vips(&mut self, changes: &[ServicePortChange<'_>]) {
        for ServicePortChange { before, after, .. } in changes {
            for family in IpFamily::ALL {
                let count = &mut self.with_vips[family];
                *count += usize::from(after.is_some_and(|after| has_vips(after, family)));
                *count -= usize::from(before.is_some_and(|before| has_vips(before, family)));
            }
        }
    }

    /// Counts the service ports without local endpoints after these changes have been programmed.
    pub(crate) fn count_no_local(&mut self, changes: &[ServicePortChange<'_>]) {
        for ServicePortChange { before, after, .. } in changes {
            for family in IpFamily::ALL {
                let counts = &mut self.no_local[family];
                let after = after.map(|after| no_local(after, family)).unwrap_or_default();
                let before = before.map(|before| no_local(before, family)).unwrap_or_default();
                counts.internal = counts.internal + after.internal - before.internal;
                counts.external = counts.external + after.external - before.external;
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

/// 1 for each policy of a service port that lacks local endpoints.
fn no_local(ServicePortState { port, local, .. }: &ServicePortState, family: IpFamily) -> NoLocalEndpoints {
    let is_elsewhere = port.any_endpoints[family] && local[family].is_empty();
    let internal = is_elsewhere && port.internal_policy == TrafficPolicy::Local;
    let external = is_elsewhere && port.external_policy == TrafficPolicy::Local && port.externally_accessible();
    NoLocalEndpoints { internal: internal.into(), external: external.into() }
}

fn has_vips(ServicePortState { port, .. }: &ServicePortState, family: IpFamily) -> bool {
    port.cluster_ips[family].is_some() || port.external_policy_ips(family).next().is_some()
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

impl Sub for ChangeCounts {
    type Output = Self;

    fn sub(self, Self { service_ports, pools }: Self) -> Self {
        Self { service_ports: self.service_ports - service_ports, pools: self.pools - pools }
    }
}

impl AddAssign for ChangeCounts {
    fn add_assign(&mut self, Self { service_ports, pools }: Self) {
        self.service_ports += service_ports;
        self.pools += pools;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ServiceBuilder, mk_state};

    #[test]
    fn service_ports_without_local_endpoints_are_counted() {
        let local = |web: ServiceBuilder| {
            let web = web.cluster_ip("10.96.0.1").internal_local();
            web.node_port(30_000).external_local().endpoints(["10.244.2.1:80"])
        };
        let far = mk_state().service("default/web", local).service("default/other", local).build();
        let near = |web| local(web).local_endpoints(["10.244.1.1:80"]);
        let near = mk_state().service("default/web", near).service("default/other", local).build();
        let one = mk_state().service("default/other", local).build();
        let mut before = mk_state().build();
        let mut kernel = KernelProgress::default();
        let [v4, v6] = IpFamily::ALL;
        for (state, expected) in [(&far, 2), (&near, 1), (&far, 2), (&near, 1), (&one, 1)] {
            kernel.count_no_local(&before.diff(state).collect::<Vec<_>>());
            let count = |family| (kernel.no_local[family].internal, kernel.no_local[family].external);
            assert_eq!((count(v4), count(v6)), ((expected, expected), (0, 0)));
            before = state.clone();
        }
    }
}
