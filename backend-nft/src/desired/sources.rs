//! Who may use a load-balancer IP: source ranges, without overlaps.
//!
//! The kernel refuses a range that begins or ends inside another one, but not one that encloses it, and deletes by the first
//! address. So ranges of one VIP are merged before they become elements, and what is deleted is exactly what was added.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;
use proto::model::{Family, ServicePort};

use crate::{element::Range, options::of_family};

/// Who may use a VIP of a service port, sorted; `None`: everybody. `node`: the node's own addresses.
///
/// A node that may use it may do so with the VIP for its source too: that is how packets look that the node sends to an address which
/// its load balancer has put on the node itself.
pub(super) fn allowed(port: &ServicePort, vip: IpAddr, node: &[IpAddr]) -> Option<Box<[Range]>> {
    if port.source_ranges.is_empty() || !port.load_balancer_ips.contains(&vip) {
        return None;
    }
    let cidrs = of_family(&port.source_ranges, Family::of(&vip));
    if cidrs.is_empty() || cidrs.iter().any(|cidr| cidr.prefix_len() == 0) {
        return None;
    }
    let mut ranges: Vec<Range> = cidrs.iter().map(Range::from).collect();
    if node.iter().any(|address| cidrs.iter().any(|cidr| cidr.contains(address))) {
        ranges.push(Range { first: vip, last: vip });
    }
    Some(merged(ranges).into())
}

/// The same addresses in as few ranges as possible, sorted. All are of one family.
fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let joined = next.first <= before.last || successor(before.last) == Some(next.first);
        if joined {
            before.last = before.last.max(next.last);
        }
        joined
    });
    ranges
}

/// The next address, unless it was the last.
fn successor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

impl From<&IpNet> for Range {
    fn from(cidr: &IpNet) -> Self {
        Self { first: cidr.network(), last: cidr.broadcast() }
    }
}
