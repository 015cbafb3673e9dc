//! The ids of service ports, which are part of their marks. A service port keeps its id while it has VIPs with marks;
//! after a restart it is read from the kernel.

use std::collections::{HashMap, HashSet};

use netlink::ipvs::VirtualServerKey;
use proto::model::ServicePortKey;

use crate::{
    mark::{MAX_ID, Mark},
    object::{Object, Value},
    plan::Objects,
};

/// Allocated ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    by_key: HashMap<ServicePortKey, u32>,
    used: HashSet<u32>,
    last: u32,
}

// === impl Ids ===

impl Ids {
    /// The id of a service port.
    pub(crate) fn get(&self, key: &ServicePortKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Allocates the id in the marks of a service port's observed VIP entries, if it is free.
    pub(crate) fn adopt<'a>(
        &mut self,
        key: &ServicePortKey,
        observed: &Objects,
        vip_entries: impl Iterator<Item = &'a Object>,
    ) {
        for entry in vip_entries {
            if let Some(Value::Mark(mark)) = observed.get(entry)
                && let Some(id) = mark.id()
                && self.used.insert(id)
            {
                self.by_key.insert(key.clone(), id);
                return;
            }
        }
    }

    /// The id of a service port, or a new one that no other service port and no draining virtual server uses.
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

    /// Frees the id of a service port.
    pub(crate) fn release(&mut self, key: &ServicePortKey) {
        if let Some(id) = self.by_key.remove(key) {
            self.used.remove(&id);
        }
    }
}

/// Whether a virtual server exists for a mark with this id.
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
