//! To which service port and endpoint of a node's state a conntrack entry belongs. Pure.
//!
//! ```text
//!                  original destination    source of the replies
//!   translated     VIP, or node port       endpoint
//!   arriving       endpoint                the same
//!   arriving       anything else           endpoint, for example behind the hostPort of a network plugin
//! ```

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
};

use backend::{
    NodeState, ServiceName, ServicePortState,
    dataplane::{Vip, vips},
};
use netlink::conntrack::Entry;
use proto::model::{Endpoint, IpFamily, Pool, PoolClass, Protocol, TrafficPolicy};

/// The service ports of a state, by VIP and by endpoint.
#[derive(Debug)]
pub(super) struct ServiceIndex<'a> {
    service_ports: Vec<&'a ServicePortState>,
    /// Of two service ports with the same VIP the first one in key order serves it.
    vips: HashMap<Vip, ServicePortId>,
    /// The addresses of the node, at which node ports are served.
    node_addresses: HashSet<IpAddr>,
    /// The endpoints on this node, with the first service port that has each. Endpoints that end are among them only if
    /// no other endpoint on this node is ready: the node does not know them otherwise.
    local: HashMap<(Protocol, SocketAddr), ServicePortId>,
    /// The only service ports whose connections are counted.
    selected: Option<&'a ServiceName>,
}

/// A service port of the index, in key order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ServicePortId(usize);

/// Where a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This node translates it from a VIP of a service port.
    Translated { service_port: ServicePortId, endpoint: SocketAddr },
    /// It arrives at an endpoint of this node without a VIP, because another node or another program has translated it,
    /// or because its client has connected to the pod itself.
    Arriving { service_port: ServicePortId, endpoint: SocketAddr },
}

impl<'a> ServiceIndex<'a> {
    pub(super) fn new(
        state: &'a NodeState,
        selected: Option<&'a ServiceName>,
        mut node_addresses: HashSet<IpAddr>,
    ) -> Self {
        node_addresses.extend(&state.node().addresses);
        let mut index =
            Self { service_ports: Vec::new(), vips: HashMap::new(), node_addresses, local: HashMap::new(), selected };
        for service in state.service_ports().values() {
            index.add(service);
        }
        index
    }

    fn add(&mut self, service: &'a ServicePortState) {
        let id = ServicePortId(self.service_ports.len());
        self.service_ports.push(service);
        for family in IpFamily::ALL {
            for (vip, _) in vips(&service.port, family) {
                self.vips.entry(vip).or_insert(id);
            }
            // An endpoint of several Services is that of the selected one.
            if self.is_selected(service) {
                for endpoint in service.local[family].iter() {
                    self.local.entry((service.port.key.protocol, socket_address(endpoint))).or_insert(id);
                }
            }
        }
    }

    fn is_selected(&self, service: &ServicePortState) -> bool {
        self.selected.is_none_or(|selected| selected.contains(&service.port.key))
    }

    /// `None` if the entry belongs to no selected service port.
    pub(super) fn place(&self, entry: &Entry) -> Option<Place> {
        let destination = entry.original.destination;
        let endpoint = entry.reply.source;
        let of_vip = if endpoint == destination { None } else { self.at_vip(entry.protocol, destination) };
        match of_vip {
            Some(id) if self.is_selected(self.service_port(id)) => {
                Some(Place::Translated { service_port: id, endpoint })
            }
            Some(_) => None,
            None => {
                let id = *self.local.get(&(entry.protocol, endpoint))?;
                Some(Place::Arriving { service_port: id, endpoint })
            }
        }
    }

    /// The service port that serves a destination.
    fn at_vip(&self, protocol: Protocol, destination: SocketAddr) -> Option<ServicePortId> {
        let address = destination.ip();
        let port = destination.port();
        let of_vip = self.vips.get(&Vip::AddressPort { address, port, protocol }).copied();
        if of_vip.is_some() || !self.node_addresses.contains(&address) {
            return of_vip;
        }
        self.vips.get(&Vip::NodePort { port, protocol }).copied()
    }

    pub(super) fn service_port(&self, id: ServicePortId) -> &'a ServicePortState {
        self.service_ports[id.0]
    }
}

/// The endpoints among which all new connections of a service port are shared. `None` if its traffic policies differ:
/// connections from outside then have other endpoints than those from inside.
pub(super) fn shared_pool(service: &ServicePortState, family: IpFamily) -> Option<&Pool> {
    let port = &service.port;
    if port.externally_accessible() && port.external_policy != port.internal_policy {
        return None;
    }
    let class = match port.internal_policy {
        TrafficPolicy::Cluster => PoolClass::Cluster,
        TrafficPolicy::Local => PoolClass::Local,
    };
    Some(service.pool(class, family))
}

/// Whether new connections of a service port may go to an endpoint. The pool of policy Local, which every node has,
/// counts only where that policy applies: it has an endpoint that ends if the node has no other one.
pub(super) fn takes_new_connections(service: &ServicePortState, endpoint: SocketAddr) -> bool {
    let family = IpFamily::of(&endpoint.ip());
    let port = &service.port;
    let is_external_local = port.externally_accessible() && port.external_policy == TrafficPolicy::Local;
    let uses_local = port.internal_policy == TrafficPolicy::Local || is_external_local;

    contains(service.pool(PoolClass::Cluster, family), endpoint)
        || (uses_local && contains(service.pool(PoolClass::Local, family), endpoint))
}

pub(super) fn contains(pool: &Pool, endpoint: SocketAddr) -> bool {
    let port = NonZeroU16::new(endpoint.port());
    port.is_some_and(|port| pool.contains(&Endpoint::new(endpoint.ip(), port)))
}

pub(super) fn socket_address(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address, endpoint.port.get())
}
