//! The listing of `fairlead services --kernel`: virtual servers, the VIPs that lead to them, and destinations with
//! connection counts.
//!
//! ```text
//!   objects (sets, virtual servers, weights) ─┐
//!   connections of each destination         ─┴─▶ view ─▶ VirtualServer { vips, destinations }
//! ```

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backend::dataplane::Vip;
use netlink::{ipset::IpsetEntry, ipvs::VirtualServerKey};
use proto::model::{IpFamily, Protocol};

use crate::{
    kernel::{ConnectionCounts, Connections},
    mark::Mark,
    object::{Object, Value, Weight, protocol},
    plan::{Objects, destinations},
    set::{SetContent, SetId},
};

/// An observed virtual server of this backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Its protocol.
    pub protocol: Protocol,
    /// The packets that it receives: packets to a VIP and its port, or to an address of the node and a node port; or
    /// packets with a mark, which our sets give them.
    pub at: VirtualServerKey,
    /// The VIPs in our sets that lead to it; empty for a virtual server at an address.
    pub vips: BTreeSet<Vip>,
    /// The kernel's name of its scheduler, such as `rr`.
    pub scheduler: Arc<str>,
    /// Its destinations.
    pub destinations: Vec<Destination>,
}

/// A destination of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The endpoint.
    pub address: SocketAddr,
    /// Its share of the new connections; 0 for none.
    pub weight: u32,
    /// Established connections.
    pub active: u32,
    /// Connections that are being opened or closed, or were closed recently; all UDP flows.
    pub inactive: u32,
    /// For a destination that drains: when it is deleted at the latest.
    pub draining_until: Option<SystemTime>,
}

/// The virtual servers among these objects, in the order of their keys.
pub(crate) fn view(objects: &Objects, connections: &ConnectionCounts) -> Vec<VirtualServer> {
    let mut vips_of_marks = vips_of_marks(objects);
    let mut servers = Vec::new();
    for (object, value) in objects {
        let (Object::Server(server), Value::Scheduling(scheduling)) = (object, value) else { continue };
        let Some(protocol) = protocol(server) else { continue };

        let mut vips = BTreeSet::new();
        if let VirtualServerKey::FwMark(family, raw) = server
            && let Some(mark) = Mark::from_raw(*raw)
        {
            vips = vips_of_marks.remove(&(*family, mark)).unwrap_or_default();
        }
        let mut of_server = Vec::new();
        for (object, value) in destinations(objects, *server) {
            if let (Object::Destination(_, address), Value::Weight(weight)) = (object, value) {
                of_server.push(destination(*address, *weight, connections.get(&(*server, *address))));
            }
        }
        servers.push(VirtualServer {
            protocol,
            at: *server,
            vips,
            scheduler: scheduling.scheduler.clone(),
            destinations: of_server,
        });
    }
    servers
}

/// The VIPs that lead to each mark.
fn vips_of_marks(objects: &Objects) -> BTreeMap<(IpFamily, Mark), BTreeSet<Vip>> {
    let mut vips: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (object, value) in objects {
        if let (Object::SetEntry(set, entry), Value::Mark(mark)) = (object, value)
            && let Some(vip) = vip(*set, entry)
        {
            vips.entry((set.family, *mark)).or_default().insert(vip);
        }
    }
    vips
}

/// The VIP of a set entry that marks packets. The two entries of a node port result in the same VIP.
fn vip(set: SetId, entry: &IpsetEntry) -> Option<Vip> {
    let port = entry.port?;
    let protocol = entry.protocol.and_then(Protocol::from_number)?;
    match set.content {
        SetContent::Vips | SetContent::VipsInside => Some(Vip::AddressPort { address: entry.ip?, port, protocol }),
        SetContent::NodePorts | SetContent::NodePortsInside => Some(Vip::NodePort { port, protocol }),
        SetContent::Hairpin
        | SetContent::Returning
        | SetContent::Sources
        | SetContent::Restricted
        | SetContent::Addresses => None,
    }
}

fn destination(address: SocketAddr, weight: Weight, connections: Option<&Connections>) -> Destination {
    let (weight, draining_until) = match weight {
        Weight::Of(weight) => (weight, None),
        Weight::Draining(until) => (0, Some(UNIX_EPOCH + Duration::from_secs(until.into()))),
    };
    let Connections { active, inactive } = connections.copied().unwrap_or_default();
    Destination { address, weight, active, inactive, draining_until }
}
