//! Counts service ports with traffic policy Local and endpoints on other nodes only, at a cost proportional to the
//! changes.

use std::collections::HashMap;

use proto::model::{IpFamily, PerFamily, ServicePortKey, TrafficPolicy};

use crate::{NodeState, ServicePortState, pending::Work};

/// The number of service ports with traffic policy Local and endpoints on other nodes only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// By internal traffic policy.
    pub internal: usize,
    /// By external traffic policy.
    pub external: usize,
}

/// The service ports with such a policy and no local endpoints.
#[derive(Debug, Default)]
pub(crate) struct NoLocal {
    ports: HashMap<ServicePortKey, PerFamily<LacksLocal>>,
    counts: PerFamily<NoLocalEndpoints>,
}

/// The policies for which one service port lacks local endpoints in a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LacksLocal {
    internal: bool,
    external: bool,
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
        let none = PerFamily::<LacksLocal>::default();
        let old = if new == none { self.ports.remove(key) } else { self.ports.insert(key.clone(), new) };
        let old = old.unwrap_or_default();
        for family in IpFamily::ALL {
            let counts = &mut self.counts[family];
            counts.internal += usize::from(new[family].internal);
            counts.internal -= usize::from(old[family].internal);
            counts.external += usize::from(new[family].external);
            counts.external -= usize::from(old[family].external);
        }
    }
}

fn lacks(service: &ServicePortState) -> PerFamily<LacksLocal> {
    let ServicePortState { port, local, .. } = service;
    PerFamily::from_fn(|family| {
        let elsewhere = port.any_endpoints[family] && local[family].is_empty();
        LacksLocal {
            internal: elsewhere && port.internal_policy == TrafficPolicy::Local,
            external: elsewhere && port.external_policy == TrafficPolicy::Local && port.externally_accessible(),
        }
    })
}
