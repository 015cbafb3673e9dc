//! The VIPs with which flows are compared.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use netlink::conntrack::Flow;
use proto::model::{IpFamily, PerFamily};

use crate::{
    NodeState, ServicePortState,
    dataplane::{Vip, all_vips, vips},
};

/// The VIPs of one family, each with the value that flows to it are compared with.
#[derive(Debug)]
pub(super) struct FlowVips<T> {
    vips: HashMap<Vip, T>,
    /// The addresses of the Node object and of the node's interfaces that serve node ports.
    addresses: HashSet<IpAddr>,
    /// VIPs of all service ports whose port number is one of the node ports: they take precedence over the node port.
    preferred: HashSet<Vip>,
}

/// How many flows may still be handled in one pass: of a namespace, and in all.
#[derive(Debug, Default)]
pub(super) struct PassLimit {
    of_namespace: BTreeMap<Arc<str>, usize>,
    all: usize,
}

impl<T> Default for FlowVips<T> {
    fn default() -> Self {
        Self { vips: HashMap::new(), addresses: HashSet::new(), preferred: HashSet::new() }
    }
}

impl<T: Clone> FlowVips<T> {
    /// No VIPs, on a node with these addresses.
    pub(super) fn at(node_addresses: &[IpAddr]) -> PerFamily<Self> {
        let mut both = PerFamily::<Self>::default();
        for address in node_addresses {
            both[IpFamily::of(address)].addresses.insert(*address);
        }
        both
    }

    /// Adds VIPs of one service port after the other, in key order: of two with the same VIP the first one is served.
    pub(super) fn add(&mut self, vips: impl IntoIterator<Item = Vip>, value: &T) {
        for vip in vips {
            self.vips.entry(vip).or_insert_with(|| value.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.vips.is_empty()
    }

    /// Adds addresses that serve node ports.
    pub(super) fn add_addresses(&mut self, addresses: &HashSet<IpAddr>) {
        self.addresses.extend(addresses);
    }

    /// Lets VIPs of all service ports of a state take precedence over the node ports, because a program may give the
    /// node any load-balancer IP. Visits all service ports if there is any node port.
    pub(super) fn prefer_vips(&mut self, state: &NodeState) {
        if !self.vips.keys().any(|vip| matches!(vip, Vip::NodePort { .. })) {
            return;
        }
        for (key, service) in state.service_ports().iter() {
            let node_port = Vip::NodePort { port: service.port.port.get(), protocol: key.protocol };
            if self.vips.contains_key(&node_port) {
                self.preferred.extend(all_vips(&service.port).map(|(_, vip)| vip));
            }
        }
    }

    /// The value of the VIP to which a flow goes.
    pub(super) fn get(&self, flow: &Flow) -> Option<&T> {
        let [vip, node_port] = self.candidates(flow);
        vip.or(node_port)
    }

    /// The values of the VIP with the address and port to which a flow goes, and of the node port that serves them.
    pub(super) fn candidates(&self, flow: &Flow) -> [Option<&T>; 2] {
        let protocol = flow.protocol;
        let address = flow.original.destination.ip();
        let port = flow.original.destination.port();
        let vip = Vip::AddressPort { address, port, protocol };

        let mut node_port = self.vips.get(&Vip::NodePort { port, protocol });
        if node_port.is_some() && (!self.addresses.contains(&address) || self.preferred.contains(&vip)) {
            node_port = None;
        }
        [self.vips.get(&vip), node_port]
    }
}

impl PassLimit {
    pub(super) const OF_NAMESPACE: usize = 1024;
    pub(super) const ALL: usize = 4096;

    /// Whether another flow of a namespace is handled, which then counts.
    pub(super) fn admits(&mut self, namespace: &Arc<str>) -> bool {
        let of_namespace = self.of_namespace.entry(namespace.clone()).or_default();
        if self.all >= Self::ALL || *of_namespace >= Self::OF_NAMESPACE {
            return false;
        }
        self.all += 1;
        *of_namespace += 1;
        true
    }
}

/// The VIPs of a service port in one family, sorted.
pub(super) fn vips_of(service: &ServicePortState, family: IpFamily) -> Vec<Vip> {
    vips(&service.port, family).into_iter().map(|(vip, _)| vip).collect()
}
