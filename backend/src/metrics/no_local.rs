//! Counts service ports with traffic policy Local and endpoints on other nodes only, at a cost proportional to the
//! changes.

use std::collections::HashMap;

use proto::model::{IpFamily, PerFamily, ServicePortKey, TrafficPolicy};

use crate::{NoLocalEndpoints, NodeState, ServicePortState, backend::Work};

/// The service ports with such a policy and no local endpoints.
#[derive(Debug, Default)]
pub(crate) struct NoLocal {
    ports: HashMap<ServicePortKey, PerFamily<NoLocalEndpoints>>,
    counts: PerFamily<NoLocalEndpoints>,
}

impl NoLocal {
    /// Updates the counts with what has just been programmed.
    pub(crate) fn update(&mut self, state: &NodeState, work: &Work) -> PerFamily<NoLocalEndpoints> {
        match work {
            Work::Reconcile => {
                *self = Self::default();
                state.service_ports().iter().for_each(|(key, service)| self.set(key, Some(service)));
            }
            Work::Apply(changes) => {
                changes.service_ports.iter().for_each(|key| self.set(key, state.service_port(key)));
            }
        }
        self.counts
    }

    fn set(&mut self, key: &ServicePortKey, service: Option<&ServicePortState>) {
        let new = service.map(lacks).unwrap_or_default();
        let old =
            if new == PerFamily::default() { self.ports.remove(key) } else { self.ports.insert(key.clone(), new) };
        let old = old.unwrap_or_default();
        for family in IpFamily::ALL {
            let counts = &mut self.counts[family];
            counts.internal = counts.internal + new[family].internal - old[family].internal;
            counts.external = counts.external + new[family].external - old[family].external;
        }
    }
}

/// 1 for each policy of a service port that lacks local endpoints.
fn lacks(service: &ServicePortState) -> PerFamily<NoLocalEndpoints> {
    let ServicePortState { port, local, .. } = service;
    PerFamily::from_fn(|family| {
        let elsewhere = port.any_endpoints[family] && local[family].is_empty();
        let internal = elsewhere && port.internal_policy == TrafficPolicy::Local;
        let external = elsewhere && port.external_policy == TrafficPolicy::Local && port.externally_accessible();
        NoLocalEndpoints { internal: internal.into(), external: external.into() }
    })
}
