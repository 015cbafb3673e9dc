//! Addresses that no Service may claim as an external or load-balancer IP, and ports that none gets at the address of a
//! Node: otherwise every user that may write a Service could take over the traffic of others.
//!
//! Everyone who may write an EndpointSlice chooses the addresses in it, so that an endpoint protects its address only
//! if it is in a cluster CIDR, or if the slice is older than the Service that claims the address. Creation times have
//! seconds: of two that are equal the Service keeps the address, because a slice could be created for it meanwhile.
//!
//! An address of a Node itself may be claimed, except on ports of the kubelet, of API servers and of Fairlead:
//! bare-metal clusters publish Services there. So a Node that claims the address of a load balancer takes nothing away
//! from it but `--protected-ports`: the port of an API server at another address of the Node is not protected there,
//! because each Node writes the addresses in its own status.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
};

use ipnet::IpNet;
use proto::model::{NodeInfo, Protocol};

use crate::object::{ObjectName, ServiceObject, SliceEndpoint, SliceObject};

use super::{
    age::Age,
    groups::{GroupChange, Groups, change_group, first},
    policy::ServicePolicy,
};

/// Shorter prefixes of pod CIDRs and cluster CIDRs protect nothing: a Node would take away the addresses of everyone
/// else.
const MIN_POD_PREFIX: (u8, u8) = (8, 32);

/// What external and load-balancer IPs are compared with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProtectedAddresses {
    ports: BTreeSet<u16>,
    refuse_node_addresses: bool,
    cluster_cidrs: Vec<IpNet>,
    /// By cluster IP, the Services that have it.
    cluster_ips: Groups<IpAddr, ObjectName>,
    service_cidrs: BTreeSet<IpNet>,
    /// By pod CIDR, the Nodes that have it.
    pod_cidrs: Groups<IpNet, Arc<str>>,
    /// Those of each prefix length: whether they are of IPv4, and the length.
    pod_prefixes: Groups<(bool, u8), IpNet>,
    /// By address, the Nodes that have it.
    node_addresses: Groups<IpAddr, Arc<str>>,
    addresses_of: HashMap<Arc<str>, Vec<IpAddr>>,
    /// By claimed address, the slices that have it as an endpoint.
    endpoints: HashMap<IpAddr, EndpointSlices>,
    api_servers: BTreeSet<(IpAddr, NonZeroU16)>,
}

/// The slices that have an address as an endpoint, the oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
struct EndpointSlices {
    /// Those in which the endpoint names its node, as that of a pod does.
    with_node: BTreeSet<(Age, ObjectName)>,
    without_node: BTreeSet<(Age, ObjectName)>,
}

/// The field that claims an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExternalKind {
    /// `status.loadBalancer.ingress`, which a controller writes.
    LoadBalancer,
    /// `spec.externalIPs`, which a user writes.
    External,
}

impl EndpointSlices {
    /// The one that decides of each set.
    fn oldest(&self) -> [Option<(Age, ObjectName)>; 2] {
        [&self.with_node, &self.without_node].map(|slices| slices.first().cloned())
    }
}

impl ProtectedAddresses {
    pub(super) fn new(policy: &ServicePolicy) -> Self {
        let ServicePolicy { protected_ports, refuse_node_addresses, cluster_cidrs, .. } = policy;
        Self {
            ports: protected_ports.clone(),
            refuse_node_addresses: *refuse_node_addresses,
            cluster_cidrs: cluster_cidrs.iter().filter(|cidr| protects_pods(cidr)).copied().collect(),
            ..Self::default()
        }
    }

    // === Changes: each returns the addresses at which a claim may be decided differently ===

    /// Adds or removes the cluster IPs of a Service.
    pub(super) fn change_service(&mut self, service: &ServiceObject, change: GroupChange) -> Vec<IpNet> {
        let ips = service.cluster_ips.iter().filter_map(|(_, ip)| *ip);
        let changed = ips.filter(|ip| change_group(&mut self.cluster_ips, change, *ip, &service.name));
        changed.map(IpNet::from).collect()
    }

    /// Adds or removes the addresses and pod CIDRs of a Node.
    pub(super) fn change_node(&mut self, node: &NodeInfo, change: GroupChange) -> Vec<IpNet> {
        for address in &node.addresses {
            change_group(&mut self.node_addresses, change, *address, &node.name);
        }
        match change {
            GroupChange::Add => self.addresses_of.insert(node.name.clone(), node.addresses.clone()),
            GroupChange::Remove => self.addresses_of.remove(&node.name),
        };
        for cidr in node.pod_cidrs.iter().filter(|cidr| protects_pods(cidr)) {
            let existed = self.pod_cidrs.contains_key(cidr);
            change_group(&mut self.pod_cidrs, change, *cidr, &node.name);
            if existed != self.pod_cidrs.contains_key(cidr) {
                let prefix = (cidr.addr().is_ipv4(), cidr.prefix_len());
                change_group(&mut self.pod_prefixes, change, prefix, cidr);
            }
        }
        // Also the addresses themselves: the ports of an API server on this Node are protected at all of them.
        node.addresses.iter().copied().map(IpNet::from).chain(node.pod_cidrs.iter().copied()).collect()
    }

    pub(super) fn set_service_cidrs(&mut self, cidrs: BTreeSet<IpNet>) -> Vec<IpNet> {
        let changed = self.service_cidrs.symmetric_difference(&cidrs).copied().collect();
        self.service_cidrs = cidrs;
        changed
    }

    /// Replaces the addresses and ports of the API servers.
    pub(super) fn set_api_servers(&mut self, api_servers: BTreeSet<(IpAddr, NonZeroU16)>) -> Vec<IpNet> {
        let changed: BTreeSet<_> = self.api_servers.symmetric_difference(&api_servers).map(|(ip, _)| *ip).collect();
        self.api_servers = api_servers;
        let on_same_node = changed.iter().flat_map(|ip| self.siblings(ip)).map(|(ip, _)| ip);
        changed.iter().copied().chain(on_same_node).map(IpNet::from).collect()
    }

    /// Compares slices with a claimed address from now on, or no longer. Returns whether that is new.
    pub(super) fn compare_endpoints(&mut self, ip: IpAddr, compare: bool) -> bool {
        if compare == self.endpoints.contains_key(&ip) {
            return false;
        }
        if compare {
            self.endpoints.insert(ip, EndpointSlices::default());
        } else {
            self.endpoints.remove(&ip);
        }
        true
    }

    /// Replaces the endpoints of a slice.
    pub(super) fn change_slice(&mut self, old: Option<&SliceObject>, new: Option<&SliceObject>) -> Vec<IpNet> {
        if self.endpoints.is_empty() {
            return Vec::new();
        }
        let mut oldest_before = BTreeMap::new();
        for (slice, change) in [(old, GroupChange::Remove), (new, GroupChange::Add)] {
            let Some(slice) = slice else { continue };
            for SliceEndpoint { address, node, .. } in &slice.endpoints {
                let Some(slices) = self.endpoints.get_mut(address) else { continue };
                oldest_before.entry(*address).or_insert_with(|| slices.oldest());
                let group = if node.is_some() { &mut slices.with_node } else { &mut slices.without_node };
                change.apply(group, &(slice.created.into(), slice.name.clone()));
            }
        }
        oldest_before.retain(|ip, before| self.endpoints.get(ip).is_none_or(|slices| slices.oldest() != *before));
        oldest_before.into_keys().map(IpNet::from).collect()
    }

    // === Decisions ===

    /// What the address belongs to, so that it is served on no port. For messages.
    /// `kind` and `age` are those of the claim and of its Service.
    pub(super) fn owner(&self, ip: IpAddr, kind: ExternalKind, age: Age) -> Option<String> {
        if let Some(service) = first(&self.cluster_ips, &ip) {
            return Some(format!("the cluster IP of Service {service}"));
        }
        if let Some(cidr) = self.service_cidrs.iter().find(|cidr| cidr.contains(&ip)) {
            return Some(format!("an address of the service CIDR {cidr}"));
        }
        if let Some(node) = first(&self.node_addresses, &ip) {
            return self.refuse_node_addresses.then(|| format!("an address of Node {node} (--refuse-node-addresses)"));
        }
        if let Some((cidr, node)) = self.pod_cidr(ip) {
            return Some(format!("an address of the pod CIDR {cidr} of Node {node}"));
        }
        if let Some(slice) = self.endpoint_owner(ip, kind, age) {
            return Some(format!("an endpoint in EndpointSlice {slice}"));
        }
        if kind == ExternalKind::LoadBalancer {
            // The cluster CIDR may contain more than pods: a load balancer, too.
            return None;
        }
        self.cluster_cidr(ip).map(|cidr| format!("an address of the cluster CIDR {cidr}"))
    }

    /// The pod CIDR with an address, and its Node.
    pub(super) fn pod_cidr(&self, ip: IpAddr) -> Option<(IpNet, &Arc<str>)> {
        let mut prefixes = self.pod_prefixes.keys().filter(|(is_v4, _)| *is_v4 == ip.is_ipv4());
        prefixes.find_map(|(_, length)| {
            let cidr = IpNet::new(ip, *length).ok()?.trunc();
            Some((cidr, first(&self.pod_cidrs, &cidr)?))
        })
    }

    /// The slice that protects its endpoint.
    fn endpoint_owner(&self, ip: IpAddr, kind: ExternalKind, age: Age) -> Option<&ObjectName> {
        let EndpointSlices { with_node, without_node } = self.endpoints.get(&ip)?;
        let (created, slice) = match kind {
            ExternalKind::External => with_node.first().into_iter().chain(without_node.first()).min()?,
            // A load balancer may be the endpoint of another Service, which then names no node.
            ExternalKind::LoadBalancer => with_node.first()?,
        };

        let is_owner = created.precedes(age) || self.cluster_cidr(ip).is_some();
        if is_owner { Some(slice) } else { None }
    }

    fn cluster_cidr(&self, ip: IpAddr) -> Option<&IpNet> {
        self.cluster_cidrs.iter().find(|cidr| cidr.contains(&ip))
    }

    /// What uses a port of the address, so that no Service gets it. For messages.
    pub(super) fn port_owner(
        &self,
        ip: IpAddr,
        kind: ExternalKind,
        port: NonZeroU16,
        protocol: Protocol,
    ) -> Option<String> {
        if protocol == Protocol::Tcp && self.api_servers.contains(&(ip, port)) {
            return Some("the API server".to_owned());
        }
        let node = first(&self.node_addresses, &ip)?;
        if self.is_protected_node_port(port, protocol) {
            return Some(format!("a process on Node {node} (--protected-ports)"));
        }
        if protocol != Protocol::Tcp || kind == ExternalKind::LoadBalancer {
            return None;
        }
        let on_same_node = self.siblings(&ip).find(|(sibling, _)| self.api_servers.contains(&(*sibling, port)));
        on_same_node.map(|(_, node)| format!("the API server on Node {node}"))
    }

    /// Whether no Service gets this node port.
    pub(super) fn is_protected_node_port(&self, port: NonZeroU16, protocol: Protocol) -> bool {
        protocol != Protocol::Sctp && self.ports.contains(&port.get())
    }

    pub(super) fn is_node_address(&self, ip: &IpAddr) -> bool {
        self.node_addresses.contains_key(ip)
    }

    /// Whether a Service may have this port at this address of a Node, where it is that of a node port as well.
    pub(super) fn shares_node_port(
        &self,
        ip: IpAddr,
        kind: ExternalKind,
        port: NonZeroU16,
        protocol: Protocol,
    ) -> bool {
        // At an address of a Node, the age of a claim does not decide.
        let owner = || self.owner(ip, kind, Age::Unknown);
        let is_protected = || owner().is_some() || self.port_owner(ip, kind, port, protocol).is_some();
        self.is_node_address(&ip) && !is_protected()
    }

    /// All addresses of the Nodes that have an address, and their names.
    fn siblings<'a>(&'a self, ip: &IpAddr) -> impl Iterator<Item = (IpAddr, &'a Arc<str>)> {
        let nodes = self.node_addresses.get(ip).into_iter().flatten();
        nodes.flat_map(|node| self.addresses_of.get(node).into_iter().flatten().map(move |ip| (*ip, node)))
    }
}

fn protects_pods(cidr: &IpNet) -> bool {
    let (v4, v6) = MIN_POD_PREFIX;
    cidr.prefix_len() >= if cidr.addr().is_ipv4() { v4 } else { v6 }
}
