//! The desired state. Pure.
//!
//! ```text
//!   a service port, facts about the node, its id  ──▶ service : objects with keys and values
//!   options, facts about the node and the cluster ──▶ rules   : iptables chains, independent of Services
//! ```

mod rules;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use rules::{TABLES, hooks, is_ours, rules};
#[cfg(test)]
pub(crate) use service::MAX_PERSISTENT_DESTINATIONS;
pub(crate) use service::{Context, Desired, Excess, desired, excess};
