//! Changes that the engine has not taken yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use proto::model::ServicePortKey;

use crate::object::Cause;

use super::addresses::ChangedEntries;

/// What may have changed since the last [`Index::take_changes`](super::Index::take_changes).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PendingChanges {
    /// The object that is applied, or was the last one.
    pub(super) cause: Option<Cause>,
    pub(super) ports: BTreeMap<ServicePortKey, Dirty>,
    pub(super) nodes: BTreeSet<Arc<str>>,
    /// Nodes whose object was created or deleted, with that change.
    pub(super) came_or_went: BTreeMap<Arc<str>, Option<Cause>>,
    /// Whether the `ClusterInfo` may have changed.
    pub(super) cluster: bool,
    /// The entries of slices, which are taken apart from the other changes; nothing before all objects are listed.
    pub(super) entries: ChangedEntries,
}

/// Why a service port may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirty {
    /// The oldest trigger time of the changes.
    pub(super) trigger: Option<SystemTime>,
    /// The object of the last change.
    pub(super) cause: Option<Cause>,
}

impl PendingChanges {
    /// Marks service ports that may have changed because of the current object.
    pub(super) fn mark_ports(&mut self, keys: impl IntoIterator<Item = ServicePortKey>) {
        for key in keys {
            self.ports.entry(key).or_default().cause.clone_from(&self.cause);
        }
    }

    /// Marks the service ports of the current object, which is a slice whose change has this trigger time.
    pub(super) fn mark_ports_of_slice(&mut self, keys: BTreeSet<ServicePortKey>, trigger: Option<SystemTime>) {
        for key in keys {
            let dirty = self.ports.entry(key).or_default();
            dirty.trigger = [dirty.trigger, trigger].into_iter().flatten().min();
            dirty.cause.clone_from(&self.cause);
        }
    }
}
