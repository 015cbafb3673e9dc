//! Single passes over the flows of the thread's network namespace, for tests and benchmarks.

use std::time::{Duration, Instant};

use anyhow::Result;
use proto::model::Endpoint;
use tokio::sync::watch;

use super::{PendingFlows, resets, table::KernelFlowTable, udp};
use crate::{Changes, Nat, NodeState, ServicePortState, dataplane::NodePortAddresses};

/// Deletes the UDP flows that are stale in this state. Returns their number.
pub(crate) fn delete_stale_udp(state: &NodeState) -> Result<usize> {
    let mut vips = Some(udp::UdpVips::of(state, &state.node().addresses, &Default::default(), &Default::default()));
    let cleanups = udp::clean_up(&table(), || vips.take(), || {})?;
    Ok(cleanups.iter().map(|cleanup| cleanup.deleted).sum())
}

/// Deletes the half-open connections that a change misleads, without waiting for late answers. Returns their number.
pub(crate) fn delete_half_open(before: &NodeState, after: &NodeState) -> Result<usize> {
    let mut pending = PendingFlows::new(before.clone(), watch::Sender::default().subscribe());
    pending.handed(after, true);
    pending.programmed(false, after.service_ports().keys());
    let Some(half_open) = pending.take_half_open() else { return Ok(0) };
    half_open.clean_up(&table(), &after.node().addresses, |_| true)
}

/// Handles connections as if all endpoints that are gone in this state had departed. Returns the number of connections.
pub(crate) fn reset(state: &NodeState) -> Result<usize> {
    let gone = state.service_ports().iter().map(|(key, service)| (key.clone(), gone_endpoints(service)));
    let changes = Changes { service_ports: state.service_ports().keys().cloned().collect(), ..Changes::default() };

    let mut departed = resets::Departed::default();
    let now = Instant::now();
    departed.committed(Some(gone.collect()), &changes, state, now);

    let mut due = departed.due(state, |_| true, now + Duration::from_secs(60));
    resets::reset(&mut resets::Rejecter::new(Nat::Netfilter), &mut due, |_| {})?;
    Ok(due.ports.iter().flat_map(|port| port.open.values()).sum())
}

fn gone_endpoints(service: &ServicePortState) -> Vec<Endpoint> {
    service.gone.iter().flat_map(|(_, pool)| pool.iter().copied()).collect()
}

fn table() -> KernelFlowTable {
    KernelFlowTable(NodePortAddresses::all())
}
