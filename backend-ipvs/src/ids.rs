//! The numbers of service ports, which their marks are made of. A service port keeps its number for as long as it has fronts with marks;
//! after a restart it is found in the kernel.

use std::collections::{HashMap, HashSet};

use netlink::ipvs::VirtualServerKey;
use proto::model::ServicePortKey;

use crate::{
    mark::{MAX_ID, Mark},
    object::{Object, Value},
    plan::Objects,
};

/// Who has which number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    by_key: HashMap<ServicePortKey, u32>,
    used: HashSet<u32>,
    last: u32,
}

// === impl Ids ===

impl Ids {
    /// The number of a service port.
    pub(crate) fn get(&self, key: &ServicePortKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// A service port has the number that its fronts lead to, if that is free.
    pub(crate) fn adopt<'a>(
        &mut self,
        key: &ServicePortKey,
        observed: &Objects,
        fronts: impl Iterator<Item = &'a Object>,
    ) {
        for front in fronts {
            if let Some(Value::Mark(mark)) = observed.get(front)
                && let Some(id) = mark.id()
                && self.used.insert(id)
            {
                self.by_key.insert(key.clone(), id);
                return;
            }
        }
    }

    /// Gives a service port a number that nobody has, and no virtual server that still drains.
    pub(crate) fn give(&mut self, key: &ServicePortKey, observed: &Objects) -> Option<u32> {
        if let Some(id) = self.get(key) {
            return Some(id);
        }
        for _ in 0..MAX_ID {
            self.last = self.last % MAX_ID + 1;
            if !self.used.contains(&self.last) && !serves(observed, self.last) {
                self.used.insert(self.last);
                self.by_key.insert(key.clone(), self.last);
                return Some(self.last);
            }
        }
        None
    }

    /// A service port needs its number no more.
    pub(crate) fn release(&mut self, key: &ServicePortKey) {
        if let Some(id) = self.by_key.remove(key) {
            self.used.remove(&id);
        }
    }
}

/// Whether there is a virtual server for a mark with this number.
fn serves(observed: &Objects, id: u32) -> bool {
    use crate::mark::Variant;
    use netlink::{AddressFamily, ipvs::IpvsProtocol};
    AddressFamily::ALL.into_iter().any(|family| {
        [IpvsProtocol::Tcp, IpvsProtocol::Udp, IpvsProtocol::Sctp].into_iter().any(|protocol| {
            [Variant::External, Variant::Inside, Variant::Local].into_iter().any(|variant| {
                let mark = Mark::new(id, protocol, variant).raw();
                observed.contains_key(&Object::Server(VirtualServerKey::FwMark(family, mark)))
            })
        })
    })
}
