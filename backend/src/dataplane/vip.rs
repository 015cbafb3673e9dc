//! The VIPs of a service port.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use proto::model::{IpFamily, Protocol, ServicePort};

/// The destination of a packet to a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vip {
    /// A port at an address of the Service.
    AddressPort {
        /// A cluster IP, external IP or load-balancer IP.
        address: IpAddr,
        /// The port at the address.
        port: u16,
        /// The protocol.
        protocol: Protocol,
    },
    /// A port at the node's own addresses.
    NodePort {
        /// The node port.
        port: u16,
        /// The protocol.
        protocol: Protocol,
    },
    /// An address of a Service, with any port and protocol. No service port owns it; backends use it for rules that
    /// concern the whole address.
    Address(IpAddr),
}

/// The kind of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VipKind {
    /// Cluster IPs.
    ClusterIp,
    /// External IPs and load-balancer IPs.
    External,
    /// Node ports.
    NodePort,
}

/// The VIPs of a service port in one family, sorted and distinct.
///
/// A node port exists in the families of the Service's cluster IPs. An external VIP has the family of its address.
#[must_use]
pub fn vips(port: &ServicePort, family: IpFamily) -> Vec<(Vip, VipKind)> {
    let protocol = port.key.protocol;
    let vip = |address| Vip::AddressPort { address, port: port.port.get(), protocol };
    let mut vips = Vec::with_capacity(2);
    vips.extend(port.cluster_ips[family].map(|address| (vip(address), VipKind::ClusterIp)));
    vips.extend(port.external_policy_ips(family).map(|address| (vip(address), VipKind::External)));
    if port.cluster_ips[family].is_some()
        && let Some(node_port) = port.node_port
    {
        vips.push((Vip::NodePort { port: node_port.get(), protocol }, VipKind::NodePort));
    }
    vips.sort_unstable();
    vips.dedup_by_key(|(vip, _)| *vip);
    vips
}

impl fmt::Display for Vip {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp` or `10.96.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressPort { address, port, protocol } => {
                write!(f, "{}/{}", SocketAddr::new(*address, *port), protocol.lower())
            }
            Self::NodePort { port, protocol } => write!(f, "node port {port}/{}", protocol.lower()),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}
