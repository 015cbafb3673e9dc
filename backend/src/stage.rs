//! Operations since the last commit, and how a commit applies them: coalesced to their net effect, compared with the
//! state, applied as a whole.
//!
//! ```text
//!   put a, change a.pool, reset bucket 7, put b, ...  ──coalesce──▶  per service port: edited | replaced
//!                                                                         │ compared with NodeState
//!                                                                         ▼
//!                                                             NodeState changed, Changes exact
//! ```

mod coalesce;

use std::{collections::BTreeMap, mem, net::IpAddr};

use proto::model::{Endpoint, Operation, PoolId, ServicePortKey};

use crate::{Changes, NodeState, ServicePortState};
use coalesce::{Coalescer, NetEffect};

/// The operations received since the last commit.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    operations: Vec<Operation>,
}

/// Endpoints that left all pools of their service ports.
pub type DepartedEndpoints = BTreeMap<ServicePortKey, Vec<Endpoint>>;

/// The result of a commit.
#[derive(Debug, Default)]
pub struct CommitResult {
    /// What the commit changed.
    pub changes: Changes,
    /// The endpoints that left all pools of a TCP service port, which exists before and after the commit.
    pub departed: DepartedEndpoints,
    /// The operations that could not be applied. The digests then differ from the frontend's, and a repair follows.
    pub rejected: Vec<RejectedOperation>,
}

/// An operation that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedOperation {
    /// A pool operation for a service port that does not exist.
    #[error("service port {0} does not exist")]
    UnknownServicePort(ServicePortKey),
    /// An address of the other family in a pool.
    #[error("{}: the {} pool contains an address that is not {}", .0.key, .0.class, .0.family)]
    OtherFamily(PoolId),
    /// Endpoints that no traffic may be sent to. The rest of the operation is applied.
    #[error("{key}: ignored {count} endpoints, such as {address}: {reason}")]
    UnusableEndpoint {
        /// The service port.
        key: ServicePortKey,
        /// The address of the first one.
        address: IpAddr,
        /// What the address is.
        reason: &'static str,
        /// How many of them there are.
        count: usize,
    },
    /// The facts of another node.
    #[error("facts of another node: {0}")]
    OtherNode(String),
    /// A number that is no digest bucket's.
    #[error("digest bucket {0} does not exist")]
    UnknownBucket(u8),
}

impl Stage {
    /// Adds operations.
    pub fn extend(&mut self, operations: impl IntoIterator<Item = Operation>) {
        self.operations.extend(operations);
    }

    /// The staged operations, in order.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Discards all operations.
    pub fn clear(&mut self) {
        // Not `Vec::clear`, which would keep the memory of a snapshot.
        self.operations = Vec::new();
    }

    /// Applies the operations to `state`.
    pub fn commit(&mut self, state: &mut NodeState) -> CommitResult {
        let (net_effect, rejected) = self.coalesce(state);
        let (changes, departed) = net_effect.apply(state);
        CommitResult { changes, departed, rejected }
    }

    /// Applies the operations to `state`. Also returns the service ports that lose all their endpoints, as they were.
    pub(crate) fn commit_with_losses(&mut self, state: &mut NodeState) -> (CommitResult, Vec<ServicePortState>) {
        let (net_effect, rejected) = self.coalesce(state);
        let emptied = net_effect.emptied(state);
        let (changes, departed) = net_effect.apply(state);
        (CommitResult { changes, departed, rejected }, emptied)
    }

    fn coalesce(&mut self, state: &NodeState) -> (NetEffect, Vec<RejectedOperation>) {
        let mut rejected = Vec::new();
        let mut coalescer = Coalescer::new(state);
        for operation in mem::take(&mut self.operations) {
            if let Err(error) = coalescer.add(operation) {
                rejected.push(error);
            }
        }
        (coalescer.finish(), rejected)
    }
}

#[cfg(test)]
mod tests;
