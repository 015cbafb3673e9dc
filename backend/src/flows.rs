//! Flows in the conntrack table that a change leaves behind: stale UDP flows (`udp`) and half-open TCP connections
//! (`half_open`) are deleted, and TCP connections to endpoints that are gone are reset (`resets`). SCTP connections end
//! by themselves.
//!
//! ```text
//!   Follower: commits ──────────────┐                            ┌─▶ resets: list TCP, reject, probe
//!   Programmer: before each call, ──┴─▶ PendingFlows ─▶ thread ──┼─▶ udp: list UDP, delete
//!               and what it completed         ▲                  └─▶ half_open: list SYNs without an answer, delete
//!   Programmed: what the kernel lacks ────────┘
//! ```
//!
//! One thread does all of it, so that a large conntrack table or a kernel that hangs delays no commit. There is no
//! queue: the follower and the programmer compare two states, and add to the work that the thread has not done yet, up
//! to a limit. So one cleanup follows several changes, and the next cleanup also knows a VIP that existed only since
//! the last one.
//!
//! A pass costs as much as the table is large, however small the change is, so passes are few. TCP connections are
//! listed only after an endpoint departed or a VIP changed. The first pass follows at once. Then the thread rests from
//! passes of that kind for many times as long as the pass took (`rest`), and one pass follows all changes meanwhile.
//!
//! Resets of connections come first, then UDP flows, then half-open connections; after each pass the thread looks for
//! the most urgent work again. So a reset waits for one pass at most, and because of the rests no kind of work starves
//! another. Rules of resets that are revoked are removed sooner: between two slices of UDP flows, or after one pass
//! over TCP connections.
//!
//! Flows are compared with the newest state, even while that is being programmed, except for the service ports of
//! which the kernel lacks something: a flow to an endpoint that is about to be added is not stale. No flow is touched
//! because of a state that no frontend has confirmed.

mod half_open;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod once;
mod pending;
mod requests;
mod resets;
mod rest;
mod table;
#[cfg(test)]
mod testing;
mod udp;
mod vips;
mod worker;

use std::{sync::Arc, thread};

#[cfg(test)]
use proto::model::ServicePortKey;
use runtime::TokenBucket;
use tokio::{sync::watch, time::Instant};
use tracing::error;

use self::{
    requests::Requests,
    resets::Rejecter,
    table::KernelFlowTable,
    worker::{AllPasses, Worker},
};
use crate::{Nat, NodeState, Progress, STOP_TIMEOUT, dataplane::NodePortAddresses, metrics::Metrics, sync::Programmed};
pub(crate) use pending::PendingFlows;
pub(crate) use requests::Recorded;
pub use resets::remove_reset_rules;

/// The locks of `requests`, in a module, so that the tests in `tests/simulation/concurrency/` can replace it.
mod primitives {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

/// Whether stale UDP flows and half-open TCP connections are deleted, and TCP connections to endpoints that are gone
/// are reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConntrackCleanup {
    /// All flows are left as they are.
    Disabled,
    /// After each change of a UDP service port and after each reconcile, UDP flows to VIPs whose replies come from no
    /// endpoint are deleted, and translated ones to VIPs that were withdrawn. The next packet creates a new flow.
    /// Half-open TCP connections are deleted after changes of TCP. Clients of endpoints that are gone get a reset.
    Enabled,
}

/// The handle of the follower and the programmer; `None`: flows are left as they are. Its calls do not wait for the
/// work of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Flows(Option<Arc<Requests<PendingFlows>>>);

impl Flows {
    /// Starts the thread, in the network namespace of the calling thread. `nat` translates connections. The kernel may
    /// have `state`, and `programmed` says what it lacks of the newest state.
    pub(crate) fn start(
        mode: ConntrackCleanup,
        nat: Nat,
        nodeport_addresses: NodePortAddresses,
        state: NodeState,
        programmed: watch::Receiver<Programmed>,
        progress: watch::Sender<Progress>,
        metrics: Arc<Metrics>,
    ) -> Self {
        if mode == ConntrackCleanup::Disabled {
            return Self(None);
        }
        Self::spawn(Worker {
            requests: Arc::new(Requests::new(PendingFlows::new(state, programmed))),
            table: KernelFlowTable(nodeport_addresses.clone()),
            nodeport_addresses,
            rejecter: Rejecter::new(nat),
            progress,
            metrics,
            passes: AllPasses::new(),
            lines: TokenBucket::full(Instant::now()),
        })
    }

    fn spawn(worker: Worker<impl table::FlowTable>) -> Self {
        let requests = worker.requests.clone();
        match thread::Builder::new().name("flows".to_owned()).spawn(move || worker.run()) {
            Ok(_) => Self(Some(requests)),
            Err(error) => {
                error!(%error, "cannot start the thread that deletes stale flows and resets connections");
                Self(None)
            }
        }
    }

    /// Records something. Wakes the thread if that is due.
    pub(crate) fn record(&self, record: impl FnOnce(&mut PendingFlows) -> Recorded) {
        if let Some(requests) = &self.0 {
            requests.record(record);
        }
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        if let Some(requests) = &self.0 {
            requests.close(STOP_TIMEOUT);
        }
    }
}

#[cfg(test)]
impl Flows {
    /// Only records.
    pub(crate) fn without_thread(state: NodeState, programmed: watch::Receiver<Programmed>) -> Self {
        Self(Some(Arc::new(Requests::new(PendingFlows::new(state, programmed)))))
    }

    /// Whether a UDP flow to a VIP of this service port may be stale.
    pub(crate) fn compares_udp(&self, key: &ServicePortKey) -> bool {
        self.0.as_ref().is_some_and(|requests| requests.with(|pending| !pending.udp().except.contains(key)))
    }

    /// Takes the VIPs of a cleanup of UDP flows. Returns whether one is due.
    pub(crate) fn take_udp(&self) -> bool {
        self.0.as_ref().is_some_and(|requests| requests.with(PendingFlows::take_udp).is_some())
    }

    /// Whether flows may be deleted.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.0.as_ref().is_some_and(|requests| requests.with(|pending| pending.is_confirmed))
    }
}
