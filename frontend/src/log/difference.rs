//! The net difference between a revision and the present one, for one node: never a queue of events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use proto::model::{Operation, PoolId, Revision, ServicePortKey};

use super::{
    ChangeLog, NodeUpdate,
    chunk::EncodedChunk,
    history::CommitRecord,
    port_change::{self, PortChange},
};

/// Chunks that many nodes are sent.
type SharedChunks = Arc<[Arc<EncodedChunk>]>;

/// What nodes without anything special need to get to the present revision, by where they come from and, if it matters, by
/// zone. A client says itself where it comes from, so this is bounded.
#[derive(Debug)]
pub(super) struct DifferenceCache {
    limit: usize,
    chunks: HashMap<(Revision, Arc<str>), SharedChunks>,
    /// Of all entries, in bytes.
    size: usize,
}

impl DifferenceCache {
    /// At most about `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, chunks: HashMap::new(), size: 0 }
    }

    /// About how many bytes of memory it takes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The present revision is another one.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.size = 0;
    }

    fn get(&self, at: &(Revision, Arc<str>)) -> Option<SharedChunks> {
        self.chunks.get(at).cloned()
    }

    fn insert(&mut self, at: (Revision, Arc<str>), chunks: SharedChunks) {
        /// What an entry needs beside its chunks.
        const ENTRY: usize = 128;
        let size = ENTRY + chunks.iter().map(|chunk| chunk.size()).sum::<usize>();
        if self.size + size > self.limit {
            self.clear();
        }
        self.size += size;
        self.chunks.insert(at, chunks);
    }
}

impl ChangeLog {
    /// What leads a node from a revision to the present one. `None` when that is not known any more, because the
    /// revision is too old or the node has come into another zone since: then buckets must be compared.
    pub fn difference(&mut self, node: &str, from: Revision) -> Option<NodeUpdate> {
        if from > self.revision || self.nodes.get(node).is_some_and(|node_entry| node_entry.moved_since(from)) {
            return None;
        }
        let entries = self.history.since(from)?;
        let oldest_trigger = entries.clone().filter_map(CommitRecord::oldest_trigger).min();
        let mut changes: BTreeMap<_, Vec<_>> =
            entries.clone().flat_map(|entry| entry.own(node)).map(|key| (key, Vec::new())).collect();
        entries.for_each(|entry| entry.changes_of(&mut changes));
        let mut own = Vec::new();
        if self.nodes.get(node).is_some_and(|node_entry| node_entry.changed_since(from)) {
            own.push(self.facts(node));
        }
        if self.cluster_since > from {
            own.push(Operation::PutCluster(self.cluster.clone()));
        }
        let zone: Arc<str> = self.zone(node).into();
        let mut instead = BTreeSet::new();
        for (key, changes) in changes {
            let current = self.view(key);
            instead.extend(port_change::net_for_node(key, &changes, current, (node, &zone), &mut own));
        }
        let shared = self.shared(from, zone)?;
        let mut chunks = if instead.is_empty() { shared.to_vec() } else { without(&shared, &instead) };
        chunks.extend(EncodedChunk::pack(own));
        let digest = self.digest(node);
        Some(NodeUpdate { target: self.revision, chunks, oldest_trigger, digest, source_version: self.source_version })
    }

    /// What all nodes of a zone need, but for what is special for each.
    fn shared(&mut self, from: Revision, zone: Arc<str>) -> Option<SharedChunks> {
        let mut entries = self.history.since(from)?;
        let differs = entries.any(|entry| entry.differs_in(&zone));
        let at = (from, if differs { zone } else { Arc::default() });
        if let Some(shared) = self.shared.get(&at) {
            return Some(shared);
        }
        let mut changes = BTreeMap::<&ServicePortKey, Vec<&PortChange>>::new();
        for (key, change) in self.history.since(from)?.flat_map(CommitRecord::changes) {
            changes.entry(key).or_default().push(change);
        }
        let mut operations = Vec::new();
        for (key, changes) in changes {
            port_change::net_for_zone(key, &changes, self.view(key), &at.1, &mut operations);
        }
        let shared: SharedChunks = EncodedChunk::pack(operations).into();
        self.shared.insert(at, shared.clone());
        Some(shared)
    }
}

/// The chunks anew, without the operations on some pools.
fn without(chunks: &[Arc<EncodedChunk>], pools: &BTreeSet<PoolId>) -> Vec<Arc<EncodedChunk>> {
    let operations = chunks.iter().flat_map(|chunk| chunk.operations());
    let kept = operations.filter(|operation| match operation {
        Operation::ChangePool { pool, .. } | Operation::ReplacePool { pool, .. } => !pools.contains(pool),
        _ => true,
    });
    EncodedChunk::pack(kept.cloned())
}
