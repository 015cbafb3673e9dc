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

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use proto::model::{IpFamily, Protocol};

use self::{probe::ProbeSocket, rejecter::Rejected};
use super::{
    rest::Rest,
    table::{FlowTable, KernelFlowTable},
    vips::PassLimit,
};
use crate::dataplane::NodePortAddresses;
pub(super) use departed::{Departed, Due};
pub use leftovers::remove_reset_rules;
pub(super) use rejecter::Rejecter;

/// The rest after a pass: at least a second, so that at most [`PassLimit::ALL`] probes are sent in one.
pub(super) const REST: Rest = Rest { factor: 10, shortest: Duration::from_secs(1), longest: Duration::from_secs(600) };

/// Resets the connections to endpoints that are due, up to the limit of a pass, and counts all of them. Once they are
/// found, `retain_due` leaves out the endpoints that are not due any more.
pub(super) fn reset(rejecter: &mut Rejecter, due: &mut Due, mut retain_due: impl FnMut(&mut Due)) -> Result<()> {
    let mut limit = PassLimit::default();
    // All addresses, because a Service may have translated a connection at an address that served node ports before a
    // restart with other options.
    let table = KernelFlowTable(NodePortAddresses::all());
    for family in IpFamily::ALL {
        if due.vips[family].is_empty() {
            continue;
        }

        // Without a socket no connection is listed.
        let socket = ProbeSocket::open(family).context("open a raw socket (requires CAP_NET_RAW)")?;
        due.add_addresses(family, &table.addresses().context("list the addresses of the node")?);

        let mut flows = Vec::new();
        let visited = table.visit(family, Protocol::Tcp, &mut |flow| {
            if let Some(key) = due.count(&flow)
                && limit.admits(&key.namespace)
            {
                flows.push(flow);
            }
            Ok(())
        });
        visited.with_context(|| format!("list {family} connections"))?;

        retain_due(due);
        let rejected = flows.iter().filter_map(|flow| Some((Rejected::of(flow), due.namespace(flow)?)));
        let rejected: BTreeMap<_, _> = rejected.collect();
        if rejected.is_empty() {
            continue;
        }

        rejecter.reject(family, rejected)?;
        for flow in flows.iter().filter(|flow| rejecter.rejects(family, flow)) {
            // A client that cannot be reached needs no reset.
            let _ = socket.send(flow, rejecter.nat);
        }
    }
    Ok(())
}
