//! The source ranges of load-balancer IPs, without overlaps.
//!
//! The kernel rejects a range that begins or ends inside another one, but not one that encloses another one, and
//! deletes a range by its first address. The ranges of one VIP are therefore merged before they become elements, so
//! that exactly the range that was added is deleted.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use backend::dataplane::allowed_sources;
use ipnet::IpNet;
use proto::model::ServicePort;

use crate::element::AddressRange;

/// The sources that may use a VIP of a service port, sorted; `None`: all. `node`: the addresses of the node.
pub(super) fn allowed(port: &ServicePort, vip: IpAddr, node: &[IpAddr]) -> Option<Box<[AddressRange]>> {
    let cidrs = allowed_sources(port, vip, node)?;
    Some(merged(cidrs.iter().map(AddressRange::from).collect()).into())
}

/// The same addresses in as few ranges as possible, sorted. All have the same family.
fn merged(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
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

/// The next address; `None` after the last one.
fn successor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

impl From<&IpNet> for AddressRange {
    fn from(cidr: &IpNet) -> Self {
        Self { first: cidr.network(), last: cidr.broadcast() }
    }
}
