//! The operations from observed to desired state, in an order that never interrupts the objects that stay. Pure.
//!
//! ```text
//!   add:    entries that only match ─▶ addresses ─▶ virtual servers, destinations ─▶ entries that mark
//!   remove: entries that mark ─▶ destinations (or weight 0) ─▶ virtual servers ─▶ addresses ─▶ entries that only match
//! ```

#[cfg(test)]
mod tests;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use netlink::{ipset::IpsetEntry, ipvs::VirtualServerKey};
use proto::model::{IpFamily, Protocol};

use crate::{
    mark::Mark,
    object::{Object, Value, Weight, protocol},
    set::{self, SetContent, SetId},
};

/// Kernel objects by their keys.
pub(crate) type Objects = BTreeMap<Object, Value>;

/// One change of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Creates an object.
    Add(Object, Value),
    /// Gives an existing object another value.
    Change(Object, Value),
    /// Deletes an object.
    Remove(Object),
}

/// How destinations are removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain<'a> {
    /// When destinations that start to drain now are deleted at the latest, in seconds since 1970; `None`: at once.
    pub(crate) until: Option<u32>,
    /// Destinations to delete now: without connections, or past their deadline.
    pub(crate) idle: &'a HashSet<Object>,
}

/// The end of an object that no service port needs.
#[derive(Clone, Debug)]
enum Removal {
    /// It is deleted.
    Delete,
    /// It stays as it is, because other objects depend on it or its connections have not ended.
    Keep,
    /// It stays with another value.
    Change(Value),
}

/// The operations for the touched objects. `desired`: the desired value of an object.
pub(crate) fn plan<'a>(
    observed: &Objects,
    desired: impl Fn(&Object) -> Option<&'a Value>,
    touched: &BTreeSet<Object>,
    drain: Drain<'_>,
) -> Vec<Operation> {
    let is_desired = |object: &Object| desired(object).is_some();
    let mut planner = Planner {
        observed,
        is_desired: &is_desired,
        removed: HashSet::new(),
        operations: Vec::new(),
        at_ports: OnceCell::new(),
    };

    let mut unneeded = Vec::new();
    for object in touched.iter().copied() {
        match (observed.get(&object), desired(&object)) {
            (None, Some(value)) if value.is_established() => {}
            (None, Some(value)) => planner.operations.push(Operation::Add(object, value.clone())),
            (Some(_), Some(value)) => planner.change(object, value.clone()),
            (Some(_), None) => unneeded.push(object),
            (None, None) => {}
        }
    }
    // In reverse order of keys an object is visited after the objects that depend on it.
    for object in unneeded.into_iter().rev() {
        planner.remove(object, drain);
    }

    planner.operations.sort_by_key(Operation::phase);
    planner.operations
}

/// Collects the operations.
struct Planner<'a> {
    observed: &'a Objects,
    is_desired: &'a dyn Fn(&Object) -> bool,
    removed: HashSet<Object>,
    operations: Vec<Operation>,
    /// Built when the first node port is removed.
    at_ports: OnceCell<AtPorts>,
}

/// The virtual servers at addresses, by their ports.
type AtPorts = HashMap<(IpFamily, u8, u16), Vec<VirtualServerKey>>;

// === impl Planner ===

impl Planner<'_> {
    fn remove(&mut self, object: Object, drain: Drain<'_>) {
        match self.removal(&object, drain) {
            Removal::Delete => {
                self.removed.insert(object);
                self.operations.push(Operation::Remove(object));
            }
            Removal::Keep => {}
            Removal::Change(value) => self.change(object, value),
        }
    }

    fn removal(&self, object: &Object, drain: Drain<'_>) -> Removal {
        match object {
            Object::Destination(server, _) if protocol(server) == Some(Protocol::Tcp) => {
                self.drained_removal(object, drain)
            }
            Object::Server(server) if self.has_destinations(*server) => Removal::Keep,
            Object::Address(address) if self.serves(*address) || self.leads_from(*address) => Removal::Keep,
            // The entry stays while a virtual server that depends on it drains, with a verdict for new connections. It
            // also tells whose the virtual server is, if another process has removed the address.
            Object::SetEntry(SetId { content: SetContent::Addresses, .. }, IpsetEntry { ip: Some(ip), .. })
                if self.stays(&Object::Address(*ip)) || self.serves(*ip) =>
            {
                Removal::Change(Value::Mark(Mark::DROP))
            }
            // The virtual server rejects new connections while it drains, and the address stays.
            Object::SetEntry(SetId { content: SetContent::Vips, .. }, _) if self.leads_to_draining(object) => {
                Removal::Keep
            }
            // If the address is another device's, nothing else tells whose the virtual server is.
            Object::SetEntry(SetId { content: SetContent::Vips, .. }, entry) if self.serves_elsewhere(entry) => {
                Removal::Change(Value::Mark(Mark::REJECT))
            }
            Object::SetEntry(SetId { content: SetContent::NodePorts, .. }, entry) if self.serves_node_port(entry) => {
                Removal::Change(Value::Mark(Mark::REJECT))
            }
            Object::Destination(..) | Object::Server(_) | Object::Address(_) | Object::SetEntry(..) => Removal::Delete,
        }
    }

    /// The removal of a destination for TCP, which drains before it is deleted.
    fn drained_removal(&self, object: &Object, drain: Drain<'_>) -> Removal {
        let Some(until) = drain.until else { return Removal::Delete };
        if drain.idle.contains(object) {
            return Removal::Delete;
        }
        match self.observed.get(object) {
            Some(Value::Weight(Weight::Draining(_))) => Removal::Keep,
            _ => Removal::Change(Value::Weight(Weight::Draining(until))),
        }
    }

    fn change(&mut self, object: Object, value: Value) {
        if self.observed.get(&object) != Some(&value) {
            self.operations.push(Operation::Change(object, value));
        }
    }

    /// Whether a virtual server at an address of the node stays for a node port.
    fn serves_node_port(&self, entry: &IpsetEntry) -> bool {
        let (Some(protocol), Some(port), Some(ip)) = (entry.protocol, entry.port, entry.ip) else {
            return false;
        };
        let servers = self.at_ports.get_or_init(|| at_ports(self.observed)).get(&(IpFamily::of(&ip), protocol, port));
        servers.is_some_and(|servers| servers.iter().any(|server| self.stays(&Object::Server(*server))))
    }

    /// Whether a virtual server stays for a VIP whose address is not on our device.
    fn serves_elsewhere(&self, entry: &IpsetEntry) -> bool {
        let (Some(protocol), Some(port), Some(ip)) = (entry.protocol, entry.port, entry.ip) else {
            return false;
        };
        let server = |of| Object::Server(VirtualServerKey::Address(of, SocketAddr::new(ip, port)));
        let addresses = SetId { content: SetContent::Addresses, family: IpFamily::of(&ip) };
        !self.observed.contains_key(&Object::SetEntry(addresses, set::address(ip)))
            && Protocol::from_number(protocol).is_some_and(|of| self.stays(&server(of)))
    }

    /// Whether a VIP leads to a virtual server that stays only to drain.
    fn leads_to_draining(&self, object: &Object) -> bool {
        let (Object::SetEntry(set, _), Some(Value::Mark(mark))) = (object, self.observed.get(object)) else {
            return false;
        };
        let server = Object::Server(VirtualServerKey::FwMark(set.family, mark.raw()));
        self.stays(&server) && !(self.is_desired)(&server)
    }

    /// Whether any unneeded VIP at an address leads to a virtual server that stays only to drain.
    fn leads_from(&self, address: IpAddr) -> bool {
        let set = SetId { content: SetContent::Vips, family: IpFamily::of(&address) };
        let first = Object::SetEntry(set, set::address(address));
        let is_at_address =
            |object: &&Object| matches!(object, Object::SetEntry(of, entry) if *of == set && entry.ip == Some(address));
        let mut vips = self.observed.range(first..).map(|(object, _)| object).take_while(is_at_address);
        vips.any(|vip| !(self.is_desired)(vip) && self.leads_to_draining(vip))
    }

    /// Whether the kernel contains an object that is not deleted.
    fn stays(&self, object: &Object) -> bool {
        self.observed.contains_key(object) && !self.removed.contains(object)
    }

    /// Whether a destination of a virtual server stays.
    fn has_destinations(&self, server: VirtualServerKey) -> bool {
        destinations(self.observed, server).any(|(object, _)| !self.removed.contains(object))
    }

    /// Whether a virtual server at an address stays.
    fn serves(&self, address: IpAddr) -> bool {
        Protocol::ALL.into_iter().any(|protocol| {
            let at = |port| Object::Server(VirtualServerKey::Address(protocol, SocketAddr::new(address, port)));
            let mut servers = self.observed.range(at(0)..=at(u16::MAX));
            servers.any(|(server, _)| !self.removed.contains(server))
        })
    }
}

/// Indexes the virtual servers at addresses by their ports.
fn at_ports(objects: &Objects) -> AtPorts {
    let mut ports = AtPorts::new();
    for object in objects.keys() {
        if let Object::Server(server @ VirtualServerKey::Address(protocol, address)) = object {
            let port = (IpFamily::of(&address.ip()), *protocol as u8, address.port());
            ports.entry(port).or_default().push(*server);
        }
    }
    ports
}

/// The destinations of a virtual server, with their weights.
pub(crate) fn destinations(objects: &Objects, server: VirtualServerKey) -> impl Iterator<Item = (&Object, &Value)> {
    let first = Object::Destination(server, SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0));
    objects.range(first..).take_while(move |(object, _)| matches!(object, Object::Destination(of, _) if *of == server))
}

// === impl Operation ===

impl Operation {
    /// The object that it changes.
    pub(crate) fn object(&self) -> &Object {
        match self {
            Self::Add(object, _) | Self::Change(object, _) | Self::Remove(object) => object,
        }
    }

    /// The value that it gives the object; `None`: it deletes the object.
    pub(crate) fn value(&self) -> Option<&Value> {
        match self {
            Self::Add(_, value) | Self::Change(_, value) => Some(value),
            Self::Remove(_) => None,
        }
    }

    /// Phases are executed in ascending order. Within a phase only a virtual server has to precede its destinations.
    /// The address of a VIP is added last, because the node accepts packets to it from then on: by then all objects
    /// that serve and reject them exist.
    fn phase(&self) -> u8 {
        match self {
            Self::Change(Object::Destination(..), Value::Weight(Weight::Draining(_) | Weight::Of(0))) => 8,
            Self::Add(object, _) | Self::Change(object, _) => match object {
                Object::SetEntry(set, _) => match set.content {
                    SetContent::Hairpin | SetContent::Returning | SetContent::Sources => 0,
                    SetContent::Restricted => 1,
                    SetContent::VipsInside | SetContent::NodePortsInside => 3,
                    SetContent::Vips | SetContent::NodePorts => 4,
                    SetContent::Addresses => 5,
                },
                Object::Server(_) | Object::Destination(..) => 2,
                Object::Address(_) => 6,
            },
            Self::Remove(object) => match object {
                Object::SetEntry(set, _) if set.content.marks_packets() => 7,
                Object::Destination(..) => 8,
                Object::Server(_) => 9,
                Object::Address(_) => 10,
                Object::SetEntry(set, _) if set.content == SetContent::Restricted => 11,
                Object::SetEntry(..) => 12,
            },
        }
    }
}
