//! The net difference between a revision and the current one, for one node.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use proto::model::{Operation, PoolId, Revision, ServicePortKey};

use super::{
    ChangeLog, NodeUpdate,
    chunk::EncodedChunk,
    port_change::{self, OverriddenPools, PortChange},
};

/// Chunks that are shared by many nodes.
type SharedChunks = Arc<[Arc<EncodedChunk>]>;

/// Differences to the current revision without node-specific operations, by base revision and, if it matters, by zone.
/// Clients choose the base revision, so the size is limited.
#[derive(Debug)]
pub(super) struct DifferenceCache {
    limit: usize,
    chunks: HashMap<DifferenceKey, SharedChunks>,
    /// Pools of zones that replace those of single nodes.
    replaced: HashMap<ReplacedPool, SharedChunks>,
    /// The approximate size of all entries, in bytes.
    pub(super) size: usize,
}

/// Identifies a shared difference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DifferenceKey {
    /// The base revision.
    from: Revision,
    /// Empty when the difference is the same for all zones.
    zone: Arc<str>,
}

/// Identifies a pool of a zone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReplacedPool {
    pool: PoolId,
    /// Empty when the zone has none of its own.
    zone: Arc<str>,
}

impl DifferenceCache {
    /// Keeps at most about `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, chunks: HashMap::new(), replaced: HashMap::new(), size: 0 }
    }

    /// Removes all differences, because the current revision has changed.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.replaced.clear();
        self.size = 0;
    }

    /// Makes room for an entry.
    fn make_room(&mut self, chunks: &SharedChunks) {
        /// The overhead of an entry.
        const ENTRY: usize = 128;
        let size = ENTRY + chunks.iter().map(|chunk| chunk.size()).sum::<usize>();
        if self.size + size > self.limit {
            self.clear();
        }
        self.size += size;
    }
}

impl ChangeLog {
    /// The difference between a revision and the current one. `None` when the revision is older than the history, or
    /// the zone of the node has changed since: then digests must be compared.
    pub(crate) fn difference(&mut self, node: &str, from: Revision) -> Option<NodeUpdate> {
        if from > self.revision || self.nodes.get(node).is_some_and(|node_entry| node_entry.moved_since(from)) {
            return None;
        }
        let records = self.history.since(from)?;
        let oldest_trigger = records.clone().filter_map(|record| record.oldest_trigger).min();
        let mut changes: BTreeMap<_, Vec<_>> =
            records.clone().flat_map(|record| record.own.get(node)).flatten().map(|key| (key, Vec::new())).collect();
        records.for_each(|record| record.changes_of(&mut changes));
        let mut own = Vec::new();
        if self.nodes.get(node).is_some_and(|node_entry| node_entry.changed_since(from)) {
            own.push(self.facts(node));
        }
        if self.cluster_changed > from {
            own.push(Operation::PutCluster(self.cluster.clone()));
        }
        let zone: Arc<str> = self.zone(node).into();
        let mut overridden = OverriddenPools::default();
        for (key, changes) in changes {
            let current = self.view(key);
            port_change::net_for_node(key, &changes, current, node, &zone, &mut own, &mut overridden);
        }
        let shared = self.shared_difference(from, zone.clone())?;
        let mut chunks = if overridden.all.is_empty() { shared.to_vec() } else { without(&shared, &overridden.all) };
        for pool in overridden.replaced {
            chunks.extend_from_slice(&self.replaced_pool(pool, &zone));
        }
        chunks.extend(EncodedChunk::pack(own));
        let digest = self.digest(node);
        Some(NodeUpdate { target: self.revision, chunks, oldest_trigger, digest, source_version: self.source_version })
    }

    /// The difference for all nodes of a zone, without node-specific operations.
    fn shared_difference(&mut self, from: Revision, zone: Arc<str>) -> Option<SharedChunks> {
        let mut records = self.history.since(from)?;
        let differs = records.any(|record| record.zones.contains(&zone));
        let zone = if differs { zone } else { Arc::default() };
        let cache_key = DifferenceKey { from, zone };
        if let Some(shared) = self.differences.chunks.get(&cache_key) {
            return Some(shared.clone());
        }
        let mut changes = BTreeMap::<&ServicePortKey, Vec<&PortChange>>::new();
        for (key, change) in self.history.since(from)?.flat_map(|record| &record.changes) {
            changes.entry(key).or_default().push(change);
        }
        let mut operations = Vec::new();
        for (key, changes) in changes {
            port_change::net_for_zone(key, &changes, self.view(key), &cache_key.zone, &mut operations);
        }
        let shared: SharedChunks = EncodedChunk::pack(operations).into();
        self.differences.make_room(&shared);
        self.differences.chunks.insert(cache_key, shared.clone());
        Some(shared)
    }

    /// The operations that replace the pool of a node by that of its zone.
    fn replaced_pool(&mut self, pool: PoolId, zone: &Arc<str>) -> SharedChunks {
        let has_own = self.view(&pool.key).is_some_and(|view| port_change::zones_of_view(view).any(|of| of == zone));
        let key = ReplacedPool { pool, zone: if has_own { zone.clone() } else { Arc::default() } };
        if let Some(replaced) = self.differences.replaced.get(&key) {
            return replaced.clone();
        }
        let operations = self.view(&key.pool.key).map(|view| port_change::replace_in_zone(view, &key.pool, &key.zone));
        let replaced: SharedChunks = EncodedChunk::pack(operations.into_iter().flatten()).into();
        self.differences.make_room(&replaced);
        self.differences.replaced.insert(key, replaced.clone());
        replaced
    }
}

/// The chunks without the operations on some pools. Chunks without such operations stay shared.
fn without(chunks: &[Arc<EncodedChunk>], pools: &BTreeSet<PoolId>) -> Vec<Arc<EncodedChunk>> {
    let is_kept = |operation: &Operation| match operation {
        Operation::ChangePool { pool, .. } | Operation::ReplacePool { pool, .. } => !pools.contains(pool),
        _ => true,
    };
    let rest = chunks.iter().flat_map(|chunk| {
        if chunk.operations().iter().all(is_kept) {
            return vec![chunk.clone()];
        }
        EncodedChunk::pack(chunk.operations().iter().filter(|operation| is_kept(operation)).cloned())
    });
    rest.collect()
}
