//! VIP conflict resolution: which service port gets a VIP or node port that several claim, and which VIPs none may
//! claim.
//!
//! - Of several service ports that claim one (VIP, port, protocol) or one (node port, protocol), that of the oldest
//!   Service gets it; a Service without a creation time counts as the newest. When the winner is removed, the next one
//!   gets it.
//! - An external or load-balancer IP that is the cluster IP of any Service, or an address of any Node, is served on no
//!   port: otherwise every user who may write a Service could take over the traffic of others.
//!
//! Changes of the claims report which service ports they may affect; `resolve` answers for one service port.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
    time::SystemTime,
};

use proto::model::{IpFamily, NodeInfo, PerFamily, Protocol, ServicePort, ServicePortKey};

use crate::object::{ObjectName, ObjectProblem, ServiceObject, ServiceObjectPort};

use super::key_of;

/// All claims, and the addresses that must not be claimed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VipClaims {
    claimants: Groups<VipClaim, Claimant>,
    /// By cluster IP, the Services that have it.
    cluster_ips: Groups<IpAddr, ObjectName>,
    /// By address, the Nodes that have it.
    node_addresses: Groups<IpAddr, Arc<str>>,
    /// By external or load-balancer IP, the service ports that claim it: they are affected when it becomes a cluster IP
    /// or an address of a Node, or no longer is one.
    external_ips: Groups<IpAddr, ServicePortKey>,
}

/// What only one service port can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum VipClaim {
    ClusterIp(IpAddr, NonZeroU16, Protocol),
    ExternalIp(IpAddr, NonZeroU16, Protocol),
    NodePort(NonZeroU16, Protocol),
}

/// A service port that claims something. The least one gets it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    undated: bool,
    created: Option<SystemTime>,
    key: ServicePortKey,
}

/// Whether claims are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimChange {
    Add,
    Remove,
}

/// Sets by key, without empty ones.
#[derive(Debug, PartialEq, Eq)]
struct Groups<K: Eq + Hash, V: Ord>(HashMap<K, BTreeSet<V>>);

impl VipClaims {
    /// Adds or removes the claims of a Service. `affected` gets the service ports of other Services that may change.
    pub(super) fn change_service(
        &mut self,
        service: &ServiceObject,
        change: ClaimChange,
        affected: &mut BTreeSet<ServicePortKey>,
    ) {
        for ip in service.cluster_ips.iter().filter_map(|(_, ip)| *ip) {
            if self.cluster_ips.change(change, ip, &service.name) {
                affected.extend(self.external_ips.members(&ip).cloned());
            }
        }
        for port in &service.ports {
            let claimant = Claimant::new(service, port);
            for ip in external_ips(service) {
                self.external_ips.change(change, ip, &claimant.key);
            }
            for claim in claims(service, port) {
                if self.claimants.change(change, claim, &claimant) {
                    affected.extend(self.claimants.members(&claim).map(|claimant| claimant.key.clone()));
                }
            }
        }
    }

    /// Adds or removes the addresses of a Node.
    pub(super) fn change_node(
        &mut self,
        node: &NodeInfo,
        change: ClaimChange,
        affected: &mut BTreeSet<ServicePortKey>,
    ) {
        for address in &node.addresses {
            if self.node_addresses.change(change, *address, &node.name) {
                affected.extend(self.external_ips.members(address).cloned());
            }
        }
    }

    /// A service port with those of its claims that it gets. The others are added to `problems`.
    pub(super) fn resolve(
        &self,
        service: &ServiceObject,
        port: &ServiceObjectPort,
        problems: &mut Vec<ObjectProblem>,
    ) -> ServicePort {
        let claimant = Claimant::new(service, port);
        let ServiceObject {
            name: _,
            created: _,
            cluster_ips,
            external_ips,
            load_balancer_ips,
            source_ranges,
            internal_policy,
            external_policy,
            affinity_seconds,
            health_check_node_port,
            ipvs_scheduler,
            ports: _,
        } = service;
        let mut resolution = Resolution { claims: self, service, port, claimant: &claimant, problems };
        ServicePort {
            cluster_ips: PerFamily::from_fn(|family| {
                cluster_ips[family].filter(|ip| resolution.wins(VipClaim::cluster_ip(*ip, port), "spec.clusterIPs"))
            }),
            node_port: port.node_port.filter(|number| {
                let field = format!("spec.ports[{}].nodePort", port_label(port));
                resolution.wins(VipClaim::NodePort(*number, port.protocol), &field)
            }),
            external_ips: resolution.external(external_ips, "spec.externalIPs"),
            load_balancer_ips: resolution.external(load_balancer_ips, "status.loadBalancer.ingress"),
            source_ranges: source_ranges.clone(),
            internal_policy: *internal_policy,
            external_policy: *external_policy,
            affinity_seconds: *affinity_seconds,
            health_check_node_port: *health_check_node_port,
            ipvs_scheduler: *ipvs_scheduler,
            any_endpoints: PerFamily::default(),
            port: port.port,
            key: claimant.key.clone(),
        }
    }

    /// The object that has this address, for messages.
    fn owner(&self, ip: &IpAddr) -> Option<String> {
        let service = self.cluster_ips.first(ip).map(|name| format!("the cluster IP of Service {name}"));
        service.or_else(|| self.node_addresses.first(ip).map(|name| format!("an address of Node {name}")))
    }
}

/// One service port whose claims are resolved.
struct Resolution<'a> {
    claims: &'a VipClaims,
    service: &'a ServiceObject,
    port: &'a ServiceObjectPort,
    claimant: &'a Claimant,
    problems: &'a mut Vec<ObjectProblem>,
}

impl Resolution<'_> {
    fn wins(&mut self, claim: VipClaim, field: &str) -> bool {
        let winner = self.claims.claimants.first(&claim);
        let Some(winner) = winner.filter(|winner| winner.key != self.claimant.key) else { return true };
        let claimed = match claim {
            VipClaim::ClusterIp(ip, ..) | VipClaim::ExternalIp(ip, ..) => {
                format!("{ip}, port {}/{}", self.port.port, self.port.protocol)
            }
            VipClaim::NodePort(number, protocol) => format!("{number}/{protocol}"),
        };
        let winner = &winner.key;
        self.report(
            field,
            format!("{claimed} is used by {winner}, whose Service is older: not served here; change one of them"),
        );
        false
    }

    /// The external or load-balancer IPs that the service port gets.
    fn external(&mut self, ips: &[IpAddr], field: &str) -> Vec<IpAddr> {
        let gets = |ip: &&IpAddr| {
            let family = IpFamily::of(ip);
            if self.service.cluster_ips[family].is_none() {
                self.report(
                    field,
                    format!(
                        "{ip} is not served: the Service has no {family} cluster IP; add {family} to spec.ipFamilies"
                    ),
                );
                return false;
            }
            if let Some(owner) = self.claims.owner(ip) {
                self.report(field, format!("{ip} is not served: it would shadow {owner}; use another address"));
                return false;
            }
            self.wins(VipClaim::external_ip(**ip, self.port), field)
        };
        ips.iter().filter(gets).copied().collect()
    }

    fn report(&mut self, field: &str, message: String) {
        self.problems.push(ObjectProblem { field: field.to_owned(), message });
    }
}

impl VipClaim {
    fn cluster_ip(ip: IpAddr, port: &ServiceObjectPort) -> Self {
        Self::ClusterIp(ip, port.port, port.protocol)
    }

    fn external_ip(ip: IpAddr, port: &ServiceObjectPort) -> Self {
        Self::ExternalIp(ip, port.port, port.protocol)
    }
}

impl Claimant {
    fn new(service: &ServiceObject, port: &ServiceObjectPort) -> Self {
        let created = service.created;
        Self { undated: created.is_none(), created, key: key_of(service, port) }
    }
}

/// The external and load-balancer IPs of the families that the Service has.
fn external_ips(service: &ServiceObject) -> impl Iterator<Item = IpAddr> {
    let ips = service.external_ips.iter().chain(&service.load_balancer_ips).copied();
    ips.filter(|ip| service.cluster_ips[IpFamily::of(ip)].is_some())
}

fn claims(service: &ServiceObject, port: &ServiceObjectPort) -> impl Iterator<Item = VipClaim> {
    let cluster_ips = [service.cluster_ips.v4, service.cluster_ips.v6].into_iter().flatten();
    let node_port = port.node_port.map(|number| VipClaim::NodePort(number, port.protocol));
    let external = external_ips(service).map(|ip| VipClaim::external_ip(ip, port));
    cluster_ips.map(|ip| VipClaim::cluster_ip(ip, port)).chain(external).chain(node_port)
}

/// `http/TCP`, or `80/TCP` for a port without a name.
fn port_label(port: &ServiceObjectPort) -> String {
    if port.name.is_empty() {
        format!("{}/{}", port.port, port.protocol)
    } else {
        format!("{}/{}", port.name, port.protocol)
    }
}

impl<K: Eq + Hash, V: Ord + Clone> Groups<K, V> {
    /// Adds or removes a member. Whether this changes the first member of the group.
    fn change(&mut self, change: ClaimChange, key: K, member: &V) -> bool {
        match change {
            ClaimChange::Add => self.insert(key, member.clone()),
            ClaimChange::Remove => self.remove(&key, member),
        }
    }

    fn insert(&mut self, key: K, member: V) -> bool {
        let group = self.0.entry(key).or_default();
        let before = group.first().cloned();
        group.insert(member);
        group.first() != before.as_ref()
    }

    fn remove(&mut self, key: &K, member: &V) -> bool {
        let Some(group) = self.0.get_mut(key) else { return false };
        let was_first = group.first() == Some(member);
        group.remove(member);
        if group.is_empty() {
            self.0.remove(key);
        }
        was_first
    }

    fn members(&self, key: &K) -> impl Iterator<Item = &V> {
        self.0.get(key).into_iter().flatten()
    }

    fn first(&self, key: &K) -> Option<&V> {
        self.0.get(key)?.first()
    }
}

impl<K: Eq + Hash, V: Ord> Default for Groups<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}
