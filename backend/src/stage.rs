//! Operations collected since the last commit, and how they become the next state: folded to what they amount to, compared with
//! what is there, applied as a whole.
//!
//! ```text
//!   put a, change a.pool, reset bucket 7, put b, ...  ──fold──▶  per service port: edited | replaced | gone
//!                                                                    │ compared with NodeState
//!                                                                    ▼
//!                                                        NodeState changed, Changes exact
//! ```

mod coalesce;
mod limit;

use std::mem;

use proto::model::{IpFamily, Operation, PoolId, ServicePortKey};

use crate::{Changes, NodeState};
use coalesce::{Coalescer, NetEffect};
pub use limit::{Loss, LossLimit};

/// What has been received since the last commit. Nothing of it is in force.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    operations: Vec<Operation>,
}

/// What a commit has done to the state.
#[derive(Debug, Default)]
pub struct CommitResult {
    /// What differs from before.
    pub changes: Changes,
    /// The operations that made no sense and were left out. The digests then differ from the frontend's, which leads to
    /// a repair.
    pub refused: Vec<RejectedOperation>,
}

/// An operation that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedOperation {
    /// A pool operation for a service port that is not there.
    #[error("{0}: there is no such service port")]
    UnknownServicePort(ServicePortKey),
    /// Addresses of the other family in a pool.
    #[error("{}: an address in the {} pool is not {}", .0.key, .0.class, .0.family)]
    OtherFamily(PoolId),
    /// The facts of another node.
    #[error("facts of node {0}, which is another one")]
    OtherNode(String),
    /// A bucket beyond the last one.
    #[error("bucket {0}: there is no such digest bucket")]
    UnknownBucket(u8),
}

impl Stage {
    /// Takes in one more part of a change.
    pub fn extend(&mut self, operations: impl IntoIterator<Item = Operation>) {
        self.operations.extend(operations);
    }

    /// What is staged, in order.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Forgets everything: the rest of the change will not come.
    pub fn clear(&mut self) {
        // Not `Vec::clear`: the room that a snapshot needed is not needed again.
        self.operations = Vec::new();
    }

    /// Applies everything to `state` and starts anew.
    pub fn commit(&mut self, state: &mut NodeState) -> CommitResult {
        let (folded, refused) = self.fold(state);
        CommitResult { changes: folded.apply(state), refused }
    }

    /// The same, unless that takes away more than the limit allows: then everything is forgotten, and the state stays.
    ///
    /// # Errors
    /// What it would have taken away.
    pub fn commit_within(&mut self, state: &mut NodeState, limit: LossLimit) -> Result<CommitResult, Loss> {
        let (folded, refused) = self.fold(state);
        limit.check(folded.lost(state), state)?;
        Ok(CommitResult { changes: folded.apply(state), refused })
    }

    fn fold(&mut self, state: &NodeState) -> (NetEffect, Vec<RejectedOperation>) {
        let mut refused = Vec::new();
        let mut fold = Coalescer::new(state);
        for operation in mem::take(&mut self.operations) {
            if let Err(error) = fold.take(operation) {
                refused.push(error);
            }
        }
        (fold.finish(), refused)
    }
}

/// Whether all endpoints of a pool operation have the family of the pool.
fn check_family<'a>(
    pool: &PoolId,
    mut endpoints: impl Iterator<Item = &'a proto::model::Endpoint>,
) -> Result<(), RejectedOperation> {
    if endpoints.all(|endpoint| IpFamily::of(&endpoint.address) == pool.family) {
        Ok(())
    } else {
        Err(RejectedOperation::OtherFamily(pool.clone()))
    }
}

#[cfg(test)]
mod tests;
