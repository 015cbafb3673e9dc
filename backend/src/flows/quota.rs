//! How much of a list each namespace takes, if all of them share it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// The number of entries of each namespace in a list of a limited size.
#[derive(Debug)]
pub(super) struct NamespaceQuota {
    free: usize,
    used: BTreeMap<Arc<str>, usize>,
}

impl NamespaceQuota {
    /// That of an empty list.
    pub(super) fn new(size: usize) -> Self {
        Self { free: size, used: BTreeMap::new() }
    }

    /// Counts an entry, if the namespace has less than half as many as are free. So one alone gets a third of the list,
    /// and the next one a third of what is left: ten that take what they can leave a sixtieth to others.
    pub(super) fn try_charge(&mut self, namespace: &Arc<str>) -> bool {
        let used = self.used.get(namespace).copied().unwrap_or_default();
        let has_room = 2 * used < self.free;
        if has_room {
            self.charge(namespace, 1);
        }
        has_room
    }

    /// Counts entries that the list has.
    pub(super) fn charge(&mut self, namespace: &Arc<str>, entries: usize) {
        *self.used.entry(namespace.clone()).or_default() += entries;
        self.free = self.free.saturating_sub(entries);
    }

    /// An entry has left the list.
    pub(super) fn release(&mut self, namespace: &Arc<str>) {
        let Entry::Occupied(mut used) = self.used.entry(namespace.clone()) else { return };
        *used.get_mut() -= 1;
        if *used.get() == 0 {
            used.remove();
        }
        self.free += 1;
    }
}
