//! Connection tracking: dumps UDP and TCP flows with their NAT, deletes flows in batches, looks up a flow of any
//! protocol, and lists all entries with their state and traffic.
//!
//! ```text
//!   original  10.244.1.7:4000 -> 10.96.0.10:53        the client's packets
//!   reply     10.244.2.5:5353 -> 10.244.1.7:4000      the reply's packets: the source is the endpoint
//! ```

pub(crate) mod abi;
mod entry;
pub(crate) mod flow;
mod handle;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use proto::model::Protocol;

pub use entry::{Entry, Stage, Traffic};
pub use handle::{ConntrackHandle, DELETIONS_PER_SEND};

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The source of the packets.
    pub source: SocketAddr,
    /// The destination of the packets.
    pub destination: SocketAddr,
}

/// A flow. TCP connections that are closed (`TIME_WAIT` and `CLOSE`) are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Its protocol.
    pub protocol: Protocol,
    /// The direction of its first packet, before NAT.
    pub original: Tuple,
    /// The direction of the replies, before NAT is undone.
    pub reply: Tuple,
    /// The kernel's id of the flow (`CTA_ID`). A later flow with the same tuples has another id.
    pub id: u32,
    /// Its zone.
    pub zone: ConntrackZone,
    /// Whether both peers of a TCP connection have answered each other, and neither has closed it.
    pub is_established: bool,
    /// Whether it is a TCP connection whose SYN has not been answered.
    pub is_half_open: bool,
}

/// A conntrack zone: flows of different zones may have the same tuples. Zone 0 is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConntrackZone {
    /// For both directions (`CTA_ZONE`).
    Both(u16),
    /// For the original direction only (`CTA_TUPLE_ZONE`).
    Original(u16),
}
