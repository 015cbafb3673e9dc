//! The sources that may use a load-balancer IP: `spec.loadBalancerSourceRanges`.

use std::net::IpAddr;

use ipnet::IpNet;
use proto::model::{IpFamily, ServicePort};

use super::cidrs_of_family;

/// The sources that may use a VIP of a service port, without duplicates; `None`: all. `node`: the node's own addresses.
///
/// If an address of the node is allowed, the VIP itself is allowed as a source too: packets that the node sends to an
/// address which its load balancer has assigned to the node have it as their source.
#[must_use]
pub fn allowed_sources(port: &ServicePort, vip: IpAddr, node: &[IpAddr]) -> Option<Vec<IpNet>> {
    if port.source_ranges.is_empty() || !port.load_balancer_ips.contains(&vip) {
        return None;
    }
    let mut cidrs = cidrs_of_family(&port.source_ranges, IpFamily::of(&vip));
    if cidrs.is_empty() || cidrs.iter().any(|cidr| cidr.prefix_len() == 0) {
        return None;
    }
    let itself = IpNet::from(vip);
    if node.iter().any(|address| cidrs.iter().any(|cidr| cidr.contains(address))) && !cidrs.contains(&itself) {
        cidrs.push(itself);
    }
    Some(cidrs)
}
