//! What is there, for people to read: virtual servers, what leads to them, and their destinations with what they carry.
//!
//! ```text
//!   pieces (sets, virtual servers, weights) ─┐
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
use netlink::{
    ipset::IpsetEntry,
    ipvs::{self, VirtualServerKey},
};
use proto::model::{IpFamily, Protocol};

use crate::{
    kernel::{ConnectionCounts, Connections},
    mark::Mark,
    object::{Object, Value, Weight, protocol},
    plan::{Objects, destinations},
    set::{SetContent, SetId},
};

/// A virtual server of ours, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// What it serves.
    pub family: IpFamily,
    /// What it serves.
    pub protocol: Protocol,
    /// What it is known by.
    pub at: ServerMatch,
    /// What our sets lead to it, each once; nothing of one that is known by its address.
    pub vips: BTreeSet<Vip>,
    /// How it chooses: the kernel's name, such as `rr`.
    pub scheduler: Arc<str>,
    /// Where its connections go.
    pub destinations: Vec<Destination>,
}

/// What a virtual server is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerMatch {
    /// A VIP and its port, or a node's address and a node port.
    Address(SocketAddr),
    /// The mark of its packets, which sets give them.
    FwMark(u32),
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
    /// Those that are being opened or closed, or have been closed a short time ago; UDP flows always.
    pub inactive: u32,
    /// Of one that is being removed: when it goes at the latest, whatever it carries.
    pub draining_until: Option<SystemTime>,
}

/// All virtual servers among these pieces, in the order of pieces.
pub(crate) fn view(objects: &Objects, connections: &ConnectionCounts) -> Vec<VirtualServer> {
    let mut vips = vips(objects);
    let servers = objects.iter().filter_map(|(object, value)| match (object, value) {
        (Object::Server(server), Value::Scheduling(scheduling)) => Some((*server, scheduling)),
        _ => None,
    });
    let view = servers.filter_map(|(server, scheduling)| {
        let (at, vips) = match server {
            VirtualServerKey::Address(_, address) => (ServerMatch::Address(address), BTreeSet::new()),
            VirtualServerKey::FwMark(family, mark) => {
                (ServerMatch::FwMark(mark), vips.remove(&(family, Mark::from_raw(mark)?)).unwrap_or_default())
            }
        };
        let destinations = destinations(objects, server).filter_map(|(object, value)| match (object, value) {
            (Object::Destination(_, address), Value::Weight(weight)) => {
                let carried = connections.get(&(server, *address)).copied().unwrap_or_default();
                Some(destination(*address, *weight, carried))
            }
            _ => None,
        });
        Some(VirtualServer {
            family: match server.family() {
                netlink::AddressFamily::V4 => IpFamily::V4,
                netlink::AddressFamily::V6 => IpFamily::V6,
            },
            protocol: match protocol(&server)? {
                ipvs::IpvsProtocol::Tcp => Protocol::Tcp,
                ipvs::IpvsProtocol::Udp => Protocol::Udp,
                ipvs::IpvsProtocol::Sctp => Protocol::Sctp,
            },
            at,
            vips,
            scheduler: scheduling.scheduler.clone(),
            destinations: destinations.collect(),
        })
    });
    view.collect()
}

/// What leads to which mark.
fn vips(objects: &Objects) -> BTreeMap<(netlink::AddressFamily, Mark), BTreeSet<Vip>> {
    let mut vips: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (object, value) in objects {
        if let (Object::SetEntry(set, entry), Value::Mark(mark)) = (object, value)
            && let Some(vip) = vip(*set, entry)
        {
            vips.entry((crate::object::ipvs_family(set.family), *mark)).or_default().insert(vip);
        }
    }
    vips
}

/// What an entry stands for, if it leads anywhere. A node port is entered in two halves, which are the same here.
fn vip(set: SetId, entry: &IpsetEntry) -> Option<Vip> {
    let port = entry.port?;
    let protocol = Protocol::ALL.into_iter().find(|protocol| entry.protocol == Some(*protocol as u8))?;
    match set.content {
        SetContent::Vips | SetContent::VipsInside => Some(Vip::AddressPort { address: entry.ip?, port, protocol }),
        SetContent::NodePorts | SetContent::NodePortsInside => Some(Vip::NodePort { port, protocol }),
        SetContent::Hairpin | SetContent::Sources | SetContent::Restricted | SetContent::Addresses => None,
    }
}

fn destination(address: SocketAddr, weight: Weight, carried: Connections) -> Destination {
    let (weight, draining_until) = match weight {
        Weight::Of(weight) => (weight, None),
        Weight::Draining(until) => (0, Some(UNIX_EPOCH + Duration::from_secs(until.into()))),
    };
    let Connections { active, inactive } = carried;
    Destination { address, weight, active, inactive, draining_until }
}
