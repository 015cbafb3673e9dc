//! Which UDP flows that the kernel remembers lead nowhere, or to where they should not lead any more.
//!
//! The kernel chooses an endpoint for the first packet of a flow only, and for UDP a flow lasts as long as packets come. So a
//! client that keeps its socket goes on talking to an endpoint that is gone, or to a VIP from before it was one, until
//! somebody deletes the flow. (A TCP connection ends by itself, and SCTP too.)
//!
//! ```text
//!   NodeState ──▶ Vips: VIP ──▶ allowed endpoints          flow: client ──▶ VIP
//!                            is_stale(flow)  ◀── compare ──      endpoint ──▶ client
//! ```

mod sweep;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use netlink::conntrack::UdpFlow;
use proto::model::{IpFamily, PerFamily, PoolClass, Protocol, ServicePortKey};

pub(crate) use sweep::Sweeper;
#[cfg(any(test, feature = "testing"))]
pub(crate) use sweep::sweep;

use crate::{NodeState, ServicePortState};

/// Whether the flows that the kernel remembers are looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConntrackCleanup {
    /// They stay as they are.
    Disabled,
    /// After every change of a UDP service port, and after every reconciliation, UDP flows to VIPs of which the answers would
    /// come from elsewhere than from an endpoint are deleted. The next packet makes a new flow.
    Enabled,
}

/// The ways in of all UDP service ports in one family.
#[derive(Debug, Default)]
pub(crate) struct Vips {
    /// Cluster IPs, external IPs and load-balancer IPs, each with its port.
    vips: HashMap<SocketAddr, Endpoints>,
    node_ports: HashMap<u16, Endpoints>,
    /// Where node ports are: what the cluster knows of, and what the node's interfaces have besides.
    addresses: HashSet<IpAddr>,
}

/// Where a flow may lead; sorted. Shared by all VIPs of a service port.
type Endpoints = Arc<[SocketAddr]>;

impl Vips {
    /// Those of a state, but not of the service ports in `failed`: what the kernel does with their packets is not known.
    pub(crate) fn of(state: &NodeState, failed: &[&ServicePortKey]) -> PerFamily<Self> {
        let mut both = PerFamily::<Self>::default();
        let udp = state.service_ports().iter().filter(|(key, _)| key.protocol == Protocol::Udp);
        // In key order, in which the first of two that claim the same is served.
        for (_, service) in udp.filter(|(key, _)| !failed.contains(key)) {
            for family in IpFamily::ALL {
                both[family].add(service, family);
            }
        }
        for address in &state.node().addresses {
            both[IpFamily::of(address)].addresses.insert(*address);
        }
        both
    }

    /// Whether no flow can be stale.
    pub(crate) fn is_empty(&self) -> bool {
        self.vips.is_empty() && self.node_ports.is_empty()
    }

    /// Whether the flow goes to one of these VIPs, and its answers come from no endpoint of it. That is so also for a flow that
    /// was never sent anywhere else, because it was there before the service, and for all flows of a service without endpoints.
    pub(crate) fn is_stale(&self, flow: &UdpFlow) -> bool {
        let to = flow.original.destination;
        let node_port = || self.node_ports.get(&to.port()).filter(|_| self.addresses.contains(&to.ip()));
        let allowed = self.vips.get(&to).or_else(node_port);
        allowed.is_some_and(|allowed| allowed.binary_search(&flow.reply.source).is_err())
    }

    /// Node ports are at these addresses too.
    pub(crate) fn add_addresses(&mut self, addresses: &HashSet<IpAddr>) {
        self.addresses.extend(addresses);
    }

    fn add(&mut self, service: &ServicePortState, family: IpFamily) {
        let port = &service.port;
        let endpoints = allowed(service, family);
        let external = port.external_ips.iter().chain(&port.load_balancer_ips);
        let external = external.filter(|address| IpFamily::of(address) == family);
        for address in port.cluster_ips[family].iter().chain(external) {
            let vip = SocketAddr::new(*address, port.port.get());
            self.vips.entry(vip).or_insert_with(|| endpoints.clone());
        }
        if let Some(node_port) = port.node_port {
            self.node_ports.entry(node_port.get()).or_insert(endpoints);
        }
    }
}

/// All endpoints of both pools, terminating ones too: a flow that was made under another policy may stay.
fn allowed(service: &ServicePortState, family: IpFamily) -> Endpoints {
    let pools = [PoolClass::Cluster, PoolClass::Local].map(|class| service.pool(class, family));
    let endpoints = pools.into_iter().flat_map(|pool| pool.iter());
    let mut all: Vec<_> = endpoints.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get())).collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

#[cfg(test)]
mod tests;
