//! The number of service ports with session affinity of each namespace, which share its client buckets.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
};

use backend::{NodeState, ServicePortState};
use proto::model::{Protocol, ServicePortKey};

use crate::element::Affinity;

/// The number of service ports with session affinity, by namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct AffinePorts(BTreeMap<Arc<str>, usize>);

impl AffinePorts {
    pub(crate) fn of(state: &NodeState) -> Self {
        let mut ports = Self::default();
        for (key, _) in state.service_ports().iter().filter(|(_, service)| is_affine(service)) {
            *ports.0.entry(key.namespace.clone()).or_default() += 1;
        }
        ports
    }

    /// The client buckets of each service port with session affinity of a namespace.
    pub(crate) fn buckets(&self, namespace: &str) -> NonZeroU32 {
        Affinity::buckets(self.0.get(namespace).copied().unwrap_or_default())
    }

    /// Counts the service ports that have gained or lost session affinity between two states. Returns the service ports
    /// with session affinity of the namespaces in which the number of buckets has changed.
    pub(crate) fn update(
        &mut self,
        before: &NodeState,
        after: &NodeState,
        changed: &BTreeSet<ServicePortKey>,
    ) -> BTreeSet<ServicePortKey> {
        let is_affine_in = |state: &NodeState, key: &_| state.service_port(key).is_some_and(is_affine);
        let mut earlier = BTreeMap::new();
        for key in changed.iter().filter(|key| is_affine_in(before, key) != is_affine_in(after, key)) {
            let buckets = self.buckets(&key.namespace);
            earlier.entry(&key.namespace).or_insert(buckets);
            let count = self.0.entry(key.namespace.clone()).or_default();
            *count = if is_affine_in(after, key) { *count + 1 } else { count.saturating_sub(1) };
        }
        self.0.retain(|_, count| *count > 0);

        let mut dependents = BTreeSet::new();
        for (namespace, buckets) in earlier {
            if self.buckets(namespace) != buckets {
                dependents.extend(in_namespace(after, namespace).cloned());
            }
        }
        dependents
    }
}

fn is_affine(service: &ServicePortState) -> bool {
    service.port.affinity_seconds.is_some()
}

/// The service ports with session affinity of a namespace.
fn in_namespace<'a>(state: &'a NodeState, namespace: &'a Arc<str>) -> impl Iterator<Item = &'a ServicePortKey> {
    // The lowest name, port name and protocol.
    let first = ServicePortKey::new(namespace.clone(), "", "", Protocol::Tcp);
    let service_ports = state.service_ports().iter_from(&first).take_while(move |(key, _)| key.namespace == *namespace);
    service_ports.filter(|(_, service)| is_affine(service)).map(|(key, _)| key)
}
