//! How many service ports want endpoints on this node and have them on others only: kept at the cost of what changes.

use std::collections::HashMap;

use proto::model::{IpFamily, PerFamily, ServicePortKey, TrafficPolicy};

use crate::{NodeState, ServicePortState, pending::Work};

/// Service ports whose policy is Local, and that have endpoints, but none here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// For traffic within the cluster.
    pub internal: usize,
    /// For traffic from outside.
    pub external: usize,
}

/// All such service ports.
#[derive(Debug, Default)]
pub(crate) struct NoLocal {
    ports: HashMap<ServicePortKey, PerFamily<Lacks>>,
    counts: PerFamily<NoLocalEndpoints>,
}

/// What one service port does not have in a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lacks {
    internal: bool,
    external: bool,
}

impl NoLocal {
    /// Takes in what has just been put in force.
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
        let nothing = PerFamily::<Lacks>::default();
        let old = if new == nothing { self.ports.remove(key) } else { self.ports.insert(key.clone(), new) };
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

fn lacks(service: &ServicePortState) -> PerFamily<Lacks> {
    let ServicePortState { port, local, .. } = service;
    PerFamily::from_fn(|family| {
        let elsewhere = port.any_endpoints[family] && local[family].is_empty();
        Lacks {
            internal: elsewhere && port.internal_policy == TrafficPolicy::Local,
            external: elsewhere && port.external_policy == TrafficPolicy::Local && port.externally_accessible(),
        }
    })
}
