//! The service ports that the kernel rejects. They are left out of transactions, reported, and tried again.

use std::collections::{BTreeMap, BTreeSet};

use proto::model::{ServicePortFailure, ServicePortKey};

use crate::NodeState;

/// The most attempts of one reconcile to find out which of the service ports that were rejected before are accepted
/// now, if the kernel does not name the rejected ones. The others keep their turn for the next reconcile.
const MAX_RETRIES: usize = 32;

/// Rejected service ports, of any number.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    rejected: BTreeMap<ServicePortKey, QuarantinedServicePort>,
    attempts: u64,
    /// The attempts that remain until the next reconcile.
    retries: usize,
}

#[derive(Debug)]
struct QuarantinedServicePort {
    reason: String,
    /// The number of the last attempt to program it.
    last_attempt: u64,
}

impl Quarantine {
    pub(super) fn reject(&mut self, key: &ServicePortKey, reason: String) {
        self.attempts += 1;
        self.rejected.insert(key.clone(), QuarantinedServicePort { reason, last_attempt: self.attempts });
    }

    /// The kernel has accepted a service port, or it is gone.
    pub(super) fn accept(&mut self, key: &ServicePortKey) {
        self.rejected.remove(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rejected.is_empty()
    }

    pub(super) fn contains(&self, key: &ServicePortKey) -> bool {
        self.rejected.contains_key(key)
    }

    /// Begins a reconcile. Returns the service ports to try again, in the order of their last attempt.
    pub(super) fn retry(&mut self, state: &NodeState) -> Vec<ServicePortKey> {
        self.retries = MAX_RETRIES;
        self.rejected.retain(|key, _| state.service_port(key).is_some());

        let attempts = self.rejected.iter().map(|(key, rejected)| (rejected.last_attempt, key.clone()));
        let mut order: Vec<_> = attempts.collect();
        order.sort_unstable();
        order.into_iter().map(|(_, key)| key).collect()
    }

    /// Whether an attempt with only service ports that were rejected before may be followed by another one.
    pub(super) fn take_retry(&mut self) -> bool {
        let is_left = self.retries > 0;
        self.retries = self.retries.saturating_sub(1);
        is_left
    }

    /// Records an attempt without a result for these service ports.
    pub(super) fn postpone(&mut self, service_ports: &BTreeSet<ServicePortKey>) {
        for key in service_ports {
            self.attempts += 1;
            if let Some(rejected) = self.rejected.get_mut(key) {
                rejected.last_attempt = self.attempts;
            }
        }
    }

    /// A failure for each service port, to be retried.
    pub(super) fn failures(&self) -> impl Iterator<Item = ServicePortFailure> {
        self.rejected.iter().map(|(key, quarantined)| ServicePortFailure::rejected(key.clone(), &*quarantined.reason))
    }
}
