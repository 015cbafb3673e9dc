//! Connection tracking: the UDP flows that the kernel remembers, with what NAT made of them, dumped one by one and
//! deleted in batches; and one flow of any protocol, looked up.
//!
//! ```text
//!   original  10.244.1.7:4000 -> 10.96.0.10:53        what the client sent
//!   reply     10.244.2.5:5353 -> 10.244.1.7:4000      what an answer looks like: its source is the endpoint
//! ```

mod abi;
#[cfg(test)]
mod captured;
mod flow;
mod handle;
mod lookup;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use handle::ConntrackHandle;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Whose packets these are.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
}

/// A UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpFlow {
    /// The direction of its first packet, before NAT.
    pub original: Tuple,
    /// The direction of the answers, before NAT is undone.
    pub reply: Tuple,
    /// The kernel's number for it (`CTA_ID`): another one when a flow of the same tuples is made later.
    pub id: u32,
    /// Where it is tracked.
    pub zone: ConntrackZone,
}

/// A conntrack zone: flows of different zones may have the same tuples. Zone 0 is the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConntrackZone {
    /// For both directions (`CTA_ZONE`).
    Both(u16),
    /// For the original direction only (`CTA_TUPLE_ZONE`).
    Original(u16),
}
