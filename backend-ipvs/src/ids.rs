//! Which service port has which id in its marks.

use std::collections::{HashMap, HashSet};

use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, Protocol, ServicePortKey};

use crate::{
    mark::{MAX_ID, Mark, MarkKind},
    object::{Object, Value},
    plan::Objects,
};

/// The ids of service ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    by_key: HashMap<ServicePortKey, u32>,
    used: HashSet<u32>,
    last: u32,
}

impl Ids {
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
        if let Some(id) = self.by_key.get(key) {
            return Some(*id);
        }
        let mut candidates = (0..MAX_ID).map(|offset| (self.last + offset) % MAX_ID + 1);
        let id = candidates.find(|id| !self.used.contains(id) && !serves(observed, *id))?;
        self.last = id;
        self.used.insert(id);
        self.by_key.insert(key.clone(), id);
        Some(id)
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
    let marks =
        Protocol::ALL.into_iter().flat_map(|protocol| MarkKind::ALL.map(|kind| Mark::new(id, protocol, kind).raw()));
    let mut servers = marks.flat_map(|mark| IpFamily::ALL.map(|family| VirtualServerKey::FwMark(family, mark)));
    servers.any(|server| observed.contains_key(&Object::Server(server)))
}
