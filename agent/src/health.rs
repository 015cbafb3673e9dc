//! Health-check node ports: a load balancer asks each node whether it has endpoints of a Service with external traffic policy Local.
//!
//! ```text
//!   NodeState, Changes ──publish──▶ Checks ──▶ Servers: one listener for each port and family
//!   (after each success)               │                      │
//!                                      └──▶ answer ◀──────────┴──── a request
//!   Progress ─────────────────────────────▶   │
//!                                             └──▶ 200 | 503, and how many endpoints
//! ```
//!
//! Nothing is told to a listener: it looks up what to say at each request, so only ports that come and go cost anything here.

mod answer;
mod checks;
mod servers;

use tokio::sync::watch;
use tracing::warn;

use crate::{NodeState, pending::Work};
use checks::{Checks, Places, Refused};
pub(crate) use servers::Servers;

/// Where the loop says what is in force.
#[derive(Debug, Default)]
pub(crate) struct Health {
    checks: watch::Sender<Checks>,
}

impl Health {
    /// Takes in what the backend has just put in force.
    pub(crate) fn publish(&self, state: &NodeState, work: &Work) {
        let mut refused = Vec::new();
        self.checks.send_if_modified(|checks| {
            let update = match work {
                Work::Reconcile => checks.reconcile(state),
                Work::Apply(changes) => checks.apply(state, changes),
            };
            refused = update.refused;
            // A new count is seen by the next request anyway.
            update.places == Places::Changed
        });
        for Refused { place, service, holder } in refused {
            warn!(%service, port = place.port, family = %place.family, %holder, "health-check node port is another service's");
        }
    }
}

#[cfg(test)]
mod tests;
