//! Which virtual servers are kube-proxy's, and which of them have connections.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use netlink::{
    ipset,
    ipvs::{self, Destination, IpvsProtocol, VirtualServerKey},
};

use crate::Family;

/// Where a virtual server of kube-proxy's is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its address is on the device.
    Device,
    /// Its address is another one of the node, its port in a set.
    NodePort,
}

/// A virtual server of kube-proxy's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) service: VirtualServerKey,
    pub(super) place: Place,
    pub(super) destinations: Vec<Destination>,
}

/// Ports of the node that kube-proxy forwards.
#[derive(Debug)]
pub(super) struct NodePorts {
    /// The node's addresses, without those of the device.
    local: HashSet<IpAddr>,
    ports: HashSet<(Family, IpvsProtocol, u16)>,
    sockets: HashSet<(IpvsProtocol, SocketAddr)>,
}

/// Where kube-proxy has it; `None` for one of somebody else's.
pub(super) fn place(
    service: &VirtualServerKey,
    device: Option<&HashSet<IpAddr>>,
    node_ports: &NodePorts,
) -> Option<Place> {
    // kube-proxy makes none for marks.
    let &VirtualServerKey::Address(protocol, address) = service else { return None };
    if device.is_some_and(|addresses| addresses.contains(&address.ip())) {
        return Some(Place::Device);
    }
    node_ports.contain(protocol, address).then_some(Place::NodePort)
}

// === impl NodePorts ===

impl NodePorts {
    pub(super) fn new(local: HashSet<IpAddr>) -> Self {
        Self { local, ports: HashSet::new(), sockets: HashSet::new() }
    }

    /// Adds what is in one of kube-proxy's sets: ports, or for SCTP addresses with ports.
    pub(super) fn extend(&mut self, family: Family, protocol: IpvsProtocol, entries: &[ipset::IpsetEntry]) {
        for entry in entries {
            let Some(port) = entry.port else { continue };
            if let Some(ip) = entry.ip {
                self.sockets.insert((protocol, SocketAddr::new(ip, port)));
            } else {
                self.ports.insert((family, protocol, port));
            }
        }
    }

    /// Leaves out ports that are in one of Fairlead's sets, whatever address they have there.
    pub(super) fn retain_others(&mut self, entries: &[ipset::IpsetEntry]) {
        for ipset::IpsetEntry { ip, protocol, port, .. } in entries {
            let (Some(ip), Some(protocol), Some(port)) = (ip, protocol, port) else { continue };
            let family = Family::of(*ip);
            let is_it = |of: IpvsProtocol, other: u16| of.number() == *protocol && other == *port;
            self.ports.retain(|(of, protocol, port)| *of != family || !is_it(*protocol, *port));
            self.sockets
                .retain(|(protocol, socket)| Family::of(socket.ip()) != family || !is_it(*protocol, socket.port()));
        }
    }

    fn contain(&self, protocol: IpvsProtocol, address: SocketAddr) -> bool {
        let is_in_a_set = self.sockets.contains(&(protocol, address))
            || self.ports.contains(&(Family::of(address.ip()), protocol, address.port()));
        is_in_a_set && self.local.contains(&address.ip())
    }
}

// === impl Server ===

impl Server {
    pub(super) fn family(&self) -> Family {
        match self.service {
            VirtualServerKey::Address(_, address) => Family::of(address.ip()),
            VirtualServerKey::FwMark(netlink::AddressFamily::V4, _) => Family::V4,
            VirtualServerKey::FwMark(netlink::AddressFamily::V6, _) => Family::V6,
        }
    }

    pub(super) fn is_on_node_port(&self) -> bool {
        self.place == Place::NodePort
    }

    /// Those that its deletion would cut. A connection that one side has closed counts as inactive, and may carry data still.
    pub(super) fn connections(&self) -> u64 {
        match self.service {
            // Flows begin anew.
            VirtualServerKey::Address(IpvsProtocol::Udp, _) => 0,
            _ => self.destinations.iter().map(|of| u64::from(of.active) + u64::from(of.inactive)).sum(),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.connections() > 0
    }

    /// Sends no new connections to its destinations.
    pub(super) fn quiesce(&self, ipvs: &mut ipvs::IpvsHandle) -> Result<()> {
        for destination in self.destinations.iter().filter(|destination| destination.weight > 0) {
            match ipvs.set_destination(&self.service, &Destination { weight: 0, ..*destination }) {
                Err(error) if !error.is_not_found() => {
                    return Err(error).with_context(|| format!("keep new connections from {}", self.service));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
