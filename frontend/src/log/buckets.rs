//! The current views by digest bucket, and encoded buckets for snapshots and repairs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use proto::{
    digest::{BUCKETS, INFO_ENTRY, KeyHash},
    model::{NodeInfo, Operation, ServicePortKey},
};

use crate::{index::IndexChanges, view::ServicePortView};

use super::{
    ChangeLog, NodeUpdate,
    chunk::{Chunks, EncodedChunk},
    operations,
};

/// The service ports whose keys fall into one digest bucket.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    ports: BTreeMap<ServicePortKey, Arc<ServicePortView>>,
    /// The encoded bucket, built on demand after each change.
    encoded: Option<BucketChunks>,
}

/// An encoded bucket, without the pools that are specific to a node.
#[derive(Debug, Default)]
struct BucketChunks {
    /// Zones with pools of their own in this bucket.
    zones: BTreeSet<Arc<str>>,
    /// By zone; the empty name stands for all other zones.
    chunks: HashMap<Arc<str>, Chunks>,
}

impl Bucket {
    pub(super) fn get(&self, key: &ServicePortKey) -> Option<&Arc<ServicePortView>> {
        self.ports.get(key)
    }

    pub(super) fn put(&mut self, key: ServicePortKey, view: Arc<ServicePortView>) {
        self.encoded = None;
        self.ports.insert(key, view);
    }

    pub(super) fn remove(&mut self, key: &ServicePortKey) -> Option<Arc<ServicePortView>> {
        self.encoded = None;
        self.ports.remove(key)
    }

    /// The operations that replace the bucket on nodes of a zone.
    fn chunks(&mut self, bucket: u8, zone: &str) -> &[Arc<EncodedChunk>] {
        let Self { ports, encoded } = self;
        let BucketChunks { zones, chunks } = encoded.get_or_insert_with(|| BucketChunks::of(ports));
        let zone = zones.get(zone).cloned().unwrap_or_default();
        chunks.entry(zone).or_insert_with_key(|zone| {
            let mut operations = vec![Operation::ResetBucket(bucket)];
            for view in ports.values() {
                operations::put_for_zone(view, zone, &mut operations);
            }
            EncodedChunk::pack(operations)
        })
    }
}

impl BucketChunks {
    fn of(ports: &BTreeMap<ServicePortKey, Arc<ServicePortView>>) -> Self {
        let pools = ports.values().flat_map(|view| view.pools());
        let zones = pools.flat_map(|(.., pools)| pools.zones.keys()).cloned().collect();
        Self { zones, chunks: HashMap::new() }
    }
}

impl ChangeLog {
    pub(crate) fn view(&self, key: &ServicePortKey) -> Option<&Arc<ServicePortView>> {
        self.buckets[usize::from(KeyHash::of(key).bucket())].get(key)
    }

    /// The current views of the service ports that may change, in their order.
    pub(crate) fn views_of(&self, changes: &IndexChanges) -> Vec<Option<Arc<ServicePortView>>> {
        changes.ports.iter().map(|(key, _)| self.view(key).cloned()).collect()
    }

    /// The service ports of one digest bucket, so that the log does not have to be locked for all of them at once.
    pub(crate) fn bucket_views(&self, bucket: usize) -> impl Iterator<Item = (&ServicePortKey, &ServicePortView)> {
        let ports = self.buckets.get(bucket).into_iter().flat_map(|bucket| &bucket.ports);
        ports.map(|(key, view)| (key, view.as_ref()))
    }

    /// The full state of a node at the current revision.
    pub(crate) fn snapshot(&mut self, node: &str) -> NodeUpdate {
        self.rebuild(node, (0..=BUCKETS).collect())
    }

    /// Replaces the given digest entries (buckets and [`INFO_ENTRY`]) of a node.
    pub(crate) fn rebuild(&mut self, node: &str, entries: BTreeSet<usize>) -> NodeUpdate {
        let zone: Arc<str> = self.zone(node).into();
        let mut chunks = Vec::new();
        if entries.contains(&usize::from(INFO_ENTRY)) {
            let cluster = Operation::PutCluster(self.cluster.clone());
            chunks.extend_from_slice(&EncodedChunk::pack([Operation::PutNode(self.facts(node)), cluster]));
        }
        for (number, bucket) in (0..=u8::MAX).zip(&mut self.buckets) {
            if entries.contains(&usize::from(number)) {
                chunks.extend_from_slice(bucket.chunks(number, &zone));
            }
        }
        let mut own = Vec::new();
        for (bucket, key) in self.nodes.get(node).into_iter().flat_map(|node_entry| &node_entry.ports) {
            if entries.contains(&usize::from(*bucket))
                && let Some(view) = self.buckets[usize::from(*bucket)].get(key)
            {
                operations::put_for_node(view, node, &mut own);
            }
        }
        chunks.extend_from_slice(&EncodedChunk::pack(own));
        self.update(node, chunks)
    }

    pub(super) fn facts(&self, name: &str) -> NodeInfo {
        self.node(name).map_or_else(|| NodeInfo::unknown(name), |node| NodeInfo::clone(node))
    }
}
