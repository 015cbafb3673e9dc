//! Which health-check node ports there are, whose they are, and how many endpoints each one reports: a function of the state, kept up
//! to date at the cost of the services that changed.

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

/// Where a load balancer asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// `spec.healthCheckNodePort`.
    pub(super) port: NonZeroU16,
    /// A family in which the Service has a cluster IP.
    pub(super) family: IpFamily,
}

/// What it is told there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Check<'a> {
    /// Whose port it is.
    pub(super) service: &'a ServiceName,
    /// How many addresses on this node serve it and are not terminating.
    pub(super) local_endpoints: usize,
}

/// All checks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checks {
    services: BTreeMap<ServiceName, Claim>,
    /// Who claims a place. The first in order has it.
    claimants: BTreeMap<Place, BTreeSet<ServiceName>>,
}

/// What an update of the checks has done.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// Whether there is something to do: listeners to open or close, or something else to tell.
    pub(super) claims: ClaimChange,
    /// The claims that lost a place, or did not get it.
    pub(super) refused: Vec<Refused>,
}

/// Whether the same places are claimed by the same services as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimChange {
    Same,
    Changed,
}

/// A claim for a place that another service has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) place: Place,
    pub(super) service: ServiceName,
    pub(super) holder: ServiceName,
}

/// What one Service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    /// The first service port that has the port: those of one Service are told of by this one.
    key: ServicePortKey,
    port: NonZeroU16,
    /// The local endpoints of each family in which it is.
    local_endpoints: PerFamily<Option<usize>>,
}

// === impl Checks ===

impl Checks {
    /// Makes the checks those of `state`, whatever they are now.
    pub(super) fn reconcile(&mut self, state: &NodeState) -> Update {
        let held = self.services.keys().cloned();
        let there = state.service_ports().values().filter(|service| service.port.health_check_node_port.is_some());
        let names = held.chain(there.map(|service| ServiceName::of(&service.port.key))).collect();
        self.update(state, names)
    }

    /// Makes the checks those of `state`, given what differs from the state they are of.
    pub(super) fn apply(&mut self, state: &NodeState, changes: &Changes) -> Update {
        self.update(state, changes.service_ports.iter().map(ServiceName::of).collect())
    }

    /// What is told at `place`.
    pub(super) fn get(&self, place: Place) -> Option<Check<'_>> {
        let service = self.holder(place)?;
        let local_endpoints = self.services.get(service)?.local_endpoints[place.family]?;
        Some(Check { service, local_endpoints })
    }

    /// All places, with the service that has each.
    pub(super) fn holders(&self) -> impl Iterator<Item = (Place, &ServiceName)> {
        self.claimants.iter().filter_map(|(place, claimants)| Some((*place, claimants.first()?)))
    }

    /// All who claim a place that another one has, and who that is.
    pub(super) fn losers(&self) -> impl Iterator<Item = (Place, &ServiceName, &ServiceName)> {
        self.claimants.iter().flat_map(|(place, claimants)| {
            let holder = claimants.first();
            let losers = claimants.iter().skip(1);
            losers.filter_map(move |loser| Some((*place, loser, holder?)))
        })
    }

    /// By which of its ports a Service is told of.
    pub(super) fn key(&self, service: &ServiceName) -> Option<&ServicePortKey> {
        self.services.get(service).map(|claim| &claim.key)
    }

    fn holder(&self, place: Place) -> Option<&ServiceName> {
        self.claimants.get(&place)?.first()
    }

    fn update(&mut self, state: &NodeState, names: BTreeSet<ServiceName>) -> Update {
        let (mut left, mut claimed) = (BTreeSet::new(), Vec::new());
        let mut claims = ClaimChange::Same;
        for name in &names {
            let new = Claim::of(state, name);
            let old = self.services.get(name);
            let new_places = new.as_ref().map(Claim::places).unwrap_or_default();
            let old_places = old.map(Claim::places).unwrap_or_default();
            if new_places != old_places || new.as_ref().map(|new| &new.key) != old.map(|old| &old.key) {
                claims = ClaimChange::Changed;
            }
            left.extend(old_places.difference(&new_places).map(|place| (*place, name)));
            claimed.extend(new_places.difference(&old_places).map(|place| (*place, name)));
            match new {
                Some(new) => drop(self.services.insert(name.clone(), new)),
                None => drop(self.services.remove(name)),
            }
        }
        for (place, name) in left {
            self.leave(place, name);
        }
        // Only now: who takes a place that another one leaves in the same update is not refused.
        let mut losers = Vec::new();
        for (place, name) in claimed {
            let claimants = self.claimants.entry(place).or_default();
            losers.extend(claimants.first().filter(|first| name < *first).map(|first| (place, first.clone())));
            claimants.insert(name.clone());
            losers.push((place, name.clone()));
        }
        Update { claims, refused: self.refused(losers) }
    }

    fn leave(&mut self, place: Place, name: &ServiceName) {
        if let Some(claimants) = self.claimants.get_mut(&place) {
            claimants.remove(name);
            if claimants.is_empty() {
                self.claimants.remove(&place);
            }
        }
    }

    /// Those who have in fact not got their place, each once.
    fn refused(&self, losers: Vec<(Place, ServiceName)>) -> Vec<Refused> {
        let losers: BTreeSet<_> = losers.into_iter().collect();
        let refused = losers.into_iter().filter_map(|(place, service)| {
            let holder = self.holder(place).filter(|holder| **holder != service)?.clone();
            Some(Refused { place, service, holder })
        });
        refused.collect()
    }
}

// === impl Claim ===

impl Claim {
    /// What the Service of this name asks for, if anything.
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

    fn places(&self) -> BTreeSet<Place> {
        let Self { key: _, port, local_endpoints } = self;
        let present = local_endpoints.iter().filter(|(_, count)| count.is_some());
        present.map(|(family, _)| Place { port: *port, family }).collect()
    }
}

/// All service ports of a Service. They are neighbours in the order of keys.
fn service_ports<'a>(state: &'a NodeState, name: &'a ServiceName) -> impl Iterator<Item = &'a ServicePortState> {
    // No port name and no protocol comes before these.
    let first = ServicePortKey::new(name.namespace.clone(), name.name.clone(), "", Protocol::Tcp);
    let from_there = state.service_ports().range(first..).map(|(_, service)| service);
    from_there.take_while(|service| {
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
