//! Random clusters: Services and EndpointSlices as the Kubernetes API accepts them, weighted towards what people write.

use std::{collections::BTreeSet, mem, net::IpAddr};

use e2e::{
    DualStack, IpFamily,
    plan::{self, client_source},
};
use fastrand::Rng;
use ipnet::IpNet;
use proto::model::Protocol;

use crate::api;

/// The number of nodes; the first one is that of the proxies.
pub(crate) const NODES: u8 = 3;
/// Pods on each node that endpoints may be.
pub(crate) const PODS: u8 = 4;
/// The seconds of session affinity.
const AFFINITY_SECONDS: u32 = 10_800;

/// The Services of a cluster, with their endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub(crate) services: Vec<Service>,
}

/// A Service, with its slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) kind: ServiceKind,
    pub(crate) cluster_ips: Vec<IpAddr>,
    pub(crate) ports: Vec<Port>,
    pub(crate) external_ips: Vec<IpAddr>,
    pub(crate) load_balancer_ips: Vec<LoadBalancerIp>,
    pub(crate) source_ranges: Vec<IpNet>,
    pub(crate) is_internal_local: bool,
    pub(crate) is_external_local: bool,
    pub(crate) affinity_seconds: Option<u32>,
    /// Labelled for another proxy.
    pub(crate) is_foreign: bool,
    pub(crate) slices: Vec<Slice>,
}

/// `spec.type`, and whether there is a cluster IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceKind {
    ClusterIp,
    Headless,
    NodePort,
    LoadBalancer,
}

/// An entry of `status.loadBalancer.ingress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadBalancerIp {
    pub(crate) ip: IpAddr,
    /// `ipMode: Proxy`.
    pub(crate) is_proxy: bool,
}

/// An entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) number: u16,
    pub(crate) node_port: Option<u16>,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) family: IpFamily,
    /// The name of a port of the Service, its protocol, and the port of the endpoints.
    pub(crate) ports: Vec<(String, Protocol, u16)>,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// An entry of `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) ip: IpAddr,
    /// From 1; `None`: no `nodeName`.
    pub(crate) node: Option<u8>,
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
    /// The nodes whose zones are in `hints.forZones`: each node is in a zone of its own.
    pub(crate) zone_hints: Vec<u8>,
    /// The nodes in `hints.forNodes`.
    pub(crate) node_hints: Vec<u8>,
}

// === impl Cluster ===

impl Cluster {
    /// Its objects, one in each line.
    #[must_use]
    pub fn text(&self) -> String {
        api::objects(self).values().fold(String::new(), |text, object| text + &object.to_string() + "\n")
    }

    /// The cluster of a seed.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let count = rng.u8(1..=6);
        let mut services: Vec<_> = (1..=count).map(|number| Service::random(&mut rng, number)).collect();
        share_vips(&mut services);
        Self { services }
    }

    /// The cluster once its first two Services with node ports have exchanged one.
    pub(crate) fn with_exchanged_node_ports(&self) -> Option<Self> {
        let mut exchanged = self.clone();
        let ports = exchanged.services.iter_mut().filter_map(|service| service.ports.first_mut());
        let mut ports = ports.filter(|port| port.node_port.is_some());
        let (first, second) = (ports.next()?, ports.next()?);
        mem::swap(&mut first.node_port, &mut second.node_port);
        Some(exchanged)
    }

    /// The cluster with one of its Services only.
    pub(crate) fn only(&self, service: &Service) -> Self {
        Self { services: vec![service.clone()] }
    }
}

// === impl Service ===

impl Service {
    fn random(rng: &mut Rng, number: u8) -> Self {
        let families = match rng.u8(0..4) {
            0 => vec![IpFamily::V4],
            1 => vec![IpFamily::V6],
            2 => vec![IpFamily::V6, IpFamily::V4],
            _ => vec![IpFamily::V4, IpFamily::V6],
        };
        let kind = match rng.u8(0..10) {
            0 => ServiceKind::Headless,
            1..4 => ServiceKind::NodePort,
            4..7 => ServiceKind::LoadBalancer,
            _ => ServiceKind::ClusterIp,
        };
        let of_families = |addresses: DualStack| families.iter().map(move |family| addresses.ip(*family));
        let has_node_ports = match kind {
            ServiceKind::NodePort => true,
            // Without `allocateLoadBalancerNodePorts` there is none.
            ServiceKind::LoadBalancer => rng.u8(0..4) > 0,
            ServiceKind::ClusterIp | ServiceKind::Headless => false,
        };
        let ports = ports(rng, number, has_node_ports);
        let is_external = matches!(kind, ServiceKind::NodePort | ServiceKind::LoadBalancer);
        let mut service = Self {
            name: format!("service-{number}"),
            kind,
            cluster_ips: of_families(plan::cluster_ip(number)).collect(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            is_internal_local: one_in(rng, 4),
            is_external_local: is_external && one_in(rng, 2),
            affinity_seconds: one_in(rng, 5).then_some(AFFINITY_SECONDS),
            is_foreign: one_in(rng, 20),
            slices: slices(rng, &ports),
            ports,
        };
        if kind != ServiceKind::Headless && one_in(rng, 3) {
            // Also of a family that the Service does not have.
            let both = plan::external_ip(number).both();
            service.external_ips = if one_in(rng, 4) { vec![rng.choice(both).unwrap_or(both[0])] } else { both.into() };
        }
        if kind == ServiceKind::LoadBalancer && !one_in(rng, 6) {
            let is_proxy = one_in(rng, 8);
            let ips = of_families(plan::load_balancer_ip(number));
            service.load_balancer_ips = ips.map(|ip| LoadBalancerIp { ip, is_proxy }).collect();
            if one_in(rng, 2) {
                service.source_ranges = source_ranges(rng, &families);
            }
        }
        service
    }

    /// Whether a proxy serves it.
    pub(crate) fn is_served(&self) -> bool {
        self.kind != ServiceKind::Headless && !self.is_foreign
    }

    /// Whether several slices have entries of one address that are not terminating.
    pub(crate) fn has_live_duplicates(&self, family: IpFamily) -> bool {
        let slices = self.slices.iter().filter(|slice| slice.family == family);
        let live = slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.terminating != Some(true));
        let mut seen = BTreeSet::new();
        live.map(|endpoint| endpoint.ip).any(|ip| !seen.insert(ip))
    }

    /// Whether all endpoints with this address are on the node of the proxies, by their `nodeName`.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        let endpoints = self.slices.iter().flat_map(|slice| &slice.endpoints);
        endpoints.filter(|endpoint| endpoint.ip == ip).all(|endpoint| endpoint.node == Some(1))
    }

    /// Whether both may have one address: no port of this Service is one of the other's.
    fn may_share_vips(&self, other: &Self) -> bool {
        let is_same = |a: &Port, b: &Port| (a.protocol, a.number) == (b.protocol, b.number);
        !self.ports.iter().any(|port| other.ports.iter().any(|of_other| is_same(port, of_other)))
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = IpFamily> {
        self.cluster_ips.iter().map(IpFamily::of)
    }
}

/// Gives Services with load-balancer or external IPs those of the one before, too, if all ports differ: at most two
/// share one. Their own ones stay, so that a seed finds what it has found before.
fn share_vips(services: &mut [Service]) {
    for index in (1..services.len()).rev() {
        let (before, after) = services.split_at_mut(index);
        let service = &mut after[0];
        if let Some(LoadBalancerIp { is_proxy, .. }) = service.load_balancer_ips.first().copied()
            && let Some(other) = before.iter().rfind(|other| !other.load_balancer_ips.is_empty())
            && service.may_share_vips(other)
        {
            let ips = other.load_balancer_ips.iter().map(|of_other| LoadBalancerIp { is_proxy, ..*of_other });
            service.load_balancer_ips.extend(ips);
        }
        if !service.external_ips.is_empty()
            && let Some(other) = before.iter().rfind(|other| !other.external_ips.is_empty())
            && service.may_share_vips(other)
        {
            service.external_ips.extend(&other.external_ips);
        }
    }
}

fn ports(rng: &mut Rng, service: u8, has_node_ports: bool) -> Vec<Port> {
    let count = if one_in(rng, 3) { rng.u8(2..=3) } else { 1 };
    let mut used = BTreeSet::new();
    let mut ports = Vec::new();
    for index in 0..count {
        let protocol = rng.choice([Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
        let protocol = protocol.unwrap_or(Protocol::Tcp);
        let number = rng.choice([53, 80, 443]).unwrap_or(80);
        if !used.insert((protocol, number)) {
            continue;
        }
        let name = if count == 1 { String::new() } else { format!("port-{index}") };
        let node_port = has_node_ports.then(|| 30_000 + u16::from(service) * 10 + u16::from(index));
        ports.push(Port { name, protocol, number, node_port });
    }
    ports
}

fn source_ranges(rng: &mut Rng, families: &[IpFamily]) -> Vec<IpNet> {
    let near = IpNet::from(IpAddr::from(client_source(1).v4));
    let near_v6 = IpNet::from(IpAddr::from(client_source(1).v6));
    let pods: Vec<IpNet> = plan::CLUSTER_CIDRS.iter().filter_map(|cidr| cidr.parse().ok()).collect();
    let fabric: Vec<IpNet> = plan::FABRIC.iter().filter_map(|cidr| cidr.parse().ok()).collect();
    let all: Vec<IpNet> = ["0.0.0.0/0", "::/0"].iter().filter_map(|cidr| cidr.parse().ok()).collect();
    let choices = [vec![near, near_v6], pods, fabric, all, vec![near]];
    let mut ranges = Vec::new();
    for _ in 0..rng.u8(1..=2) {
        ranges.extend(rng.choice(&choices).into_iter().flatten().copied());
    }
    // The API server rejects ranges of other families for a Service with one.
    ranges.retain(|range| families.contains(&IpFamily::of(&range.addr())));
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

fn slices(rng: &mut Rng, ports: &[Port]) -> Vec<Slice> {
    let mut slices = Vec::new();
    for family in IpFamily::ALL {
        let count = rng.choice([0, 1, 1, 1, 1, 2]).unwrap_or(1);
        // Hints are all or nothing in what the EndpointSlice controller writes; other writers do otherwise.
        let (zones, nodes) = (one_in(rng, 6), one_in(rng, 6));
        let is_partial = one_in(rng, 3);
        for _ in 0..count {
            let target = rng.choice([8080, 9090]).unwrap_or(8080);
            let mut of_slice: Vec<_> =
                ports.iter().zip(target..).map(|(port, target)| (port.name.clone(), port.protocol, target)).collect();
            if one_in(rng, 10) {
                of_slice.pop();
            }
            let mut endpoints: Vec<_> = (0..rng.u8(0..5)).map(|_| endpoint(rng, family)).collect();
            for endpoint in &mut endpoints {
                if zones && !(is_partial && one_in(rng, 3)) {
                    endpoint.zone_hints = (1..=NODES).filter(|_| one_in(rng, 2)).collect();
                }
                if nodes && !(is_partial && one_in(rng, 3)) {
                    endpoint.node_hints = (1..=NODES).filter(|_| one_in(rng, 2)).collect();
                }
            }
            endpoints.sort_by_key(|endpoint| endpoint.ip);
            endpoints.dedup_by_key(|endpoint| endpoint.ip);
            slices.push(Slice { family, ports: of_slice, endpoints });
        }
    }
    slices
}

fn endpoint(rng: &mut Rng, family: IpFamily) -> Endpoint {
    let node = rng.u8(1..=NODES);
    // On the host network, sometimes.
    let address = if one_in(rng, 12) { plan::node(node) } else { plan::pod(node, rng.u8(1..=PODS)) };
    let (ready, serving, terminating) = match rng.u8(0..10) {
        0 => (None, None, None),
        1 => (Some(false), Some(false), Some(false)),
        2 => (Some(false), Some(true), Some(true)),
        3 => (Some(false), Some(false), Some(true)),
        4 => (Some(false), None, None),
        _ => (Some(true), Some(true), Some(false)),
    };
    let node = (!one_in(rng, 12)).then_some(node);
    let (zone_hints, node_hints) = (Vec::new(), Vec::new());
    Endpoint { ip: address.ip(family), node, ready, serving, terminating, zone_hints, node_hints }
}

fn one_in(rng: &mut Rng, count: u8) -> bool {
    rng.u8(0..count) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_balancer_ips(service: &Service) -> Vec<IpAddr> {
        service.load_balancer_ips.iter().map(|ip| ip.ip).collect()
    }

    fn external_ips(service: &Service) -> Vec<IpAddr> {
        service.external_ips.clone()
    }

    /// Whether two Services of this kind that are served have an address in common.
    fn is_shared(cluster: &Cluster, is_kind: fn(&Service) -> bool, ips: fn(&Service) -> Vec<IpAddr>) -> bool {
        let services = cluster.services.iter().filter(|service| service.is_served() && is_kind(service));
        let mut seen = BTreeSet::new();
        services.flat_map(ips).any(|ip| !seen.insert(ip))
    }

    #[test]
    fn rare_combinations_appear() {
        let is_restricted = |service: &Service| {
            !service.source_ranges.is_empty() && service.load_balancer_ips.iter().all(|ip| !ip.is_proxy)
        };
        let is_sticky = |service: &Service| service.is_external_local && service.affinity_seconds.is_some();
        let clusters: Vec<_> = (0..500).map(Cluster::random).collect();
        assert!(clusters.iter().any(|cluster| is_shared(cluster, is_restricted, load_balancer_ips)));
        assert!(clusters.iter().any(|cluster| is_shared(cluster, |_| true, external_ips)));
        assert!(clusters.iter().any(|cluster| cluster.services.iter().any(is_sticky)));
        assert!(clusters.iter().any(|cluster| cluster.with_exchanged_node_ports().is_some()));
    }

    #[test]
    fn no_two_services_claim_one_port_of_an_address() {
        for seed in 0..500 {
            let mut claims = BTreeSet::new();
            for service in Cluster::random(seed).services {
                for ip in [load_balancer_ips(&service), external_ips(&service)].concat() {
                    for port in &service.ports {
                        let claim = (ip, port.protocol, port.number);
                        assert!(claims.insert(claim), "seed {seed}: {claim:?}");
                    }
                }
            }
        }
    }
}
