//! The health-check node ports, their owners, and the number of endpoints that each reports: a function of the state.
//! Counts are updated at a cost proportional to the Services that changed, owners only when a Service claims or gives
//! up a port.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    num::NonZeroU16,
};

use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{NodeState, ServiceName, ServicePortState};

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
    pub(super) service: &'a ServiceName,
    /// The number of addresses on this node that serve the Service and are not terminating.
    pub(super) local_endpoints: usize,
}

/// The checks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checks {
    services: BTreeMap<ServiceName, Claim>,
    /// The first Service in order that claims a port: frontends let only one of them have it.
    owners: BTreeMap<CheckPort, ServiceName>,
    /// The node's first address of each family.
    pub(super) primary_addresses: PerFamily<Option<IpAddr>>,
}

/// The health-check node port that a Service claims.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    /// The first service port with the health-check node port. Failures of the Service are reported for it.
    key: ServicePortKey,
    port: NonZeroU16,
    /// The load-balancer IPs of the Service: some load balancers send their probes there.
    load_balancer_ips: BTreeSet<IpAddr>,
    /// The local endpoints of each family in which the Service has a cluster IP.
    local_endpoints: PerFamily<Option<usize>>,
}

// === impl Checks ===

impl Checks {
    pub(super) fn get(&self, port: CheckPort) -> Option<Check<'_>> {
        let service = self.owners.get(&port)?;
        let local_endpoints = self.services.get(service)?.local_endpoints[port.family]?;
        Some(Check { service, local_endpoints })
    }

    pub(super) fn load_balancer_ips(&self, service: &ServiceName, family: IpFamily) -> impl Iterator<Item = IpAddr> {
        let ips = self.services.get(service).into_iter().flat_map(|claim| &claim.load_balancer_ips);
        ips.copied().filter(move |ip| IpFamily::of(ip) == family)
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = (CheckPort, &ServiceName)> {
        self.owners.iter().map(|(port, service)| (*port, service))
    }

    /// The service port for which failures of a Service are reported.
    pub(super) fn key(&self, service: &ServiceName) -> Option<&ServicePortKey> {
        self.services.get(service).map(|claim| &claim.key)
    }

    /// Makes the checks those of `state`, given the service ports that changed since the last update. Returns false if
    /// the same Services claim the same ports as before, on a node with the same addresses, so that no listener has to
    /// be opened or closed.
    pub(super) fn update<'a>(&mut self, state: &NodeState, changed: impl Iterator<Item = &'a ServicePortKey>) -> bool {
        let primary_addresses = PerFamily::from_fn(|family| state.node().primary_address(family));
        let mut is_changed = mem::replace(&mut self.primary_addresses, primary_addresses) != primary_addresses;
        for name in changed.map(ServiceName::of).collect::<BTreeSet<_>>() {
            let new = Claim::of(state, &name);
            let new_identity = new.as_ref().map(Claim::identity);
            let old = match new {
                Some(new) => self.services.insert(name, new),
                None => self.services.remove(&name),
            };
            is_changed |= old.as_ref().map(Claim::identity) != new_identity;
        }

        if is_changed {
            self.choose_owners();
        }
        is_changed
    }

    fn choose_owners(&mut self) {
        self.owners.clear();
        for (service, claim) in &self.services {
            for check_port in claim.check_ports() {
                self.owners.entry(check_port).or_insert_with(|| service.clone());
            }
        }
    }
}

// === impl Claim ===

impl Claim {
    /// The claim of the Service with this name, if it has one.
    fn of(state: &NodeState, name: &ServiceName) -> Option<Self> {
        let ports = || state.ports_of(name).map(|(_, service)| service);
        let (key, port) =
            ports().find_map(|ServicePortState { port, .. }| Some((&port.key, port.health_check_node_port?)))?;

        let load_balancer_ips = ports().flat_map(|service| service.port.load_balancer_ips.iter().copied());
        Some(Self {
            key: key.clone(),
            port,
            load_balancer_ips: load_balancer_ips.collect(),
            local_endpoints: PerFamily::from_fn(|family| local_endpoints(ports, family)),
        })
    }

    /// The part of a claim that listeners and failures depend on.
    fn identity(&self) -> (ServicePortKey, BTreeSet<CheckPort>, BTreeSet<IpAddr>) {
        (self.key.clone(), self.check_ports(), self.load_balancer_ips.clone())
    }

    fn check_ports(&self) -> BTreeSet<CheckPort> {
        let Self { key: _, port, load_balancer_ips: _, local_endpoints } = self;
        let present = local_endpoints.iter().filter(|(_, count)| count.is_some());
        present.map(|(family, _)| CheckPort { port: *port, family }).collect()
    }
}

/// The number of local addresses that serve a Service with these service ports; `None`: it has no cluster IP.
fn local_endpoints<'a, P>(ports: impl Fn() -> P, family: IpFamily) -> Option<usize>
where
    P: Iterator<Item = &'a ServicePortState>,
{
    if !ports().any(|service| service.port.cluster_ips[family].is_some()) {
        return None;
    }
    let endpoints = ports().flat_map(|service| service.local[family].iter());
    let addresses = endpoints.filter(|endpoint| !endpoint.terminating).map(|endpoint| endpoint.address);
    Some(addresses.collect::<BTreeSet<_>>().len())
}

#[cfg(test)]
mod tests;
