//! VIP conflict resolution: which service port gets a VIP or node port that several claim, and which VIPs none may
//! claim.
//!
//! - Of several service ports that claim one (VIP, port, protocol) or one (node port, protocol), that of the oldest
//!   Service gets it; a Service without a creation time counts as the newest. When the winner is removed, the next one
//!   gets it.
//! - An external or load-balancer IP that is the cluster IP of any Service, or an address of any Node, is served on no
//!   port: otherwise every user that may write a Service could take over the traffic of others.
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
type Groups<K, V> = HashMap<K, BTreeSet<V>>;

impl VipClaims {
    /// Adds or removes the claims of a Service. `affected` gets the service ports of other Services that may change.
    pub(super) fn change_service(
        &mut self,
        service: &ServiceObject,
        change: ClaimChange,
        affected: &mut BTreeSet<ServicePortKey>,
    ) {
        for ip in service.cluster_ips.iter().filter_map(|(_, ip)| *ip) {
            if change_group(&mut self.cluster_ips, change, ip, &service.name) {
                affected.extend(self.external_ips.get(&ip).into_iter().flatten().cloned());
            }
        }
        for port in &service.ports {
            let created = service.created;
            let claimant = Claimant { undated: created.is_none(), created, key: key_of(service, port) };
            for ip in external_ips(service) {
                change_group(&mut self.external_ips, change, ip, &claimant.key);
            }
            for claim in claims(service, port) {
                if change_group(&mut self.claimants, change, claim, &claimant) {
                    let claimants = self.claimants.get(&claim).into_iter().flatten();
                    affected.extend(claimants.map(|claimant| claimant.key.clone()));
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
            if change_group(&mut self.node_addresses, change, *address, &node.name) {
                affected.extend(self.external_ips.get(address).into_iter().flatten().cloned());
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
        let key = key_of(service, port);
        let mut resolution = Resolution { claims: self, service, port, key: &key, problems };
        ServicePort {
            cluster_ips: PerFamily::from_fn(|family| {
                let ip = service.cluster_ips[family];
                ip.filter(|ip| resolution.wins(VipClaim::ClusterIp(*ip, port.port, port.protocol), "spec.clusterIPs"))
            }),
            node_port: port.node_port.filter(|number| {
                let name = if port.name.is_empty() { port.port.to_string() } else { port.name.to_string() };
                let field = format!("spec.ports[{name}/{}].nodePort", port.protocol);
                resolution.wins(VipClaim::NodePort(*number, port.protocol), &field)
            }),
            external_ips: resolution.external(&service.external_ips, "spec.externalIPs"),
            load_balancer_ips: resolution.external(&service.load_balancer_ips, "status.loadBalancer.ingress"),
            source_ranges: service.source_ranges.clone(),
            internal_policy: service.internal_policy,
            external_policy: service.external_policy,
            affinity_seconds: service.affinity_seconds,
            health_check_node_port: service.health_check_node_port,
            ipvs_scheduler: service.ipvs_scheduler,
            any_endpoints: PerFamily::default(),
            port: port.port,
            key,
        }
    }

    /// The object that has this address, for messages.
    fn owner(&self, ip: &IpAddr) -> Option<String> {
        let service = first(&self.cluster_ips, ip).map(|name| format!("the cluster IP of Service {name}"));
        service.or_else(|| first(&self.node_addresses, ip).map(|name| format!("an address of Node {name}")))
    }
}

/// One service port whose claims are resolved.
struct Resolution<'a> {
    claims: &'a VipClaims,
    service: &'a ServiceObject,
    port: &'a ServiceObjectPort,
    key: &'a ServicePortKey,
    problems: &'a mut Vec<ObjectProblem>,
}

impl Resolution<'_> {
    fn wins(&mut self, claim: VipClaim, field: &str) -> bool {
        let winner = first(&self.claims.claimants, &claim).map(|winner| &winner.key);
        let Some(winner) = winner.filter(|winner| *winner != self.key) else { return true };
        let claimed = match claim {
            VipClaim::ClusterIp(ip, ..) | VipClaim::ExternalIp(ip, ..) => {
                format!("{ip}, port {}/{}", self.port.port, self.port.protocol)
            }
            VipClaim::NodePort(number, protocol) => format!("{number}/{protocol}"),
        };
        let message =
            format!("{claimed} is used by {winner}, whose Service is older: not served here; change one of them");
        self.report(field, message);
        false
    }

    /// The external or load-balancer IPs that the service port gets.
    fn external(&mut self, ips: &[IpAddr], field: &str) -> Vec<IpAddr> {
        let gets = |ip: &&IpAddr| {
            let family = IpFamily::of(ip);
            if self.service.cluster_ips[family].is_none() {
                let message = format!(
                    "{ip} is not served: the Service has no {family} cluster IP; add {family} to spec.ipFamilies"
                );
                self.report(field, message);
                return false;
            }
            if let Some(owner) = self.claims.owner(ip) {
                self.report(field, format!("{ip} is not served: it would shadow {owner}; use another address"));
                return false;
            }
            self.wins(VipClaim::ExternalIp(**ip, self.port.port, self.port.protocol), field)
        };
        ips.iter().filter(gets).copied().collect()
    }

    fn report(&mut self, field: &str, message: String) {
        self.problems.push(ObjectProblem { field: field.to_owned(), message });
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
    let cluster_ips = cluster_ips.map(|ip| VipClaim::ClusterIp(ip, port.port, port.protocol));
    let external = external_ips(service).map(|ip| VipClaim::ExternalIp(ip, port.port, port.protocol));
    cluster_ips.chain(external).chain(node_port)
}

/// Adds or removes a member. Whether this changes the first member of the group.
fn change_group<K: Copy + Eq + Hash, V: Ord + Clone>(
    groups: &mut Groups<K, V>,
    change: ClaimChange,
    key: K,
    member: &V,
) -> bool {
    let group = groups.entry(key).or_default();
    let before = group.first().cloned();
    match change {
        ClaimChange::Add => group.insert(member.clone()),
        ClaimChange::Remove => group.remove(member),
    };
    let changed = group.first() != before.as_ref();
    if group.is_empty() {
        groups.remove(&key);
    }
    changed
}

fn first<'a, K: Eq + Hash, V: Ord>(groups: &'a Groups<K, V>, key: &K) -> Option<&'a V> {
    groups.get(key)?.first()
}
