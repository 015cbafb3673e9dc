//! Connections and flows in the conntrack table that a change has left behind: stale UDP flows and half-open TCP
//! connections are deleted, and TCP connections to endpoints that are gone are reset.

mod half_open;
mod requests;
mod resets;
mod udp;
mod worker;

#[cfg(any(test, feature = "testing"))]
pub(crate) use half_open::delete_half_open;
pub(crate) use resets::ConnectionResetter;
#[cfg(any(test, feature = "testing"))]
pub(crate) use resets::pass_once;
pub use resets::remove_reset_rules;
#[cfg(any(test, feature = "testing"))]
pub(crate) use udp::UdpVips;
#[cfg(any(test, feature = "testing"))]
pub(crate) use worker::clean_up;
pub(crate) use worker::{ConntrackCleaner, KernelFlowTable};

/// What the requests are built on.
mod sync {
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
}

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
