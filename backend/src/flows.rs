//! Flows in the conntrack table that a change leaves behind: stale UDP flows (`udp`) and half-open TCP connections
//! (`half_open`) are deleted, and TCP connections to endpoints that are gone are reset (`resets`). SCTP connections end
//! by themselves.
//!
//! ```text
//!   Follower: commits ──────────────┐                      ┌─▶ resets: list TCP, reject, probe
//!   Programmer: before a call, and ─┴─▶ Memory ─▶ thread ──┼─▶ udp: list UDP, delete
//!               what it programmed                         └─▶ half_open: list SYNs without an answer, delete
//! ```
//!
//! One thread does all of it, so that a large conntrack table or a kernel that hangs delays no commit. There is no
//! queue: those who record compare two states, and add to what the thread has not done yet. So one cleanup follows
//! several changes, and a VIP that existed between two cleanups only is known to the next one.
//!
//! What is due first: connections to be reset, then UDP flows, then half-open connections, of which each has a pass and
//! begins again. Resets thus wait for one pass over UDP flows at most, and for [`half_open::GRACE`]. In return the
//! thread rests from resets for ten times as long as they took, and from cleanups for as long as these took.
//!
//! Flows are compared with the newest state, even while that is being programmed, except for the service ports in which
//! it differs from the kernel: a flow to an endpoint that is about to be added is not stale. Nothing follows from a
//! state that no frontend has confirmed.

mod half_open;
mod memory;
mod requests;
mod resets;
mod table;
mod udp;
mod vips;
mod worker;

use std::{sync::Arc, thread, time::Duration, time::Instant};

use proto::model::ServicePortKey;
use runtime::failure::Repeated;
use tokio::sync::watch;
use tracing::error;

use self::{memory::Memory, requests::Requests, resets::Resetter, table::KernelFlowTable, worker::Worker};
use crate::{Changes, DepartedEndpoints, NodeState, Progress, dataplane::NodePortAddresses, metrics::Metrics};
#[cfg(any(test, feature = "testing"))]
pub(crate) use resets::pass_once;
pub use resets::remove_reset_rules;

/// What the requests are built on.
mod sync {
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
}

/// How long the end of the process waits for the thread, which removes its rules.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether stale UDP flows and half-open TCP connections are deleted, and TCP connections to endpoints that are gone
/// are reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConntrackCleanup {
    /// They are left as they are.
    Disabled,
    /// After each change of a UDP service port and after each reconcile, UDP flows to VIPs whose replies come from no
    /// endpoint are deleted, and translated ones to VIPs that were withdrawn. The next packet creates a new flow.
    /// Half-open TCP connections are deleted after changes of TCP. Clients of endpoints that are gone get a reset.
    Enabled,
}

/// The side of those who follow and program; `None`: flows are left as they are. Its calls wait for no work of the
/// thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Flows(Option<Requests<Memory>>);

impl Flows {
    /// Starts the thread, in the network namespace of the calling thread. `is_ipvs`: IPVS translates connections.
    /// `state`: what the kernel may have.
    pub(crate) fn start(
        mode: ConntrackCleanup,
        is_ipvs: bool,
        nodeport_addresses: NodePortAddresses,
        state: NodeState,
        progress: watch::Sender<Progress>,
        metrics: Arc<Metrics>,
    ) -> Self {
        if mode == ConntrackCleanup::Disabled {
            return Self(None);
        }
        Self::spawn(Worker {
            requests: Requests::new(Memory::new(state)),
            table: KernelFlowTable(nodeport_addresses.clone()),
            nodeport_addresses,
            resetter: Resetter::new(is_ipvs),
            progress,
            metrics,
            cleanups: Repeated::default(),
            resets: Repeated::default(),
        })
    }

    fn spawn(worker: Worker<impl table::FlowTable>) -> Self {
        let requests = worker.requests.clone();
        let started = thread::Builder::new().name("flows".to_owned()).spawn(move || worker.run());
        if let Err(error) = &started {
            error!(%error, "cannot start the thread that deletes stale flows and resets connections");
        }
        Self(started.is_ok().then_some(requests))
    }

    fn record(&self, record: impl FnOnce(&mut Memory) -> bool) {
        if let Some(requests) = &self.0 {
            requests.record(record);
        }
    }

    /// Records a commit. `state` is the committed one. `departed`: the endpoints that left service ports; `None`: the
    /// commit before is not comparable.
    pub(crate) fn committed(&self, departed: Option<DepartedEndpoints>, changes: &Changes, state: &NodeState) {
        self.record(|memory| {
            let next = memory.next_reset();
            memory.committed(departed, changes, state, Instant::now());
            memory.departed.is_revoked || memory.next_reset() != next
        });
    }

    /// Records the state that is about to be programmed.
    pub(crate) fn prepare(&self, state: &NodeState) {
        self.record(|memory| {
            memory.prepare(state);
            false
        });
    }

    /// A call has programmed what was recorded last, except for these service ports: some that cannot be, and, unless
    /// it `is_finished`, some that will be.
    pub(crate) fn programmed<'a>(
        &self,
        is_reconcile: bool,
        is_finished: bool,
        failed: impl Iterator<Item = &'a ServicePortKey>,
    ) {
        self.record(|memory| {
            memory.programmed(is_reconcile, is_finished, failed);
            memory.is_confirmed
        });
    }

    /// A frontend has confirmed the state, which is programmed.
    pub(crate) fn confirmed(&self) {
        self.record(Memory::confirmed);
    }

    /// The state is older than what was programmed before.
    pub(crate) fn rolled_back(&self) {
        self.record(|memory| {
            memory.is_confirmed = false;
            false
        });
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        if let Some(requests) = &self.0 {
            requests.close(STOP_TIMEOUT);
        }
    }
}

/// Deletes the stale UDP flows of the thread's network namespace. Returns their number.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn delete_stale_udp(state: &NodeState) -> anyhow::Result<usize> {
    let vips = udp::UdpVips::of(state, &state.node().addresses, &Default::default(), &Default::default());
    let cleanups = udp::clean_up(&KernelFlowTable(NodePortAddresses::all()), vips, |_| false)?;
    Ok(cleanups.iter().map(|cleanup| cleanup.deleted).sum())
}

/// Deletes the half-open connections that a change misleads, without waiting for late answers. Returns their number.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn delete_half_open(before: &NodeState, after: &NodeState) -> anyhow::Result<usize> {
    let mut memory = Memory::new(before.clone());
    memory.is_confirmed = true;
    let departed = before.diff(after).filter_map(|change| change.departed()).collect();
    memory.committed(Some(departed), &Changes::between(before, after), after, Instant::now());
    memory.prepare(after);
    memory.programmed(false, true, std::iter::empty());
    let Some(half_open) = memory.take_half_open() else { return Ok(0) };
    half_open.clean_up(&KernelFlowTable(NodePortAddresses::all()), &after.node().addresses, |_| true)
}
