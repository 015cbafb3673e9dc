//! What a backend is to the agent: something that makes the kernel equal to a state.

use std::{future::Future, time::Duration};

use anyhow::Result;
use proto::model::ServicePortFailure;

use crate::{Changes, NodeState};

/// Programs one node's kernel.
///
/// The trait is shaped by state, not by events: both `reconcile` and `apply` are given all that must be there. A backend
/// never sees a Service, an EndpointSlice or a stream. The agent calls one method at a time and waits for it.
pub trait Backend: Send + 'static {
    /// What it is called on the wire and in logs: `nft`, `iptables`, `ipvs`.
    const NAME: &'static str;

    /// Makes the kernel equal to `state`, starting from whatever the kernel holds. Called at start, after a failure, and
    /// on drift. Writes only what differs: nothing at all when nothing does.
    ///
    /// # Errors
    /// When the kernel could not be read, or refused a write that belongs to no single service port. The kernel is then
    /// as it was or partly reconciled, and `reconcile` is called again after a delay.
    fn reconcile(&mut self, state: &NodeState) -> impl Future<Output = Result<Applied>> + Send;

    /// Applies one commit on top of the last success. Costs what the change costs, and leaves the kernel as `reconcile`
    /// would: the conformance suite checks that.
    ///
    /// # Errors
    /// As [`Self::reconcile`], which is called next.
    fn apply(&mut self, state: &NodeState, changes: &Changes) -> impl Future<Output = Result<Applied>> + Send;

    /// Returns when somebody else has changed, or may have changed, what was applied last; [`Self::reconcile`] is called next.
    /// Waited for while there is nothing else to do, and dropped when there is. A backend that cannot tell never returns.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send {
        std::future::pending()
    }

    /// Removes everything that this backend may ever have installed, and nothing else.
    ///
    /// # Errors
    /// When something of ours could not be removed.
    fn cleanup(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// How a kernel is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// Somebody else changed what is ours.
    Changed {
        /// One of the things that were changed, in the kernel's words: `rule`, `table`.
        what: String,
        /// The name of the process.
        by: String,
        /// Its number, or its thread's.
        pid: u32,
    },
    /// Nobody can say that nothing was changed.
    Unsure,
}

/// Something that a backend has put into the kernel, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which part of the kernel, by the name of the program or subsystem that shows it: `iptables-nft nat`, `ipset`, `nf_tables`.
    pub place: String,
    /// What it is: `chain`, `table ip fairlead`.
    pub what: String,
    /// How many.
    pub count: usize,
}

/// What a backend has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The number of operations written to the kernel. Zero says that the kernel held the right thing already.
    pub writes: usize,
    /// The service ports that could not be programmed: all of them, also those that failed earlier and still do.
    pub failures: Vec<ServicePortFailure>,
    /// How long it had to wait until others let go of what only one at a time may change.
    pub lock_wait: Duration,
}
