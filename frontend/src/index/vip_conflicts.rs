//! VIP conflict resolution: which service port gets a VIP or node port that several claim, and which claims none gets.
//!
//! - Of several service ports that claim one (VIP, port, protocol) or one (node port, protocol), one gets it: a
//!   load-balancer IP goes before an external IP, then the older Service before the newer one; a Service without a
//!   creation time counts as the newest. When the winner is removed, the next one gets it.
//! - An external or load-balancer IP that is protected is served on no port: see `protected`.
//!
//! Changes of the claims report which service ports they may affect; `resolve` answers for one service port.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
};

use ipnet::IpNet;
use proto::model::{PerFamily, Protocol, ServicePort, ServicePortKey};

use crate::object::{ObjectProblem, ServiceObject, ServiceObjectPort};

use super::{
    age::Age,
    groups::{GroupChange, Groups, change_group, first},
    key_of,
    policy::ServicePolicy,
    protected::{AddressClaim, ExternalKind, ProtectedAddresses},
};

/// How many refused claims of one field are described. The others are counted.
const MAX_DESCRIBED: usize = 8;

/// All claims, and the addresses that must not be claimed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VipClaims {
    pub(super) protected: ProtectedAddresses,
    claimants: Groups<VipClaim, Claimant>,
    /// By external or load-balancer IP, the service ports that claim it: they are affected when it becomes protected,
    /// or no longer is.
    external_ips: BTreeMap<IpAddr, BTreeSet<ServicePortKey>>,
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
    /// Whether a user has written the claim to `spec.externalIPs`.
    external: bool,
    /// That of its Service.
    age: Age,
    key: ServicePortKey,
}

/// Claims that a service port does not get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RefusedClaims {
    pub(super) problems: Vec<ObjectProblem>,
    pub(super) count: usize,
}

impl VipClaims {
    pub(super) fn new(policy: &ServicePolicy) -> Self {
        Self { protected: ProtectedAddresses::new(policy), ..Self::default() }
    }

    /// Adds or removes the claims of a Service. `affected` gets the service ports of other Services that may change.
    pub(super) fn change_service(
        &mut self,
        service: &ServiceObject,
        change: GroupChange,
        affected: &mut BTreeSet<ServicePortKey>,
    ) {
        let changed = self.protected.change_service(service, change);
        affected.extend(self.claimants_in(&changed));
        for port in &service.ports {
            let key = key_of(service, port);
            for (ip, _) in external_ips(service) {
                let keys = self.external_ips.entry(ip).or_default();
                match change {
                    GroupChange::Add => keys.insert(key.clone()),
                    GroupChange::Remove => keys.remove(&key),
                };
                if keys.is_empty() {
                    self.external_ips.remove(&ip);
                }
            }
            let mut claimant = Claimant { external: false, age: service.created.into(), key };
            for (claim, kind) in claims(service, port) {
                claimant.external = kind == Some(ExternalKind::External);
                if change_group(&mut self.claimants, change, claim, &claimant) {
                    let claimants = self.claimants.get(&claim).into_iter().flatten();
                    affected.extend(claimants.map(|claimant| claimant.key.clone()));
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn claimant_groups(&self) -> usize {
        self.claimants.len()
    }

    /// Whether any Service claims this address as an external or load-balancer IP.
    pub(super) fn is_claimed(&self, ip: &IpAddr) -> bool {
        self.external_ips.contains_key(ip)
    }

    /// The service ports that claim an address in these networks as an external or load-balancer IP.
    pub(super) fn claimants_in(&self, networks: &[IpNet]) -> BTreeSet<ServicePortKey> {
        let claimed = networks.iter().flat_map(|network| {
            let (first, last) = (network.network(), network.broadcast());
            self.external_ips.range(first..=last).flat_map(|(_, keys)| keys)
        });
        claimed.cloned().collect()
    }

    /// A service port with those of its claims that it gets, and the others.
    pub(super) fn resolve(&self, service: &ServiceObject, port: &ServiceObjectPort) -> (ServicePort, RefusedClaims) {
        let key = key_of(service, port);
        let mut resolution = Resolution {
            claims: self,
            port,
            key: &key,
            age: service.created.into(),
            refused: RefusedClaims::default(),
        };
        let port = ServicePort {
            cluster_ips: PerFamily::from_fn(|family| {
                let ip = service.cluster_ips[family];
                ip.filter(|ip| {
                    let winner = resolution.winner(VipClaim::ClusterIp(*ip, port.port, port.protocol), None);
                    resolution.gets("spec.clusterIPs", 0, winner)
                })
            }),
            node_port: port.node_port.filter(|number| {
                let name = if port.name.is_empty() { port.port.to_string() } else { port.name.to_string() };
                let field = format!("spec.ports[{name}/{}].nodePort", port.protocol);
                let refusal = resolution.node_port(*number);
                resolution.gets(&field, 0, refusal)
            }),
            external_ips: resolution.external(&service.external_ips, ExternalKind::External),
            load_balancer_ips: resolution.external(&service.load_balancer_ips, ExternalKind::LoadBalancer),
            source_ranges: service.source_ranges.clone(),
            internal_policy: service.internal_policy,
            external_policy: service.external_policy,
            affinity_seconds: service.affinity_seconds,
            health_check_node_port: service.health_check_node_port,
            ipvs_scheduler: service.ipvs_scheduler,
            any_endpoints: PerFamily::default(),
            port: port.port,
            key: key.clone(),
        };
        (port, resolution.refused)
    }
}

/// One service port whose claims are resolved.
struct Resolution<'a> {
    claims: &'a VipClaims,
    port: &'a ServiceObjectPort,
    key: &'a ServicePortKey,
    age: Age,
    refused: RefusedClaims,
}

impl Resolution<'_> {
    /// Why another service port gets a claim.
    fn winner(&self, claim: VipClaim, kind: Option<ExternalKind>) -> Option<String> {
        let winner = first(&self.claims.claimants, &claim).filter(|winner| winner.key != *self.key)?;
        let claimed = match claim {
            VipClaim::ClusterIp(ip, ..) | VipClaim::ExternalIp(ip, ..) => {
                format!("{ip}, port {}/{}", self.port.port, self.port.protocol)
            }
            VipClaim::NodePort(number, protocol) => format!("{number}/{protocol}"),
        };
        let why = match kind {
            Some(ExternalKind::External) if !winner.external => "for which it is a load-balancer IP",
            _ => "whose Service is older",
        };
        Some(format!("{claimed} is used by {}, {why}: not served here; change one of them", winner.key))
    }

    fn node_port(&self, number: NonZeroU16) -> Option<String> {
        let protocol = self.port.protocol;
        if self.claims.protected.is_protected_node_port(number, protocol) {
            return Some(format!(
                "{number}/{protocol} is not served: the kubelet or Fairlead may use it \
                                 (--protected-ports); use another node port"
            ));
        }
        self.winner(VipClaim::NodePort(number, protocol), None)
    }

    /// The external or load-balancer IPs that the service port gets.
    fn external(&mut self, ips: &[IpAddr], kind: ExternalKind) -> Vec<IpAddr> {
        let ServiceObjectPort { port, protocol, .. } = *self.port;
        let protected = &self.claims.protected;
        let field = match kind {
            ExternalKind::External => "spec.externalIPs",
            ExternalKind::LoadBalancer => "status.loadBalancer.ingress",
        };
        let mut described = 0;
        let mut used = Vec::with_capacity(ips.len());
        for ip in ips {
            let claim = AddressClaim { ip: *ip, kind, age: self.age };
            let refusal = if let Some(owner) = protected.owner(claim) {
                Some(format!("{ip} is not served: it would shadow {owner}; use another address"))
            } else if let Some(owner) = protected.port_owner(*ip, port, protocol) {
                Some(format!("{ip} is not served on port {port}/{protocol}: it would shadow {owner}"))
            } else {
                self.winner(VipClaim::ExternalIp(*ip, port, protocol), Some(kind))
            };
            let refused_before = self.refused.count;
            if self.gets(field, described, refusal) {
                used.push(*ip);
            }
            described += self.refused.count - refused_before;
        }
        if let Some(more) = described.checked_sub(MAX_DESCRIBED).filter(|more| *more > 0) {
            let message = format!("{more} more addresses are not served on port {port}/{protocol}");
            self.refused.problems.push(ObjectProblem { field: field.to_owned(), message });
        }
        used
    }

    /// Records a refusal, unless many of the same field are described already. Whether there is none.
    fn gets(&mut self, field: &str, described: usize, refusal: Option<String>) -> bool {
        let Some(message) = refusal else { return true };
        if described < MAX_DESCRIBED {
            self.refused.problems.push(ObjectProblem { field: field.to_owned(), message });
        }
        self.refused.count += 1;
        false
    }
}

/// The addresses that a Service claims. Those that are closed are claimed as well, so that no other Service gets them.
pub(super) fn external_ips(service: &ServiceObject) -> impl Iterator<Item = (IpAddr, ExternalKind)> {
    let of_load_balancer = service.load_balancer_ips.iter().chain(&service.closed_ips);
    let of_load_balancer = of_load_balancer.map(|ip| (*ip, ExternalKind::LoadBalancer));
    let external = service.external_ips.iter().map(|ip| (*ip, ExternalKind::External));
    of_load_balancer.chain(external)
}

fn claims(service: &ServiceObject, port: &ServiceObjectPort) -> impl Iterator<Item = (VipClaim, Option<ExternalKind>)> {
    let cluster_ips = [service.cluster_ips.v4, service.cluster_ips.v6].into_iter().flatten();
    let node_port = port.node_port.map(|number| VipClaim::NodePort(number, port.protocol));
    let cluster_ips = cluster_ips.map(|ip| VipClaim::ClusterIp(ip, port.port, port.protocol));
    let external =
        external_ips(service).map(|(ip, kind)| (VipClaim::ExternalIp(ip, port.port, port.protocol), Some(kind)));
    cluster_ips.chain(node_port).map(|claim| (claim, None)).chain(external)
}
