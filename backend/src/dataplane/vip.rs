//! The VIPs of a service port, and the sources that may use them (`spec.loadBalancerSourceRanges`).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use proto::model::{IpFamily, Protocol, ServicePort};

use super::options::cidrs_of_family;

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
    if let Some(address) = port.cluster_ips[family] {
        vips.push((vip(address), VipKind::ClusterIp));
        if let Some(node_port) = port.node_port {
            vips.push((Vip::NodePort { port: node_port.get(), protocol }, VipKind::NodePort));
        }
    }
    vips.extend(port.external_policy_ips(family).map(|address| (vip(address), VipKind::External)));

    vips.sort_unstable();
    vips.dedup_by_key(|(vip, _)| *vip);
    vips
}

/// The VIPs of a service port in both families.
pub(crate) fn all_vips(port: &ServicePort) -> impl Iterator<Item = (IpFamily, Vip)> {
    IpFamily::ALL.into_iter().flat_map(move |family| vips(port, family).into_iter().map(move |(vip, _)| (family, vip)))
}

/// The sources that may use a VIP of a service port, without duplicates; `None`: all. `node` are the node's own
/// addresses.
///
/// If an address of the node is allowed, the VIP itself is allowed as a source too: packets that the node sends to an
/// address which its load balancer has assigned to the node have it as their source.
#[must_use]
pub fn allowed_sources(port: &ServicePort, vip: IpAddr, node: &[IpAddr]) -> Option<Vec<IpNet>> {
    if !port.load_balancer_ips.contains(&vip) {
        return None;
    }
    let mut cidrs = source_ranges(port, IpFamily::of(&vip))?;
    let itself = IpNet::from(vip);
    if contains_any(&cidrs, node) && !cidrs.contains(&itself) {
        cidrs.push(itself);
    }
    Some(cidrs)
}

/// The sources that may use any load-balancer IP of a service port in a family; `None`: all. One list for all of them:
/// as [`allowed_sources`], but if an address of the node is allowed, all load-balancer IPs are.
#[must_use]
pub fn allowed_sources_of_family(port: &ServicePort, family: IpFamily, node: &[IpAddr]) -> Option<Vec<IpNet>> {
    let mut cidrs = source_ranges(port, family)?;
    if contains_any(&cidrs, node) {
        cidrs.extend(port.load_balancer_ips.iter().filter(|vip| IpFamily::of(vip) == family).copied().map(IpNet::from));
    }
    Some(cidrs)
}

/// The source ranges of a family; `None`: all addresses.
fn source_ranges(port: &ServicePort, family: IpFamily) -> Option<Vec<IpNet>> {
    let cidrs = cidrs_of_family(&port.source_ranges, family);
    let is_restricted = !cidrs.is_empty() && cidrs.iter().all(|cidr| cidr.prefix_len() > 0);
    if is_restricted { Some(cidrs) } else { None }
}

fn contains_any(cidrs: &[IpNet], addresses: &[IpAddr]) -> bool {
    addresses.iter().any(|address| cidrs.iter().any(|cidr| cidr.contains(address)))
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
