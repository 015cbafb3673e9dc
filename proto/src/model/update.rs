//! Operations that change the state of a node, the node and cluster info that they set, and the batches that carry
//! them.

use std::{fmt, net::IpAddr, sync::Arc, time::SystemTime};

use ipnet::IpNet;
use serde::Serialize;

use super::{Endpoint, IpFamily, Pool, PoolId, ServicePort, ServicePortKey};
pub use crate::v1::KindVersions;

/// The number of a change within an [`Epoch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// Identifies one run of a frontend: random, never 0. On the wire, 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// The highest `metadata.resourceVersion` (where that is a number) that a state reflects. Unlike a [`Revision`] it is
/// comparable between the frontends of a cluster. 0: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SourceVersion(pub u64);

/// The node that a stream is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// Node `metadata.name`.
    pub name: Arc<str>,
    /// Node `status.addresses`: InternalIPs, then ExternalIPs, in that order, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// Node `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// Label `topology.kubernetes.io/zone`; empty if unknown.
    pub zone: Arc<str>,
    /// Whether load balancers may send new traffic to the node: false if the Node object does not exist, is being
    /// deleted, or is tainted `ToBeDeletedByClusterAutoscaler`.
    pub eligible: bool,
}

/// Information about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterInfo {
    /// The ranges of cluster IPs: ServiceCIDR `spec.cidrs`, sorted.
    pub service_cidrs: Vec<IpNet>,
}

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Creates or replaces a service port. Its pools stay as they are; those of a new one are empty.
    PutServicePort(ServicePort),
    /// Removes a service port and its pools.
    RemoveServicePort(ServicePortKey),
    /// Adds endpoints to a pool (or replaces their flags) and removes others.
    ChangePool {
        /// The pool.
        pool: PoolId,
        /// Endpoints to add.
        add: Vec<Endpoint>,
        /// Endpoints to remove; flags are ignored.
        remove: Vec<Endpoint>,
    },
    /// Replaces the endpoints of a pool.
    ReplacePool {
        /// The pool.
        pool: PoolId,
        /// The new endpoints.
        endpoints: Pool,
    },
    /// Replaces the node info.
    PutNode(NodeInfo),
    /// Replaces the cluster info.
    PutCluster(ClusterInfo),
    /// Removes all service ports of a digest bucket, with their pools.
    ResetBucket(u8),
}

/// Part of a change, which consists of all batches up to one with `commit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The revision that the change starts from.
    pub base: Revision,
    /// The revision that the change results in.
    pub target: Revision,
    /// The operations, in order.
    pub operations: Vec<Operation>,
    /// Whether the client applies everything since the last commit now.
    pub commit: bool,
    /// When the oldest change in this batch was made in the cluster.
    pub oldest_trigger: Option<SystemTime>,
    /// The source version of the resulting state, if `commit` is set.
    pub source_version: SourceVersion,
    /// The source version of each kind, if `commit` is set.
    pub kind_versions: KindVersions,
}

impl KindVersions {
    /// The highest of them.
    #[must_use]
    pub fn newest(self) -> SourceVersion {
        self.kinds().map(|(_, version)| version).into_iter().max().unwrap_or_default()
    }

    /// The kinds, as Kubernetes names them, with their versions.
    fn kinds(self) -> [(&'static str, SourceVersion); 4] {
        let Self { services, endpoint_slices, nodes, service_cidrs } = self;
        [("Service", services), ("EndpointSlice", endpoint_slices), ("Node", nodes), ("ServiceCIDR", service_cidrs)]
            .map(|(kind, version)| (kind, SourceVersion(version)))
    }

    /// The versions of a later commit; a kind whose version it does not know keeps its version.
    #[must_use]
    pub fn updated(self, later: Self) -> Self {
        let known = |later: u64, now| if later == 0 { now } else { later };
        Self {
            services: known(later.services, self.services),
            endpoint_slices: known(later.endpoint_slices, self.endpoint_slices),
            nodes: known(later.nodes, self.nodes),
            service_cidrs: known(later.service_cidrs, self.service_cidrs),
        }
    }

    /// The kinds whose version is known to be older than in `than`: the kind, this version, that version.
    pub fn older_kinds(self, than: Self) -> impl Iterator<Item = (&'static str, SourceVersion, SourceVersion)> {
        let pairs = self.kinds().into_iter().zip(than.kinds());
        let older = pairs.filter(|((_, one), (_, other))| *one != SourceVersion::default() && one < other);
        older.map(|((kind, one), (_, other))| (kind, one, other))
    }
}

impl NodeInfo {
    /// The info of a node without a Node object.
    #[must_use]
    pub fn unknown(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), addresses: Vec::new(), pod_cidrs: Vec::new(), zone: "".into(), eligible: false }
    }

    /// Whether there is no Node object.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        let Self { name: _, addresses, pod_cidrs, zone, eligible } = self;
        addresses.is_empty() && pod_cidrs.is_empty() && zone.is_empty() && !eligible
    }

    /// The primary address of a family: the first InternalIP, else the first ExternalIP. Skips loopback addresses.
    #[must_use]
    pub fn primary_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| IpFamily::of(address) == family && !address.is_loopback())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Epoch {
    /// Sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
