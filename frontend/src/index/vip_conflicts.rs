//! VIP conflict resolution: which service port gets a VIP or node port that several claim, and which claims none gets.
//!
//! - Of several service ports that claim one (VIP, port, protocol) or one (node port, protocol), one gets it: a
//!   load-balancer IP goes before an external IP, then the older Service before the newer one; a Service without a
//!   creation time counts as the newest. Of two of equal age, the one whose name sorts first goes before. When the
//!   winner is removed, the next one gets it.
//! - At the address of a Node, an external or load-balancer IP, the node ports and the ports of health checks are the
//!   same: of those that claim one port, one gets it, by the same rule. A node port is served at every Node, so that it
//!   is not served at all if one at an address goes before it.
//! - An external or load-balancer IP that is protected is served on no port: see `protected`.
//!
//! A change of the claims marks the service ports that it may affect: those of the Service that got a claim before, and
//! of the Service that gets it now. All other claimants are refused as before; only the name in their problems may be
//! another one, which `refusals` corrects later. `resolve` answers for one service port.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    num::NonZeroU16,
};

use ipnet::IpNet;
use proto::model::{PerFamily, Protocol, ServicePort, ServicePortKey};

use crate::object::{ObjectProblem, ServiceObject, ServiceObjectPort};

use super::{
    age::Age,
    groups::{GroupChange, Groups, change_group, first},
    keys::{key_of, same_service},
    policy::ServicePolicy,
    protected::{ExternalKind, ProtectedAddresses},
};

/// How many refused claims of one field are described. The others are counted.
const MAX_DESCRIBED: usize = 8;

/// All claims, and the addresses that must not be claimed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VipClaims {
    pub(super) protected: ProtectedAddresses,
    claimants: Groups<VipClaim, Claimant>,
    /// The claimed external and load-balancer IPs by their ports.
    external_ports: Groups<(NonZeroU16, Protocol), IpAddr>,
}

/// What only one service port can have. Ordered by address, so that the claims to those of a network are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VipClaim {
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
    /// Whether it is for the health checks of its Service.
    health_check: bool,
}

/// The claimant that gets a node port.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePortOwner<'a> {
    claimant: &'a Claimant,
    /// The address of a Node at which it claims the port; `None`: as a node port.
    ip: Option<IpAddr>,
}

/// Why a service port does not get a claim. The text is made only for those that are described.
enum Refusal<'a> {
    Protected(String),
    UsedBy { claim: VipClaim, owner: NodePortOwner<'a>, why: &'static str },
}

/// Who gets the node ports that were looked up, while no claim changes: all ports of a Service ask about that of its
/// health checks.
pub(super) type NodePortOwners<'a> = BTreeMap<(NonZeroU16, Protocol), Option<NodePortOwner<'a>>>;

/// Claims that a service port does not get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RefusedClaims {
    pub(super) claims: Vec<VipClaim>,
    /// The first [`MAX_DESCRIBED`] of each field, and how many there are more.
    pub(super) problems: Vec<ObjectProblem>,
}

impl Claimant {
    /// The field of its claim, if that is to an external or load-balancer IP.
    fn kind(&self) -> ExternalKind {
        if self.external { ExternalKind::External } else { ExternalKind::LoadBalancer }
    }
}

impl VipClaims {
    pub(super) fn new(policy: &ServicePolicy) -> Self {
        Self { protected: ProtectedAddresses::new(policy), ..Self::default() }
    }

    /// Adds or removes the claims of a Service. `affected` gets the service ports that may change; if all are its own,
    /// each other Service gets the same claims as before.
    pub(super) fn change_service(
        &mut self,
        service: &ServiceObject,
        change: GroupChange,
        affected: &mut BTreeSet<ServicePortKey>,
    ) {
        let changed = self.protected.change_service(service, change);
        affected.extend(self.claimants_in(&changed));

        // All ports of a Service claim that of its health checks: each claim counts once.
        let mut changed = BTreeSet::new();
        for port in &service.ports {
            for (claim, claimant) in claims(service, port) {
                if change_group(&mut self.claimants, change, claim, &claimant) {
                    changed.insert(claim);
                }
                if let VipClaim::ExternalIp(ip, port, protocol) = claim {
                    let is_claimed = self.claimants.contains_key(&claim);
                    let change = if is_claimed { GroupChange::Add } else { GroupChange::Remove };
                    change_group(&mut self.external_ports, change, (port, protocol), &ip);
                }
            }
        }
        self.mark_contenders(changed, affected);
    }

    #[cfg(test)]
    pub(super) fn claimant_groups(&self) -> usize {
        self.claimants.len()
    }

    /// Whether any Service claims this address as an external or load-balancer IP.
    pub(super) fn is_claimed(&self, ip: &IpAddr) -> bool {
        self.external_claims(*ip, *ip).next().is_some()
    }

    /// The service ports that may get an address in these networks as an external or load-balancer IP, or the same port
    /// of Nodes.
    pub(super) fn claimants_in(&self, networks: &[IpNet]) -> BTreeSet<ServicePortKey> {
        let mut claimants = BTreeSet::new();
        let mut ports = BTreeSet::new();
        for network in networks {
            for claim in self.external_claims(network.network(), network.broadcast()) {
                if let VipClaim::ExternalIp(_, port, protocol) = claim
                    && ports.insert((port, protocol))
                {
                    self.mark_node_port(port, protocol, &mut claimants);
                }
                self.mark_leaders(claim, &mut claimants);
            }
        }
        claimants
    }

    /// The claims to external and load-balancer IPs from one address to another.
    fn external_claims(&self, first: IpAddr, last: IpAddr) -> impl Iterator<Item = VipClaim> {
        let first = VipClaim::ExternalIp(first, NonZeroU16::MIN, Protocol::Tcp);
        let last = VipClaim::ExternalIp(last, NonZeroU16::MAX, Protocol::Sctp);
        self.claimants.range(first..=last).map(|(claim, _)| *claim)
    }

    /// Marks the service ports of the first two Services that have a claim: after a change, the Service that gets the
    /// VIP or node port, and the Service that got it before, which is gone or has become the second. All others neither
    /// get it nor got it.
    fn mark_leaders(&self, claim: VipClaim, affected: &mut BTreeSet<ServicePortKey>) {
        let mut services = 0;
        let mut last = None::<&ServicePortKey>;
        for Claimant { key, .. } in self.claimants.get(&claim).into_iter().flatten() {
            #[cfg(test)]
            crate::testing::count_steps(1);
            if last.is_none_or(|last| !same_service(last, key)) {
                services += 1;
            }
            if services > 2 {
                return;
            }
            affected.insert(key.clone());
            last = Some(key);
        }
    }

    /// Marks the Services that may get these claims, and those whose claims to the same ports of Nodes depend on it.
    fn mark_contenders(&self, changed: BTreeSet<VipClaim>, affected: &mut BTreeSet<ServicePortKey>) {
        let mut at_nodes = BTreeSet::new();
        for claim in changed {
            self.mark_leaders(claim, affected);
            match claim {
                VipClaim::ClusterIp(..) => {}
                VipClaim::NodePort(number, protocol) => self.mark_at_nodes(number, protocol, affected),
                VipClaim::ExternalIp(ip, port, protocol) => {
                    if self.protected.is_node_address(&ip) {
                        at_nodes.insert((port, protocol));
                    }
                }
            }
        }

        for (port, protocol) in at_nodes {
            self.mark_node_port(port, protocol, affected);
        }
    }

    /// Marks the service ports that may get a port of Nodes, if any Service has it as a node port.
    fn mark_node_port(&self, port: NonZeroU16, protocol: Protocol, affected: &mut BTreeSet<ServicePortKey>) {
        let claim = VipClaim::NodePort(port, protocol);
        if self.claimants.contains_key(&claim) {
            self.mark_leaders(claim, affected);
            self.mark_at_nodes(port, protocol, affected);
        }
    }

    /// Marks the service ports that may get a port at the address of a Node.
    fn mark_at_nodes(&self, port: NonZeroU16, protocol: Protocol, affected: &mut BTreeSet<ServicePortKey>) {
        for ip in self.external_ips_of(port, protocol) {
            if self.protected.is_node_address(&ip) {
                self.mark_leaders(VipClaim::ExternalIp(ip, port, protocol), affected);
            }
        }
    }

    /// The claimed external and load-balancer IPs with a port.
    fn external_ips_of(&self, port: NonZeroU16, protocol: Protocol) -> impl Iterator<Item = IpAddr> {
        #[cfg(test)]
        crate::testing::count_steps(self.external_ports.get(&(port, protocol)).map_or(0, BTreeSet::len));
        self.external_ports.get(&(port, protocol)).into_iter().flatten().copied()
    }

    /// Who gets a port that at least one Service claims as a node port or for health checks.
    fn node_port_owner(&self, port: NonZeroU16, protocol: Protocol) -> Option<NodePortOwner<'_>> {
        let of_port = first(&self.claimants, &VipClaim::NodePort(port, protocol))?;
        let mut owner = NodePortOwner { claimant: of_port, ip: None };

        for ip in self.external_ips_of(port, protocol) {
            let Some(claimant) = first(&self.claimants, &VipClaim::ExternalIp(ip, port, protocol)) else { continue };
            if claimant < owner.claimant && self.protected.shares_node_port(ip, claimant.kind(), port, protocol) {
                owner = NodePortOwner { claimant, ip: Some(ip) };
            }
        }
        Some(owner)
    }

    /// A service port with those of its claims that it gets, and the others.
    pub(super) fn resolve<'a>(
        &'a self,
        service: &ServiceObject,
        port: &ServiceObjectPort,
        node_ports: &mut NodePortOwners<'a>,
    ) -> (ServicePort, RefusedClaims) {
        let key = key_of(service, port);
        let mut resolution = Resolution {
            claims: self,
            node_ports,
            port,
            key: &key,
            age: service.created.into(),
            refused: RefusedClaims::default(),
        };
        let cluster_ips = PerFamily::from_fn(|family| resolution.cluster_ip(service.cluster_ips[family]));
        let node_port = resolution.node_port();
        let external_ips = resolution.external(&service.external_ips, ExternalKind::External);
        let load_balancer_ips = resolution.external(&service.load_balancer_ips, ExternalKind::LoadBalancer);
        let health_check_node_port = resolution.health_check_node_port(service.health_check_node_port);
        let refused = resolution.refused;

        let port = ServicePort {
            cluster_ips,
            node_port,
            external_ips,
            load_balancer_ips,
            source_ranges: service.source_ranges.clone(),
            internal_policy: service.internal_policy,
            external_policy: service.external_policy,
            affinity_seconds: service.affinity_seconds,
            health_check_node_port,
            any_endpoints: PerFamily::default(),
            port: port.port,
            key,
        };
        (port, refused)
    }
}

/// One service port whose claims are resolved.
struct Resolution<'a, 'c> {
    claims: &'c VipClaims,
    node_ports: &'a mut NodePortOwners<'c>,
    port: &'a ServiceObjectPort,
    key: &'a ServicePortKey,
    age: Age,
    refused: RefusedClaims,
}

impl<'c> Resolution<'_, 'c> {
    /// Why another service port gets a claim.
    fn winner(&self, claim: VipClaim, kind: Option<ExternalKind>) -> Option<Refusal<'c>> {
        let claimant = first(&self.claims.claimants, &claim).filter(|winner| winner.key != *self.key)?;
        let why = match kind {
            Some(ExternalKind::External) if !claimant.external => "for which it is a load-balancer IP",
            _ => self.precedence(claimant),
        };
        Some(Refusal::UsedBy { claim, owner: NodePortOwner { claimant, ip: None }, why })
    }

    /// The cluster IP, if the service port gets it.
    fn cluster_ip(&mut self, ip: Option<IpAddr>) -> Option<IpAddr> {
        let ip = ip?;
        let claim = VipClaim::ClusterIp(ip, self.port.port, self.port.protocol);
        let refusal = self.winner(claim, None);
        if self.gets(claim, "spec.clusterIPs", refusal) { Some(ip) } else { None }
    }

    /// The node port, if the service port gets it.
    fn node_port(&mut self) -> Option<NonZeroU16> {
        let ServiceObjectPort { name, port, protocol, node_port } = self.port;
        let number = (*node_port)?;
        let name = if name.is_empty() { port.to_string() } else { name.to_string() };
        let field = format!("spec.ports[{name}/{protocol}].nodePort");
        let refusal = self.port_of_nodes(number, *protocol, false);
        if self.gets(VipClaim::NodePort(number, *protocol), &field, refusal) { Some(number) } else { None }
    }

    /// The port for health checks, if the Service gets it.
    fn health_check_node_port(&mut self, number: Option<NonZeroU16>) -> Option<NonZeroU16> {
        let number = number?;
        let claim = VipClaim::NodePort(number, Protocol::Tcp);
        let refusal = self.port_of_nodes(number, Protocol::Tcp, true);
        if self.gets(claim, "spec.healthCheckNodePort", refusal) { Some(number) } else { None }
    }

    /// Why another service port goes before this one if both claims are of the same kind.
    fn precedence(&self, claimant: &Claimant) -> &'static str {
        if claimant.age == self.age {
            "whose Service is equally old and has the name that sorts first"
        } else {
            "whose Service is older"
        }
    }

    /// Whether this service port claims it, as a node port or for the health checks of its Service.
    fn is_own(&self, claimant: &Claimant, for_health_checks: bool) -> bool {
        let is_own = if for_health_checks { same_service(&claimant.key, self.key) } else { claimant.key == *self.key };
        is_own && claimant.health_check == for_health_checks
    }

    /// Who gets a port that at least one Service claims as a node port or for health checks.
    fn node_port_owner(&mut self, port: NonZeroU16, protocol: Protocol) -> Option<NodePortOwner<'c>> {
        let claims = self.claims;
        *self.node_ports.entry((port, protocol)).or_insert_with(|| claims.node_port_owner(port, protocol))
    }

    /// Why the service port does not get a node port, or its Service a port for health checks.
    fn port_of_nodes(
        &mut self,
        number: NonZeroU16,
        protocol: Protocol,
        for_health_checks: bool,
    ) -> Option<Refusal<'c>> {
        if self.claims.protected.is_protected_node_port(number, protocol) {
            return Some(Refusal::Protected(format!(
                "{number}/{protocol} is not served: a process on a Node may use it \
                                 (--protected-ports); use another node port"
            )));
        }
        let owner = self.node_port_owner(number, protocol);
        let owner = owner.filter(|owner| !self.is_own(owner.claimant, for_health_checks))?;
        let claim = VipClaim::NodePort(number, protocol);
        Some(Refusal::UsedBy { claim, owner, why: self.precedence(owner.claimant) })
    }

    /// Why a node port or health checks get this port at the address of a Node.
    fn node_port_at(&mut self, ip: IpAddr, kind: ExternalKind) -> Option<Refusal<'c>> {
        let ServiceObjectPort { port, protocol, .. } = *self.port;
        if !self.claims.protected.is_node_address(&ip) {
            return None;
        }
        let owner = self.node_port_owner(port, protocol).filter(|owner| owner.ip.is_none())?;
        if self.is_own(owner.claimant, false) {
            return None;
        }
        let why = match kind {
            ExternalKind::External => "whose node port goes before an external IP",
            ExternalKind::LoadBalancer => self.precedence(owner.claimant),
        };
        Some(Refusal::UsedBy { claim: VipClaim::ExternalIp(ip, port, protocol), owner, why })
    }

    /// The external or load-balancer IPs that the service port gets.
    fn external(&mut self, ips: &[IpAddr], kind: ExternalKind) -> Vec<IpAddr> {
        let field = match kind {
            ExternalKind::External => "spec.externalIPs",
            ExternalKind::LoadBalancer => "status.loadBalancer.ingress",
        };
        let ServiceObjectPort { port, protocol, .. } = *self.port;
        let refused_before = self.refused.claims.len();

        let mut used = Vec::with_capacity(ips.len());
        for ip in ips {
            let refusal = self.external_ip(*ip, kind);
            if self.gets(VipClaim::ExternalIp(*ip, port, protocol), field, refusal) {
                used.push(*ip);
            }
        }

        let refused = self.refused.claims.len() - refused_before;
        if refused > MAX_DESCRIBED {
            let more = refused - MAX_DESCRIBED;
            let message = format!("{more} more addresses are not served on port {port}/{protocol}");
            self.refused.problems.push(ObjectProblem { field: field.to_owned(), message });
        }
        used
    }

    /// Why the service port does not get an external or load-balancer IP.
    fn external_ip(&mut self, ip: IpAddr, kind: ExternalKind) -> Option<Refusal<'c>> {
        let ServiceObjectPort { port, protocol, .. } = *self.port;
        let protected = &self.claims.protected;
        if let Some(owner) = protected.owner(ip, kind, self.age) {
            let text = format!("{ip} is not served: it would shadow {owner}; use another address");
            return Some(Refusal::Protected(text));
        }
        if let Some(owner) = protected.port_owner(ip, kind, port, protocol) {
            let text = format!("{ip} is not served on port {port}/{protocol}: it would shadow {owner}");
            return Some(Refusal::Protected(text));
        }

        let claim = VipClaim::ExternalIp(ip, port, protocol);
        self.winner(claim, Some(kind)).or_else(|| self.node_port_at(ip, kind))
    }

    /// Records a refusal. Returns whether there is none.
    fn gets(&mut self, claim: VipClaim, field: &str, refusal: Option<Refusal<'c>>) -> bool {
        let Some(refusal) = refusal else { return true };
        let RefusedClaims { claims, problems } = &mut self.refused;
        claims.push(claim);
        if problems.iter().filter(|problem| problem.field == field).count() < MAX_DESCRIBED {
            problems.push(ObjectProblem { field: field.to_owned(), message: refusal.to_string() });
        }
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

fn claims(service: &ServiceObject, port: &ServiceObjectPort) -> impl Iterator<Item = (VipClaim, Claimant)> {
    let ServiceObjectPort { port: number, protocol, node_port, .. } = *port;
    let claimant = move |external: bool, health_check: bool| Claimant {
        external,
        age: service.created.into(),
        key: key_of(service, port),
        health_check,
    };

    let cluster_ips = [service.cluster_ips.v4, service.cluster_ips.v6].into_iter().flatten();
    let cluster_ips = cluster_ips.map(move |ip| VipClaim::ClusterIp(ip, number, protocol));
    let own = cluster_ips.chain(node_port.map(|number| VipClaim::NodePort(number, protocol)));
    let own = own.map(move |claim| (claim, claimant(false, false)));

    let health_check = service.health_check_node_port.map(|number| VipClaim::NodePort(number, Protocol::Tcp));
    let health_check = health_check.map(|claim| (claim, claimant(false, true)));

    let external = external_ips(service).map(move |(ip, kind)| {
        let claimant = claimant(kind == ExternalKind::External, false);
        (VipClaim::ExternalIp(ip, number, protocol), claimant)
    });
    own.chain(health_check).chain(external)
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (claim, owner, why) = match self {
            Self::Protected(text) => return f.write_str(text),
            Self::UsedBy { claim, owner, why } => (claim, owner, why),
        };
        let claimed = match claim {
            VipClaim::ClusterIp(ip, port, protocol) | VipClaim::ExternalIp(ip, port, protocol) => {
                format!("{ip}, port {port}/{protocol}")
            }
            VipClaim::NodePort(number, protocol) => format!("{number}/{protocol}"),
        };
        write!(f, "{claimed} is used by {owner}, {why}: not served for this Service; change one of them")
    }
}

impl fmt::Display for NodePortOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claimant { key, health_check, .. } = self.claimant;
        match self.ip {
            Some(ip) => write!(f, "{key} at {ip}, an address of a Node"),
            None if *health_check => write!(f, "the health checks of {}/{}", key.namespace, key.name),
            None => write!(f, "{key}"),
        }
    }
}
