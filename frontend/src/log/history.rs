//! The last commits: for each, what it did to which service ports. Bounded by number and by memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use proto::model::{Revision, ServicePortKey};
use tokio::time::Instant;

use crate::view::ServicePortView;

use super::{HistoryLimits, port_change::PortChange};

/// The entries of the revisions after `floor`.
#[derive(Debug)]
pub(super) struct History {
    limits: HistoryLimits,
    floor: Revision,
    entries: VecDeque<CommitRecord>,
    /// Of all entries, in bytes.
    size: usize,
}

/// What one commit did.
#[derive(Debug)]
pub(super) struct CommitRecord {
    committed: Instant,
    changes: BTreeMap<ServicePortKey, PortChange>,
    /// By node, the service ports whose change is something else there than in its zone.
    own: HashMap<Arc<str>, BTreeSet<ServicePortKey>>,
    /// The zones in which some change is something else than elsewhere.
    zones: BTreeSet<Arc<str>>,
    oldest_trigger: Option<SystemTime>,
    size: usize,
}

impl History {
    /// Starts at a revision: what led to it is not known.
    pub(super) fn new(limits: HistoryLimits, floor: Revision) -> Self {
        Self { limits, floor, entries: VecDeque::new(), size: 0 }
    }

    /// Starts anew at a revision.
    pub(super) fn clear(&mut self, floor: Revision) {
        *self = Self::new(self.limits, floor);
    }

    /// The oldest revision from which the way to now is known.
    pub(super) fn floor(&self) -> Revision {
        self.floor
    }

    /// Adds the entry of the next revision, and forgets old ones beyond the limits.
    pub(super) fn push(&mut self, entry: CommitRecord) {
        self.size += entry.size;
        self.entries.push_back(entry);
        while self.entries.len() > self.limits.entries || self.size > self.limits.bytes {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.size -= oldest.size;
            self.floor.0 += 1;
        }
    }

    /// What the last commit did, unless that has been forgotten.
    pub(super) fn last(&self) -> Option<&CommitRecord> {
        self.entries.back()
    }

    /// The entries after a revision, oldest first; `None` when they are not all known.
    pub(super) fn since(&self, from: Revision) -> Option<impl Iterator<Item = &CommitRecord> + Clone> {
        let skip = usize::try_from(from.0.checked_sub(self.floor.0)?).ok()?;
        (skip <= self.entries.len()).then(|| self.entries.range(skip..))
    }
}

impl CommitRecord {
    pub(super) fn new(oldest_trigger: Option<SystemTime>) -> Self {
        Self {
            committed: Instant::now(),
            changes: BTreeMap::new(),
            own: HashMap::new(),
            zones: BTreeSet::new(),
            oldest_trigger,
            size: size_of::<Self>(),
        }
    }

    /// Records what happened to a service port that is `new` now.
    pub(super) fn record(&mut self, key: &ServicePortKey, change: PortChange, new: Option<&ServicePortView>) {
        /// What an element of a map needs around a key.
        const ELEMENT: usize = 64;
        let nodes = change.nodes(new);
        self.size += size_of::<ServicePortKey>() + change.size();
        self.size += nodes.len() * (size_of::<ServicePortKey>() + ELEMENT);
        for node in nodes {
            self.own.entry(node.clone()).or_default().insert(key.clone());
        }
        self.zones.extend(change.zones(new).into_iter().cloned());
        self.changes.insert(key.clone(), change);
    }

    pub(super) fn changes(&self) -> &BTreeMap<ServicePortKey, PortChange> {
        &self.changes
    }

    /// Appends what happened to each of some service ports.
    pub(super) fn changes_of<'a>(&'a self, some: &mut BTreeMap<&ServicePortKey, Vec<&'a PortChange>>) {
        if some.len() < self.changes.len() {
            for (key, changes) in some {
                changes.extend(self.changes.get(*key));
            }
        } else {
            for (key, change) in &self.changes {
                if let Some(changes) = some.get_mut(key) {
                    changes.push(change);
                }
            }
        }
    }

    /// The service ports whose change is something else on this node than in its zone.
    pub(super) fn own(&self, node: &str) -> impl Iterator<Item = &ServicePortKey> {
        self.own.get(node).into_iter().flatten()
    }

    /// Whether some change is something else in this zone than elsewhere.
    pub(super) fn differs_in(&self, zone: &str) -> bool {
        self.zones.contains(zone)
    }

    pub(super) fn committed(&self) -> Instant {
        self.committed
    }

    pub(super) fn oldest_trigger(&self) -> Option<SystemTime> {
        self.oldest_trigger
    }
}
