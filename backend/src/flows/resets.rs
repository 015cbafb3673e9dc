//! Resets TCP connections that a Service has translated to an endpoint that is gone. Nothing answers for such an
//! endpoint: its clients would wait until they give up, for up to a quarter of an hour.
//!
//! ```text
//!   commits ──▶ Departed: service port, endpoint, since when    conntrack: client ──▶ VIP, endpoint ──▶ client
//!                   └─ due: absent for seconds ─ is_gone(flow) ──────────┘
//!   for each such connection:
//!     rejecter  its packets are rejected with a reset                         (for some seconds)
//!     probe     client ◀── SYN ACK ── "endpoint"; client ── ACK ──▶ rejected  (a segment that no client accepts)
//! ```
//!
//! An endpoint is due if this process saw it leave the service port, in a commit on top of another one of the same
//! session, which is programmed, and the frontend says that it is gone, and other endpoints can serve.
//!
//! A client answers the probe with an ACK of what it expects next (RFC 5961, section 4). That ACK is rejected with a
//! reset of exactly this sequence number, which a client accepts. So a client that only waits is reset, too.

mod chain;
mod departed;
mod leftovers;
mod probe;
mod rejecter;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::conntrack::{Flow, FlowProtocol};
use proto::model::{IpFamily, PerFamily};

use self::{
    departed::OpenConnections,
    probe::{Probe, ProbeSocket},
    rejecter::{Rejected, Rejecter},
};
use super::{
    table::{FlowTable, KernelFlowTable},
    vips::PassLimit,
};
use crate::dataplane::NodePortAddresses;
pub(super) use departed::{Departed, Due};
pub use leftovers::remove_reset_rules;

/// The shortest rest after a pass, so that at most [`PassLimit::ALL`] probes are sent in a second.
const MIN_REST: Duration = Duration::from_secs(1);
/// The rest after a pass, as a multiple of what it took.
const REST_FACTOR: u32 = 10;
/// The longest rest after passes that failed.
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// Resets connections in the network namespace of the calling thread.
#[derive(Debug)]
pub(super) struct Resetter {
    rejecter: Option<Rejecter>,
    /// Whether IPVS translates connections.
    is_ipvs: bool,
}

/// How long the thread rests after a pass.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The passes that failed since one succeeded.
    failures: u32,
}

// === impl Rest ===

impl Rest {
    pub(super) fn after(&mut self, took: Duration, is_failed: bool) -> Duration {
        self.failures = if is_failed { self.failures.saturating_add(1) } else { 0 };
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        MIN_REST.saturating_mul(factor).min(MAX_BACKOFF).max(took.saturating_mul(REST_FACTOR))
    }
}

// === impl Resetter ===

impl Resetter {
    pub(super) fn new(is_ipvs: bool) -> Self {
        Self { rejecter: None, is_ipvs }
    }

    /// Removes the rules of an earlier process.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.rejecter = Some(Rejecter::open().context("remove the rules of an earlier process")?);
        Ok(())
    }

    /// When the rules are to be removed.
    pub(super) fn until(&self) -> Option<Instant> {
        self.rejecter.as_ref()?.until()
    }

    /// Removes the rules.
    pub(super) fn remove(&mut self) -> Result<()> {
        let removed = self.rejecter.as_mut().map_or(Ok(()), Rejecter::remove);
        if removed.is_err() {
            // What it has written expires, or is removed when this process or another one begins.
            self.rejecter = None;
        }
        removed
    }

    /// Resets the connections to endpoints that are due, except if this `is_void` once they are found.
    pub(super) fn reset(&mut self, due: &mut Due, is_void: impl Fn() -> bool) -> Result<OpenConnections> {
        let mut open = OpenConnections::new();
        let mut limit = PassLimit::default();
        // What a Service has translated at an address without node ports, it did before a restart with other addresses.
        let table = KernelFlowTable(NodePortAddresses::all());
        let sockets = PerFamily::from_fn(|family| (!due.vips[family].is_empty()).then(|| ProbeSocket::open(family)));
        for (family, socket) in [(IpFamily::V4, sockets.v4), (IpFamily::V6, sockets.v6)] {
            let Some(socket) = socket else { continue };
            // Without one no connection is listed.
            let socket = socket.context("open a raw socket (requires CAP_NET_RAW)")?;
            due.vips[family].add_addresses(&table.addresses().context("list the addresses of the node")?);
            let flows = find(due, &table, family, &mut limit, &mut open)?;
            if flows.is_empty() || is_void() {
                continue;
            }
            if self.rejecter.is_none() {
                self.rejecter = Some(Rejecter::open()?);
            }
            let Some(rejecter) = &mut self.rejecter else { continue };
            let rejected = rejecter.reject(family, flows.iter().map(Rejected::of).collect::<BTreeSet<_>>())?;
            for flow in flows.iter().filter(|flow| rejected.contains(&Rejected::of(flow))) {
                // A client that cannot be reached needs no reset.
                let _ = socket.send(&Probe::of(flow, self.is_ipvs));
            }
        }
        Ok(open)
    }
}

/// The connections to endpoints that are due, up to the limit. Counts all of them.
fn find(
    due: &Due,
    table: &KernelFlowTable,
    family: IpFamily,
    limit: &mut PassLimit,
    open: &mut OpenConnections,
) -> Result<Vec<Flow>> {
    let mut flows = Vec::new();
    let visited = table.visit(family, FlowProtocol::Tcp, &mut |flow| {
        let Some((key, endpoint)) = due.vips[family].of_gone(&flow) else { return Ok(()) };
        if limit.admits(&key.namespace) {
            flows.push(flow);
        }
        *open.entry((key.clone(), endpoint)).or_default() += 1;
        Ok(())
    });
    visited.with_context(|| format!("list {family} connections"))?;
    Ok(flows)
}

/// A pass over the connections of the thread's network namespace, as if all endpoints that are gone in this state had
/// departed. Returns the number of connections.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn pass_once(state: &crate::NodeState) -> Result<usize> {
    let gone = state.service_ports().iter().map(|(key, service)| {
        let endpoints = service.gone.iter().flat_map(|(_, pool)| pool.iter().copied());
        (key.clone(), endpoints.collect())
    });
    let service_ports = state.service_ports().keys().cloned().collect();
    let changes = crate::Changes { service_ports, ..crate::Changes::default() };
    let mut departed = Departed::default();
    let before = Instant::now().checked_sub(departed::ABSENCE).context("read the clock")?;
    departed.committed(Some(gone.collect()), &changes, state, before);
    let mut due = departed.due(state, |_| true, Instant::now());
    Ok(Resetter::new(false).reset(&mut due, || false)?.values().sum())
}
