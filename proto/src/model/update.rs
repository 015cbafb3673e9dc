//! Changes of what a node holds, and the batches that carry them.

use std::{fmt, time::SystemTime};

use serde::Serialize;

use super::{ClusterInfo, Endpoint, NodeInfo, Pool, PoolId, ServicePort, ServicePortKey};

/// A state of the cluster as one frontend has numbered it. Grows by one with every commit; means nothing outside its
/// [`Epoch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// One run of one frontend: random, never 0. Zero on the wire means "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// How far what a frontend follows is known: the newest `metadata.resourceVersion` of its objects, where these are numbers. Unlike revisions
/// comparable between the frontends of a cluster. 0: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SourceVersion(pub u64);

/// One step of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Creates or replaces a service port. Its pools are untouched; those of a new one are empty.
    PutServicePort(ServicePort),
    /// Removes a service port with its pools.
    RemoveServicePort(ServicePortKey),
    /// Adds endpoints to a pool (or replaces their flags) and removes others.
    ChangePool {
        /// Which pool.
        pool: PoolId,
        /// Present afterwards.
        add: Vec<Endpoint>,
        /// Absent afterwards; flags are ignored.
        remove: Vec<Endpoint>,
    },
    /// Replaces what a pool holds.
    ReplacePool {
        /// Which pool.
        pool: PoolId,
        /// All that it holds afterwards.
        endpoints: Pool,
    },
    /// Replaces the node's facts.
    PutNode(NodeInfo),
    /// Replaces the cluster's facts.
    PutCluster(ClusterInfo),
    /// Forgets every service port whose key falls into this digest bucket, with its pools.
    ResetBucket(u8),
}

/// Operations that belong together with those of the batches before it, up to the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The revision that the operations start from.
    pub base: Revision,
    /// The revision that they lead to.
    pub target: Revision,
    /// In order.
    pub operations: Vec<Operation>,
    /// Whether everything since the last commit is to be applied now.
    pub commit: bool,
    /// When the oldest change in here was made in the cluster.
    pub oldest_trigger: Option<SystemTime>,
    /// What the state reflects, in the last batch of a commit.
    pub source_version: SourceVersion,
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
