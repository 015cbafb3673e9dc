//! Whether any node of the cluster still sends new connections to a pod that ends: what all frontends know together.
//!
//! ```text
//!   GET /drained ──▶ Drains ──▶ waiter ◀── View ── follower ◀──DrainLevels── the node's own frontend
//!                                 │                   ▲    ◀──DrainLevels── all others, once that says "drained"
//!                                 │ decide            └── closes the streams 5 s after the last waiter
//!                                 ▼
//!                         200 | 404 | 502 | 504
//! ```
//!
//! A frontend speaks for the nodes that are connected to it. Their sets are added: if the sum is the set of all nodes,
//! every node has been spoken for exactly once. Nodes that no frontend speaks for may still have the pod in their
//! kernels; they delay the answer while they may be about to connect to another frontend, and no longer.
//!
//! Frontends know nothing of waiters: what a pod, a probe or a stranger asks about is looked up in what they send
//! anyway.

mod decide;
mod follower;
mod http;
mod metrics;
mod places;
#[cfg(test)]
mod tests;

use std::fmt;

use anyhow::Result;
use futures::{future::BoxFuture, stream::BoxStream};
use proto::v1::DrainLevels;
use tokio::time::Instant;

use crate::FrontendAddress;

#[cfg(test)]
pub(crate) use self::metrics::DrainMetrics;
pub use self::{
    follower::{Follower, MAX_RETRY_DELAY, MIN_RETRY_DELAY},
    http::{Drains, MAX_TIMEOUT, RESPONSE_SLACK, request_path},
};

/// The calls `Drains` of a node.
pub trait DrainStreams: fmt::Debug + Send + Sync + 'static {
    /// The frontend of the node's session; `None` while there is no session.
    fn own(&self) -> Option<FrontendAddress>;

    /// The known frontends.
    fn addresses(&self) -> Vec<FrontendAddress>;

    /// When a frontend was last missing in the addresses that were found.
    fn last_removed(&self) -> Option<Instant>;

    /// Resolves the addresses again.
    ///
    /// # Errors
    /// When a source cannot be resolved. Its last known addresses are used then.
    fn resolve(&self) -> BoxFuture<'static, Result<()>>;

    /// Calls `Drains`.
    ///
    /// # Errors
    /// When the frontend cannot be reached, or rejects the call.
    fn open(&self, address: &FrontendAddress) -> BoxFuture<'static, Result<LevelsStream>>;
}

/// The messages of one frontend.
pub type LevelsStream = BoxStream<'static, Result<DrainLevels>>;

/// The common knowledge of all frontends about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No node sends new connections to the pod, except perhaps for nodes of which no frontend knows.
    Yes {
        /// The number of these nodes.
        absent: u64,
        /// Why frontends do not count.
        silent: Vec<String>,
    },
    /// The time is over, and some node may.
    No(NotDrained),
    /// No EndpointSlice has an address of the pod.
    Unknown,
    /// The time is over, and no frontend has said anything.
    NoAnswer(NotDrained),
}

/// Why a pod is not drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDrained {
    /// For the pod.
    pub summary: String,
    /// For the log of the node: Services, nodes and frontends.
    pub details: String,
}

impl NotDrained {
    fn new(summary: impl Into<String>, details: &[String]) -> Self {
        Self { summary: summary.into(), details: details.join("; ") }
    }

    fn and_then(self, last: &Self) -> Self {
        Self { details: format!("{}; then {last}", self.details), ..self }
    }
}

impl fmt::Display for NotDrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.summary, self.details)
    }
}
