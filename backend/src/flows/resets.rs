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
//! session, and the frontend says that it is gone, and other endpoints can serve.
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
mod worker;

pub use leftovers::remove_reset_rules;
pub(crate) use worker::ConnectionResetter;
#[cfg(any(test, feature = "testing"))]
pub(crate) use worker::pass_once;
