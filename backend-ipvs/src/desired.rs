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

pub(crate) use rules::{Rules, TABLES, is_ours, rules};
pub(crate) use service::{Context, Desired, desired};
