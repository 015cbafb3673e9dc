//! The health-check node ports, their owners, and how many endpoints each reports: a function of the state, updated at
//! a cost proportional to the Services that changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroU16,
    sync::Arc,
};

use proto::model::{IpFamily, PerFamily, Protocol, ServicePortKey};

use crate::{Changes, NodeState, ServicePortState};

/// A Service: all its ports share one health-check node port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServiceName {
    /// `metadata.namespace`.
    pub(super) namespace: Arc<str>,
    /// `metadata.name`.
    pub(super) name: Arc<str>,
}

/// A port that a load balancer probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckPort {
    /// `spec.healthCheckNodePort`.
    pub(super) port: NonZeroU16,
    /// A family in which the Service has a cluster IP.
    pub(super) family: IpFamily,
}

/// The answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Check<'a> {
    /// The Service that owns the port.
    pub(super) service: &'a ServiceName,
    /// The addresses on this node that serve it and are not terminating.
    pub(super) local_endpoints: usize,
}

/// All checks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checks {
    services: BTreeMap<ServiceName, Claim>,
    /// The Services that claim a port. The first in order owns it.
    claimants: BTreeMap<CheckPort, BTreeSet<ServiceName>>,
}

/// The result of an update of the checks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckUpdate {
    /// Whether listeners have to be opened or closed, or failures changed.
    pub(super) claims: ClaimChange,
    /// The claims that lost a port or did not get it.
    pub(super) rejected: Vec<RejectedClaim>,
}

/// Whether the same Services claim the same ports as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimChange {
    Same,
    Changed,
}

/// A claim for a port that another Service owns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RejectedClaim {
    pub(super) check_port: CheckPort,
    pub(super) service: ServiceName,
    pub(super) owner: ServiceName,
}

/// The port that one Service claims.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    /// The first service port with the port. Failures of the Service are reported for it.
    key: ServicePortKey,
    port: NonZeroU16,
    /// The local endpoints of each family in which the Service has a cluster IP.
    local_endpoints: PerFamily<Option<usize>>,
}

// === impl Checks ===

impl Checks {
    /// Makes the checks those of `state`.
    pub(super) fn reconcile(&mut self, state: &NodeState) -> CheckUpdate {
        let before = self.services.keys().cloned();
        let with_port = state.service_ports().values().filter(|service| service.port.health_check_node_port.is_some());
        let names = before.chain(with_port.map(|service| ServiceName::of(&service.port.key))).collect();
        self.update(state, names)
    }

    /// Makes the checks those of `state`, given the changes since the last update.
    pub(super) fn apply(&mut self, state: &NodeState, changes: &Changes) -> CheckUpdate {
        self.update(state, changes.service_ports.iter().map(ServiceName::of).collect())
    }

    /// The answer at `port`.
    pub(super) fn get(&self, port: CheckPort) -> Option<Check<'_>> {
        let service = self.owner(port)?;
        let local_endpoints = self.services.get(service)?.local_endpoints[port.family]?;
        Some(Check { service, local_endpoints })
    }

    /// All ports with their owners.
    pub(super) fn owners(&self) -> impl Iterator<Item = (CheckPort, &ServiceName)> {
        self.claimants.iter().filter_map(|(port, claimants)| Some((*port, claimants.first()?)))
    }

    /// The claims for ports that another Service owns: port, Service and owner.
    pub(super) fn rejected_claims(&self) -> impl Iterator<Item = (CheckPort, &ServiceName, &ServiceName)> {
        self.claimants.iter().flat_map(|(port, claimants)| {
            let owner = claimants.first();
            let others = claimants.iter().skip(1);
            others.filter_map(move |other| Some((*port, other, owner?)))
        })
    }

    /// The service port for which failures of a Service are reported.
    pub(super) fn key(&self, service: &ServiceName) -> Option<&ServicePortKey> {
        self.services.get(service).map(|claim| &claim.key)
    }

    fn owner(&self, port: CheckPort) -> Option<&ServiceName> {
        self.claimants.get(&port)?.first()
    }

    fn update(&mut self, state: &NodeState, names: BTreeSet<ServiceName>) -> CheckUpdate {
        let (mut released, mut claimed) = (BTreeSet::new(), Vec::new());
        let mut claims = ClaimChange::Same;
        for name in &names {
            let new = Claim::of(state, name);
            let old = self.services.get(name);
            let new_ports = new.as_ref().map(Claim::check_ports).unwrap_or_default();
            let old_ports = old.map(Claim::check_ports).unwrap_or_default();
            if new_ports != old_ports || new.as_ref().map(|new| &new.key) != old.map(|old| &old.key) {
                claims = ClaimChange::Changed;
            }
            released.extend(old_ports.difference(&new_ports).map(|port| (*port, name)));
            claimed.extend(new_ports.difference(&old_ports).map(|port| (*port, name)));
            match new {
                Some(new) => drop(self.services.insert(name.clone(), new)),
                None => drop(self.services.remove(name)),
            }
        }
        for (port, name) in released {
            self.release(port, name);
        }
        // After all releases: a port may move from one Service to another in the same update.
        let mut losers = Vec::new();
        for (port, name) in claimed {
            let claimants = self.claimants.entry(port).or_default();
            losers.extend(claimants.first().filter(|first| name < *first).map(|first| (port, first.clone())));
            claimants.insert(name.clone());
            losers.push((port, name.clone()));
        }
        CheckUpdate { claims, rejected: self.rejected(losers) }
    }

    fn release(&mut self, port: CheckPort, name: &ServiceName) {
        if let Some(claimants) = self.claimants.get_mut(&port) {
            claimants.remove(name);
            if claimants.is_empty() {
                self.claimants.remove(&port);
            }
        }
    }

    /// The claims that do not own their port after the update, each once.
    fn rejected(&self, losers: Vec<(CheckPort, ServiceName)>) -> Vec<RejectedClaim> {
        let losers: BTreeSet<_> = losers.into_iter().collect();
        let rejected = losers.into_iter().filter_map(|(port, service)| {
            let owner = self.owner(port).filter(|owner| **owner != service)?.clone();
            Some(RejectedClaim { check_port: port, service, owner })
        });
        rejected.collect()
    }
}

// === impl Claim ===

impl Claim {
    /// The claim of the Service with this name, if it has one.
    fn of(state: &NodeState, name: &ServiceName) -> Option<Self> {
        let ports = || service_ports(state, name);
        let (key, port) =
            ports().find_map(|ServicePortState { port, .. }| Some((&port.key, port.health_check_node_port?)))?;
        let key = key.clone();
        let local_endpoints = PerFamily::from_fn(|family| {
            let present = ports().any(|service| service.port.cluster_ips[family].is_some());
            present.then(|| {
                let endpoints = ports().flat_map(|service| service.local[family].iter());
                let addresses = endpoints.filter(|endpoint| !endpoint.terminating).map(|endpoint| endpoint.address);
                addresses.collect::<BTreeSet<_>>().len()
            })
        });
        Some(Self { key, port, local_endpoints })
    }

    fn check_ports(&self) -> BTreeSet<CheckPort> {
        let Self { key: _, port, local_endpoints } = self;
        let present = local_endpoints.iter().filter(|(_, count)| count.is_some());
        present.map(|(family, _)| CheckPort { port: *port, family }).collect()
    }
}

/// All service ports of a Service, which are adjacent in key order.
fn service_ports<'a>(state: &'a NodeState, name: &'a ServiceName) -> impl Iterator<Item = &'a ServicePortState> {
    // The lowest port name and protocol.
    let first = ServicePortKey::new(name.namespace.clone(), name.name.clone(), "", Protocol::Tcp);
    let following = state.service_ports().range(first..).map(|(_, service)| service);
    following.take_while(|service| {
        let key = &service.port.key;
        key.namespace == name.namespace && key.name == name.name
    })
}

// === impl ServiceName ===

impl ServiceName {
    /// The Service that a service port belongs to.
    pub(super) fn of(key: &ServicePortKey) -> Self {
        Self { namespace: key.namespace.clone(), name: key.name.clone() }
    }
}

impl fmt::Display for ServiceName {
    /// `namespace/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests;
