//! EndpointSlices by a name in them that stands for a Node or a zone: when that comes or goes, the views that the
//! slices contribute to change.

use std::{collections::BTreeSet, sync::Arc};

use crate::object::ObjectName;

/// Slices by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlicesByName {
    /// The name, and the slice.
    entries: BTreeSet<(Arc<str>, ObjectName)>,
}

impl SlicesByName {
    /// Replaces the names in a slice.
    pub(super) fn change_slice(&mut self, slice: &ObjectName, old: &BTreeSet<&Arc<str>>, new: &BTreeSet<&Arc<str>>) {
        for name in old.difference(new) {
            self.entries.remove(&((*name).clone(), slice.clone()));
        }
        self.entries.extend(new.difference(old).map(|name| ((*name).clone(), slice.clone())));
    }

    /// The slices with a name.
    pub(super) fn with(&self, name: &Arc<str>) -> impl Iterator<Item = &ObjectName> {
        let entries = self.entries.range((name.clone(), ObjectName::default())..);
        entries.take_while(move |(of, _)| of == name).map(|(_, slice)| slice)
    }

    /// All slices; one with several names more than once.
    pub(super) fn all(&self) -> impl Iterator<Item = &ObjectName> {
        self.entries.iter().map(|(_, slice)| slice)
    }
}
