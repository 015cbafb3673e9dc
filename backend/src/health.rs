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
//! A port that cannot be opened, or is another service's, is a failure like those of the backend: it is in every ack until it is over.
//!
//! Nothing is told to a listener: it looks up what to say at each request, so only ports that come and go cost anything here.

mod answer;
mod checks;
mod servers;

use proto::model::ServicePortFailure;
use tokio::sync::watch;
use tracing::warn;

use crate::{NodeState, pending::Work};
use checks::{Checks, ClaimChange, Refused};
pub(crate) use servers::Servers;

/// Where the loop says what is in force.
#[derive(Debug)]
pub(crate) struct Health {
    checks: watch::Sender<Checks>,
    /// Where nobody answers: the servers say it, the loop hears it.
    failures: (watch::Sender<Vec<ServicePortFailure>>, watch::Receiver<Vec<ServicePortFailure>>),
}

impl Default for Health {
    fn default() -> Self {
        Self { checks: watch::Sender::default(), failures: watch::channel(Vec::new()) }
    }
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
            update.claims == ClaimChange::Changed
        });
        for Refused { place, service, holder } in refused {
            warn!(%service, port = place.port, family = %place.family, %holder, "health-check node port is another service's");
        }
    }
    /// Service ports whose health-check node port nobody answers at, in the order of services and families.
    pub(crate) fn failures(&self) -> Vec<ServicePortFailure> {
        self.failures.1.borrow().clone()
    }

    /// Waits until these are others than they were the last time.
    pub(crate) async fn changed(&mut self) {
        // Fails when the sender is gone, which this is a part of.
        let _ = self.failures.1.changed().await;
    }
}

#[cfg(test)]
mod tests;
