//! Who may use a load-balancer IP: source ranges, without overlaps.
//!
//! The kernel refuses a range that begins or ends inside another one, but not one that encloses it, and deletes by the
//! first address. So ranges of one VIP are merged before they become elements, and what is deleted is exactly what was
//! added.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use backend::dataplane::allowed_sources;
use ipnet::IpNet;
use proto::model::ServicePort;

use crate::element::Range;

/// Who may use a VIP of a service port, sorted; `None`: everybody. `node`: the node's own addresses.
pub(super) fn allowed(port: &ServicePort, vip: IpAddr, node: &[IpAddr]) -> Option<Box<[Range]>> {
    let cidrs = allowed_sources(port, vip, node)?;
    Some(merged(cidrs.iter().map(Range::from).collect()).into())
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
