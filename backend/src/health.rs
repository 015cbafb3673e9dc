//! Health-check node ports: a load balancer asks each node whether it has endpoints of a Service with external traffic
//! policy Local.
//!
//! ```text
//!   what is programmed ──publish──▶ Checks ──▶ HealthCheckServers: one listener for each port and family
//!   (after each success)               │                      │
//!                                      └──▶ answer ◀──────────┴──── a request
//!   Progress ─────────────────────────────▶   │
//!                                             └──▶ 200 | 503, and the number of endpoints
//! ```
//!
//! A port that cannot be opened is a failure like those of the backend: each ack reports it while it lasts. A listener
//! reads the checks at each request, so only changes of ports involve it.

mod addresses;
mod checks;
mod servers;

use proto::model::{ServicePortFailure, ServicePortKey};
use tokio::sync::watch;

use crate::NodeState;
use checks::Checks;
pub(crate) use servers::HealthCheckServers;

/// The programmer's side: it publishes what is programmed, and receives the failures.
#[derive(Debug)]
pub(crate) struct HealthChecks {
    checks: watch::Sender<Checks>,
    /// The service ports whose health-check node port is not served.
    failures: watch::Receiver<Vec<ServicePortFailure>>,
    /// For the servers.
    failure_sender: watch::Sender<Vec<ServicePortFailure>>,
}

impl Default for HealthChecks {
    fn default() -> Self {
        let (failure_sender, failures) = watch::channel(Vec::new());
        Self { checks: watch::Sender::default(), failures, failure_sender }
    }
}

impl HealthChecks {
    /// Publishes what the backend has just programmed of a state: the Services of these service ports are programmed as
    /// a whole.
    pub(crate) fn publish<'a>(&self, state: &NodeState, changed: impl Iterator<Item = &'a ServicePortKey>) {
        // The next request reads a changed count anyway.
        self.checks.send_if_modified(|checks| checks.update(state, changed));
    }

    /// The service ports whose health-check node port is not served, in the order of Services and families.
    pub(crate) fn failures(&self) -> Vec<ServicePortFailure> {
        self.failures.borrow().clone()
    }

    /// Waits until the failures change.
    pub(crate) async fn changed(&mut self) {
        // Fails only if the sender is dropped, which `self` owns.
        let _ = self.failures.changed().await;
    }
}

#[cfg(test)]
mod tests;
