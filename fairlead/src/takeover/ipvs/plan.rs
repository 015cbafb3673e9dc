//! Which virtual servers are kube-proxy's, and which of them have connections.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use netlink::{
    ipset,
    ipvs::{Destination, VirtualServerKey},
};
use proto::model::{IpFamily, Protocol};

/// Why a virtual server is known to be of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// Its address is on the device.
    OnDevice,
    /// Its address is another address of the node, and its port is in a set of kube-proxy.
    NodePort,
}

/// A virtual server of kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubeProxyServer {
    pub(crate) service: VirtualServerKey,
    pub(crate) kind: ServerKind,
    pub(crate) destinations: Vec<Destination>,
}

/// Ports of the node that kube-proxy forwards.
#[derive(Debug)]
pub(super) struct NodePorts {
    /// The node's addresses, without those of the device.
    local: HashSet<IpAddr>,
    sockets: HashSet<(Protocol, SocketAddr)>,
}

/// The kind of a virtual server; `None` for one of another program.
pub(super) fn kind(
    service: &VirtualServerKey,
    device: Option<&HashSet<IpAddr>>,
    node_ports: &NodePorts,
) -> Option<ServerKind> {
    // kube-proxy creates none for marks.
    let &VirtualServerKey::Address(protocol, address) = service else { return None };
    if device.is_some_and(|addresses| addresses.contains(&address.ip())) {
        return Some(ServerKind::OnDevice);
    }
    if node_ports.sockets.contains(&(protocol, address)) { Some(ServerKind::NodePort) } else { None }
}

impl NodePorts {
    pub(super) fn new(local: HashSet<IpAddr>) -> Self {
        Self { local, sockets: HashSet::new() }
    }

    /// Adds the entries of one of kube-proxy's sets: ports, or for SCTP addresses with ports.
    pub(super) fn extend(&mut self, family: IpFamily, protocol: Protocol, entries: &[ipset::IpsetEntry]) {
        for entry in entries {
            let Some(port) = entry.port else { continue };
            let is_in_entry = |ip: &&IpAddr| IpFamily::of(ip) == family && entry.ip.is_none_or(|of| of == **ip);
            let addresses = self.local.iter().filter(is_in_entry);
            self.sockets.extend(addresses.map(|ip| (protocol, SocketAddr::new(*ip, port))));
        }
    }

    /// Removes the ports in one of Fairlead's sets, at all addresses.
    pub(super) fn remove(&mut self, entries: &[ipset::IpsetEntry]) {
        for ipset::IpsetEntry { ip, protocol, port, .. } in entries {
            let (Some(ip), Some(protocol), Some(port)) = (ip, protocol, port) else { continue };
            self.sockets.retain(|(of, socket)| {
                (*of as u8, socket.port(), socket.is_ipv4()) != (*protocol, *port, ip.is_ipv4())
            });
        }
    }
}

impl KubeProxyServer {
    pub(super) fn is_on_node_port(&self) -> bool {
        self.kind == ServerKind::NodePort
    }

    /// The connections that its deletion would close. One that a side has closed counts as inactive, but may still
    /// carry data.
    pub(super) fn connections(&self) -> u64 {
        match self.service {
            // Their conntrack entries are deleted.
            VirtualServerKey::Address(Protocol::Udp, _) => 0,
            _ => self.destinations.iter().map(|of| u64::from(of.active) + u64::from(of.inactive)).sum(),
        }
    }
}
