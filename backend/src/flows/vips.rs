//! The VIPs with which flows are compared.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use netlink::conntrack::{Flow, FlowProtocol};
use proto::model::{IpFamily, PerFamily, Protocol};

use crate::{
    ServicePortState,
    dataplane::{Vip, vips},
};

/// What flows to VIPs are compared with, by VIP, in one family.
#[derive(Debug)]
pub(super) struct FlowVips<T> {
    vips: HashMap<Vip, T>,
    /// The addresses that serve node ports, of those of the Node object and of the node's interfaces.
    addresses: HashSet<IpAddr>,
}

/// How many flows may still be handled in one pass: of a namespace, and in all.
#[derive(Debug, Default)]
pub(super) struct PassLimit {
    of_namespace: BTreeMap<Arc<str>, usize>,
    all: usize,
}

impl<T> Default for FlowVips<T> {
    fn default() -> Self {
        Self { vips: HashMap::new(), addresses: HashSet::new() }
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

    /// That of the VIP to which a flow goes.
    pub(super) fn get(&self, flow: &Flow) -> Option<&T> {
        let [vip, node_port] = self.candidates(flow);
        vip.or(node_port)
    }

    /// Those of the address and port to which a flow goes: of a VIP with this address, and of a node port.
    pub(super) fn candidates(&self, flow: &Flow) -> [Option<&T>; 2] {
        let protocol = match flow.protocol {
            FlowProtocol::Tcp => Protocol::Tcp,
            FlowProtocol::Udp => Protocol::Udp,
        };
        let address = flow.original.destination.ip();
        let port = flow.original.destination.port();
        let vip = self.vips.get(&Vip::AddressPort { address, port, protocol });
        let node_port = self.vips.get(&Vip::NodePort { port, protocol });
        [vip, node_port.filter(|_| self.addresses.contains(&address))]
    }
}

impl PassLimit {
    pub(super) const OF_NAMESPACE: usize = 1024;
    pub(super) const ALL: usize = 4096;

    /// Whether another flow of a namespace is handled, which then counts.
    pub(super) fn admits(&mut self, namespace: &Arc<str>) -> bool {
        let count = self.of_namespace.entry(namespace.clone()).or_default();
        let admits = self.all < Self::ALL && *count < Self::OF_NAMESPACE;
        *count += usize::from(admits);
        self.all += usize::from(admits);
        admits
    }
}

/// The VIPs of a service port in one family, sorted.
pub(super) fn vips_of(service: &ServicePortState, family: IpFamily) -> Vec<Vip> {
    vips(&service.port, family).into_iter().map(|(vip, _)| vip).collect()
}
