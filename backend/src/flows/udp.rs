//! Which UDP flows in the conntrack table are stale: they lead to no endpoint of their VIP, or a Service has translated
//! them whose VIP is withdrawn.
//!
//! The kernel chooses an endpoint for the first packet of a flow only, and a UDP flow lasts as long as packets arrive.
//! So a client that keeps its socket still sends to a removed endpoint, or to the address itself if the flow is older
//! than the VIP, until the flow is deleted. SCTP connections end by themselves, TCP connections too, or by `resets`.
//!
//! A connection whose SYN has not been answered is half-open: the SYN is repeated, to the same endpoint or, if it is
//! older than the VIP, to the address itself. Half-open connections to endpoints that departed, and those that are not
//! translated, are deleted, so that the next SYN is translated anew.
//!
//! ```text
//!   service ports ────▶ UdpVips: VIP ──▶ targets            flow: client ──▶ VIP
//!                               is_stale(flow)  ◀── compare ──    endpoint ──▶ client
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use netlink::conntrack::{Flow, FlowProtocol};
use proto::{
    model::{IpFamily, PerFamily, Protocol, ServicePortKey},
    state::ServicePortChange,
};

use crate::{
    NodeState, ServicePortState,
    dataplane::{Vip, vips},
};

/// Where the flows to a VIP may lead.
#[derive(Clone, Debug)]
pub(crate) enum FlowTargets {
    /// To these endpoints, sorted. Shared by all VIPs of a service port.
    Endpoints(Arc<[SocketAddr]>),
    /// To the address itself: no service port has the VIP any more.
    Untranslated,
}

/// The VIPs that service ports have lost, each with the last one that had it.
pub(crate) type WithdrawnVips = BTreeMap<(IpFamily, Vip), ServicePortKey>;

/// What flows to VIPs are compared with, by VIP, in one family.
#[derive(Debug)]
pub(crate) struct FlowVips<T> {
    vips: HashMap<Vip, T>,
    /// The addresses that serve node ports, of those of the Node object and of the node's interfaces.
    addresses: HashSet<IpAddr>,
}

/// The VIPs of all UDP service ports in one family, and those that were withdrawn.
pub(crate) type UdpVips = FlowVips<FlowTargets>;

impl<T> Default for FlowVips<T> {
    fn default() -> Self {
        Self { vips: HashMap::new(), addresses: HashSet::new() }
    }
}

impl<T: Clone> FlowVips<T> {
    /// The VIPs of service ports in key order: of two with the same VIP the first one is served.
    pub(crate) fn of_service_ports<'a>(
        service_ports: impl Iterator<Item = &'a PerFamily<(Vec<Vip>, T)>>,
        node_addresses: &[IpAddr],
    ) -> PerFamily<Self>
    where
        T: 'a,
    {
        let mut both = PerFamily::<Self>::default();
        for service_port in service_ports {
            for (family, (vips, value)) in service_port.iter() {
                for vip in vips {
                    both[family].vips.entry(*vip).or_insert_with(|| value.clone());
                }
            }
        }
        for address in node_addresses {
            both[IpFamily::of(address)].addresses.insert(*address);
        }
        both
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.vips.is_empty()
    }

    /// Adds addresses that serve node ports.
    pub(crate) fn add_addresses(&mut self, addresses: &HashSet<IpAddr>) {
        self.addresses.extend(addresses);
    }

    /// That of the VIP to which a flow goes.
    pub(crate) fn get(&self, flow: &Flow) -> Option<&T> {
        let [vip, node_port] = self.candidates(flow);
        vip.or(node_port)
    }

    /// Those of the address and port to which a flow goes: of a VIP with this address, and of a node port.
    fn candidates(&self, flow: &Flow) -> [Option<&T>; 2] {
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

impl UdpVips {
    /// The VIPs of the UDP service ports of a state, `except` for some, and those that were withdrawn, unless another
    /// service port has them. `node_addresses`: those of the Node object that serve node ports.
    pub(crate) fn of(
        state: &NodeState,
        node_addresses: &[IpAddr],
        except: &BTreeSet<ServicePortKey>,
        withdrawn: &WithdrawnVips,
    ) -> PerFamily<Self> {
        let is_included = |key: &ServicePortKey| key.protocol == Protocol::Udp && !except.contains(key);
        let included = state.service_ports().iter().filter(|(key, _)| is_included(key));
        let included = included.map(|(_, service)| {
            PerFamily::from_fn(|family| (vips_of(service, family), FlowTargets::Endpoints(allowed(service, family))))
        });
        let included: Vec<_> = included.collect();
        let mut both = Self::of_service_ports(included.iter(), node_addresses);
        for (family, vip) in withdrawn.keys() {
            both[*family].vips.entry(*vip).or_insert(FlowTargets::Untranslated);
        }
        both
    }

    /// Whether the flow goes to one of these VIPs and its replies come from none of its endpoints. This includes flows
    /// that are not translated because they are older than the VIP, and all flows of a service port without endpoints.
    /// To a VIP that was withdrawn, only flows are stale that were translated: others belong to the address itself. A
    /// node port serves such an address at once, if it is one of the node.
    pub(crate) fn is_stale(&self, flow: &Flow) -> bool {
        let targets = match self.candidates(flow) {
            [Some(FlowTargets::Untranslated), Some(node_port)] => Some(node_port),
            [vip, node_port] => vip.or(node_port),
        };
        targets.is_some_and(|targets| match targets {
            FlowTargets::Endpoints(allowed) => allowed.binary_search(&flow.reply.source).is_err(),
            FlowTargets::Untranslated => flow.reply.source != flow.original.destination,
        })
    }
}

/// The VIPs that a service port has lost.
pub(crate) fn lost_vips(change: &ServicePortChange<'_>) -> Vec<(IpFamily, Vip)> {
    let of_family = |family| {
        let [before, after] = [change.before, change.after].map(|service| service.map(|it| vips_of(it, family)));
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        before.into_iter().filter(move |vip| after.binary_search(vip).is_err()).map(move |vip| (family, vip))
    };
    IpFamily::ALL.into_iter().flat_map(of_family).collect()
}

pub(super) fn vips_of(service: &ServicePortState, family: IpFamily) -> Vec<Vip> {
    vips(&service.port, family).into_iter().map(|(vip, _)| vip).collect()
}

/// The endpoints of all pools, including terminating ones: a flow that began under another policy may stay.
fn allowed(service: &ServicePortState, family: IpFamily) -> Arc<[SocketAddr]> {
    let endpoints = service.pools().filter(|(_, of, _)| *of == family).flat_map(|(.., pool)| pool.iter());
    let mut all: Vec<_> = endpoints.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get())).collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

#[cfg(test)]
mod tests;
