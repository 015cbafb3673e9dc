//! The changes of recent commits, limited by number and by memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use proto::model::{Revision, ServicePortKey};
use tokio::time::Instant;

use crate::{config::HistoryLimits, view::ServicePortView};

use super::port_change::PortChange;

/// The commits after revision `floor`.
#[derive(Debug)]
pub(super) struct History {
    pub(super) limits: HistoryLimits,
    /// The oldest revision from which a difference can be computed.
    pub(super) floor: Revision,
    pub(super) commits: VecDeque<CommitRecord>,
    /// The approximate size of all commits, in bytes.
    pub(super) size: usize,
}

/// The changes of one commit.
#[derive(Debug)]
pub(super) struct CommitRecord {
    pub(super) committed: Instant,
    pub(super) changes: BTreeMap<ServicePortKey, PortChange>,
    /// By node, the service ports whose change differs from that for its zone.
    pub(super) own: HashMap<Arc<str>, BTreeSet<ServicePortKey>>,
    /// The zones for which a change differs from that for all nodes.
    pub(super) zones: BTreeSet<Arc<str>>,
    pub(super) oldest_trigger: Option<SystemTime>,
    size: usize,
}

impl History {
    /// Starts with a revision, without the changes that led to it.
    pub(super) fn new(limits: HistoryLimits, floor: Revision) -> Self {
        Self { limits, floor, commits: VecDeque::new(), size: 0 }
    }

    /// Adds the next commit, and removes the oldest ones beyond the limits.
    pub(super) fn push(&mut self, commit: CommitRecord) {
        self.size += commit.size;
        self.commits.push_back(commit);
        while self.commits.len() > self.limits.entries || self.size > self.limits.bytes {
            let Some(oldest) = self.commits.pop_front() else { break };
            self.size -= oldest.size;
            self.floor.0 += 1;
        }
    }

    /// The commits after a revision, oldest first; `None` when some of them have been removed.
    pub(super) fn since(&self, from: Revision) -> Option<impl Iterator<Item = &CommitRecord> + Clone> {
        let skip = usize::try_from(from.0.checked_sub(self.floor.0)?).ok()?;
        (skip <= self.commits.len()).then(|| self.commits.range(skip..))
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

    /// Adds the change of a service port whose view is now `new`.
    pub(super) fn add(&mut self, key: &ServicePortKey, change: PortChange, new: Option<&ServicePortView>) {
        /// The overhead of a map entry.
        const MAP_ENTRY: usize = 64;
        let nodes = change.nodes(new);
        self.size += size_of::<ServicePortKey>() + change.size();
        self.size += nodes.len() * (size_of::<ServicePortKey>() + MAP_ENTRY);
        for node in nodes {
            self.own.entry(node.clone()).or_default().insert(key.clone());
        }
        self.zones.extend(change.zones(new).into_iter().cloned());
        self.changes.insert(key.clone(), change);
    }

    /// Appends the changes of some service ports.
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
}
