//! The ids of service ports in their marks.

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
    /// Allocates an id in the marks of a service port's observed VIP entries, if it is free; of UDP only if all entries
    /// with it are among these. See [`AppliedState::withdraws`](crate::applied::AppliedState::withdraws).
    pub(crate) fn adopt(
        &mut self,
        key: &ServicePortKey,
        observed: &Objects,
        vip_entries: &[Object],
        entries_of_ids: &HashMap<u32, usize>,
    ) {
        let counts = count_ids(vip_entries.iter().filter_map(|entry| observed.get(entry)));
        let is_complete = |id: u32| counts.get(&id) == entries_of_ids.get(&id);

        let free = counts.iter().filter(|(id, _)| !self.used.contains(id));
        let kept = free.filter(|(id, _)| key.protocol != Protocol::Udp || is_complete(**id));
        // Entries with other ids are of VIPs that belonged to another service port.
        if let Some((id, _)) = kept.max_by_key(|(id, count)| (is_complete(**id), **count, **id)) {
            self.used.insert(*id);
            self.by_key.insert(key.clone(), *id);
        }
    }

    pub(crate) fn get(&self, key: &ServicePortKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// The id of a service port, or a new one that no other service port and no draining virtual server uses.
    pub(crate) fn give(&mut self, key: &ServicePortKey, observed: &Objects) -> Option<u32> {
        if let Some(id) = self.get(key) {
            return Some(id);
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

/// How many of these values of VIP entries have a mark with each id.
pub(crate) fn count_ids<'a>(values: impl Iterator<Item = &'a Value>) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    for id in values.filter_map(id) {
        *counts.entry(id).or_default() += 1;
    }
    counts
}

/// The id in a mark.
pub(crate) fn id(value: &Value) -> Option<u32> {
    match value {
        Value::Mark(mark) => mark.id(),
        _ => None,
    }
}

/// Whether a virtual server exists for a mark with this id.
fn serves(observed: &Objects, id: u32) -> bool {
    for protocol in Protocol::ALL {
        for kind in MarkKind::ALL {
            let mark = Mark::new(id, protocol, kind).raw();
            let has_server = |family| observed.contains_key(&Object::Server(VirtualServerKey::FwMark(family, mark)));
            if IpFamily::ALL.into_iter().any(has_server) {
                return true;
            }
        }
    }
    false
}
