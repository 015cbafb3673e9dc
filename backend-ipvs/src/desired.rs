//! What should be there. Pure.
//!
//! ```text
//!   a service port, the node's facts, its number ──▶ service : pieces, each by what it is known
//!   options, the node's and the cluster's facts  ──▶ rules   : chains of iptables, the same whatever services there are
//! ```

mod rules;
mod service;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use rules::{Chain, Hook};
pub(crate) use rules::{Rules, Table, is_ours, rules};
pub(crate) use service::{Context, Desired, desired};
