//! What recent commits sent to nodes, limited by number and by memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    iter,
    sync::Arc,
    time::SystemTime,
};

use proto::model::Revision;
use tokio::time::Instant;

use crate::{config::HistoryLimits, view::Scoped};

use super::{
    chunk::{Chunks, EncodedChunk},
    operations::CommitOperations,
};

/// The commits after revision `floor`.
#[derive(Debug)]
pub(super) struct History {
    pub(super) limits: HistoryLimits,
    /// The oldest revision from which a node can be brought up to date.
    pub(super) floor: Revision,
    commits: VecDeque<Arc<CommitRecord>>,
    /// The approximate size of all commits, in bytes.
    pub(super) size: usize,
}

/// What one commit sends, and to whom.
#[derive(Debug)]
pub(crate) struct CommitRecord {
    pub(super) committed: Instant,
    pub(super) oldest_trigger: Option<SystemTime>,
    all: Chunks,
    scoped: Vec<Scoped<Chunks>>,
    own: BTreeMap<Arc<str>, Chunks>,
    /// The nodes whose zone has changed: what earlier commits sent them depends on the zone that they had.
    pub(super) moved: BTreeSet<Arc<str>>,
    /// About its memory in bytes.
    pub(crate) size: usize,
}

impl History {
    /// Starts with a revision, without the changes that led to it.
    pub(super) fn new(limits: HistoryLimits, floor: Revision) -> Self {
        Self { limits, floor, commits: VecDeque::new(), size: 0 }
    }

    /// Adds the next commit, and removes the oldest ones beyond the limits. The newest one stays: connected nodes need
    /// it.
    pub(super) fn push(&mut self, commit: CommitRecord) {
        self.size += commit.size;
        self.commits.push_back(Arc::new(commit));
        while self.commits.len() > 1 && (self.commits.len() > self.limits.entries || self.size > self.limits.bytes) {
            let Some(oldest) = self.commits.pop_front() else { break };
            self.size -= oldest.size;
            self.floor.0 += 1;
        }
    }

    /// The commits after a revision, oldest first; `None` when some of them have been removed.
    pub(super) fn since(&self, from: Revision) -> Option<impl Iterator<Item = &Arc<CommitRecord>> + Clone> {
        let skip = usize::try_from(from.0.checked_sub(self.floor.0)?).ok()?;
        if skip <= self.commits.len() { Some(self.commits.range(skip..)) } else { None }
    }
}

impl CommitRecord {
    pub(super) fn new(
        operations: CommitOperations,
        moved: BTreeSet<Arc<str>>,
        oldest_trigger: Option<SystemTime>,
    ) -> Self {
        /// The overhead of a map entry.
        const MAP_ENTRY: usize = 64;

        let CommitOperations { all, scoped, own } = operations;
        let all = EncodedChunk::pack(all);
        let own: BTreeMap<_, _> =
            own.into_iter().map(|(node, operations)| (node, EncodedChunk::pack(operations))).collect();

        let scoped_chunks = scoped.iter().flat_map(|Scoped { default, zones, nodes }| {
            iter::once(default).chain(zones.values()).chain(nodes.values())
        });
        let mut size = size_of::<Self>();
        let mut counted = HashSet::new();
        for chunks in scoped_chunks.chain(own.values()).chain([&all]) {
            let unshared = chunks.iter().filter(|chunk| counted.insert(Arc::as_ptr(chunk)));
            size += MAP_ENTRY + unshared.map(|chunk| chunk.memory()).sum::<usize>();
        }

        Self { committed: Instant::now(), oldest_trigger, all, scoped, own, moved, size }
    }

    /// What a node in a zone receives.
    pub(super) fn chunks<'a>(&'a self, node: &'a str, zone: &'a str) -> impl Iterator<Item = &'a Arc<EncodedChunk>> {
        let scoped = self.scoped.iter().flat_map(move |pools| pools.resolve(node, zone).iter());
        self.all.iter().chain(scoped).chain(self.own.get(node).into_iter().flat_map(|chunks| chunks.iter()))
    }
}
