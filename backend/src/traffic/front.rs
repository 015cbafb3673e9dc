//! What leads to a service port.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use proto::model::{IpFamily, Protocol, ServicePort};

/// What a packet is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Front {
    /// An address and a port.
    Vip {
        /// A cluster IP, external IP or load-balancer IP.
        address: IpAddr,
        /// The port there.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// A port at the node's own addresses.
    NodePort {
        /// The port.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// An address, whatever the port and the protocol: of no service port, but of what is said of a service's address.
    Address(IpAddr),
}

/// How traffic comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VipClass {
    /// Cluster IPs.
    ClusterIp,
    /// External and load-balancer IPs.
    External,
    /// Node ports.
    NodePort,
}

/// Everything that leads to a service port, sorted, each once.
///
/// Node ports answer in the families that the service has: those of its cluster IPs. External VIPs speak for themselves.
#[must_use]
pub fn fronts(port: &ServicePort, family: IpFamily) -> Vec<(Front, VipClass)> {
    let protocol = port.key.protocol;
    let vip = |address| Front::Vip { address, port: port.port.get(), protocol };
    let mut fronts = Vec::with_capacity(2);
    fronts.extend(port.cluster_ips[family].map(|address| (vip(address), VipClass::ClusterIp)));
    fronts.extend(port.external_policy_ips(family).map(|address| (vip(address), VipClass::External)));
    if port.cluster_ips[family].is_some()
        && let Some(node_port) = port.node_port
    {
        fronts.push((Front::NodePort { port: node_port.get(), protocol }, VipClass::NodePort));
    }
    fronts.sort_unstable();
    fronts.dedup_by_key(|(front, _)| *front);
    fronts
}

impl fmt::Display for Front {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp` or `10.96.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip { address, port, protocol } => {
                write!(f, "{}/{}", SocketAddr::new(*address, *port), protocol.lower())
            }
            Self::NodePort { port, protocol } => write!(f, "node port {port}/{}", protocol.lower()),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}
