//! The current state of the cluster as nodes see it, and the changes that led to it, for nodes at any revision.
//!
//! ```text
//!   changed views ──commit──▶ current views, by digest bucket ──rebuild──▶ whole buckets  (snapshot, repair)
//!                        └──▶ history: changes by revision ──difference──▶ net changes    (resume, every commit)
//!                        └──▶ digests: all nodes + zone + node ──▶ the expected digest of a node
//! ```
//!
//! Nothing is queued for a node: it is a name and a revision. Operations for all nodes or for a zone are built and
//! encoded once, as shared [`EncodedChunk`]s. Those for a single node are appended.

mod buckets;
mod chunk;
mod difference;
mod digest_index;
mod history;
mod node_entry;
mod pool_delta;
mod port_change;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use proto::{
    digest::{BUCKETS, Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, Epoch, KindVersions, NodeInfo, Revision, ServicePortKey, SourceVersion},
};
use tokio::time::Instant;

use crate::{change_history::ChangeKind, config::HistoryLimits, index::IndexChanges, view::ServicePortView};

use self::{
    buckets::Bucket,
    difference::DifferenceCache,
    digest_index::{ApplyDigest, DigestIndex},
    history::{CommitRecord, History},
    node_entry::NodeEntry,
    port_change::PortChange,
};

pub(crate) use self::chunk::{CHUNK_BYTES, EncodedChunk, EncodingCounters};

/// An update that brings a node to the current revision.
#[derive(Clone, Debug)]
pub(crate) struct NodeUpdate {
    /// The current revision.
    pub(crate) target: Revision,
    /// The operations; empty when nothing changes for this node.
    pub(crate) chunks: Vec<Arc<EncodedChunk>>,
    /// When the oldest change in it was made, according to the API.
    pub(crate) oldest_trigger: Option<SystemTime>,
    /// The expected digest of the node afterwards.
    pub(crate) digest: Digest,
    /// The source version that the update reflects, and that of each kind.
    pub(crate) source_version: (SourceVersion, KindVersions),
}

/// The current state of the cluster as nodes see it, and its history.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    epoch: Epoch,
    revision: Revision,
    cluster: ClusterInfo,
    /// The revision of the last change of `cluster`.
    cluster_changed: Revision,
    buckets: Vec<Bucket>,
    digest_index: DigestIndex,
    nodes: HashMap<Arc<str>, NodeEntry>,
    /// Removed nodes, with the revision of their removal. Clients at older revisions still have to receive it.
    retired: VecDeque<(Revision, Arc<str>)>,
    history: History,
    differences: DifferenceCache,
    /// How many service ports there are.
    pub(crate) service_ports: usize,
    /// How many endpoints they have.
    pub(crate) endpoints: usize,
    /// How many snapshots and repairs have been built.
    pub(crate) rebuilds: u64,
    source_version: (SourceVersion, KindVersions),
}

impl ChangeLog {
    /// A cluster without services and nodes, at revision 1.
    pub(crate) fn new(epoch: Epoch, limits: HistoryLimits) -> Self {
        let revision = Revision(1);
        Self {
            epoch,
            revision,
            cluster: ClusterInfo::default(),
            cluster_changed: revision,
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            digest_index: DigestIndex::default(),
            nodes: HashMap::new(),
            retired: VecDeque::new(),
            history: History::new(limits, revision),
            differences: DifferenceCache::new(limits.bytes),
            service_ports: 0,
            endpoints: 0,
            rebuilds: 0,
            source_version: (SourceVersion::default(), KindVersions::default()),
        }
    }

    /// The epoch that the revisions belong to.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The current revision.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// When the first change after a revision was committed, for any node; `None` when there is none or the history
    /// does not reach back to it.
    pub(crate) fn changed_since(&self, revision: Revision) -> Option<Instant> {
        self.history.since(revision)?.next().map(|record| record.committed)
    }

    /// Commits changes. Returns the new revision, or `None` when nothing is different.
    pub(crate) fn commit(&mut self, changes: IndexChanges) -> Option<Revision> {
        let IndexChanges { mut ports, mut nodes, cluster, oldest_trigger, reflected, .. } = changes;
        self.source_version = reflected;
        let cluster = cluster.filter(|cluster| *cluster != self.cluster);
        nodes.retain(|(name, node)| self.node(name) != node.as_ref());
        ports.retain(|(key, view)| self.view(key) != view.as_ref());
        if nodes.is_empty() && ports.is_empty() && cluster.is_none() {
            return None;
        }
        self.revision.0 += 1;
        if let Some(cluster) = cluster {
            self.cluster = cluster;
            self.cluster_changed = self.revision;
        }
        for (name, node) in nodes {
            self.put_node(name, node);
        }
        let mut record = CommitRecord::new(oldest_trigger);
        for (key, view) in ports {
            self.put_view(key, view, &mut record);
        }
        self.history.push(record);
        self.differences.clear();
        self.prune();
        Some(self.revision)
    }

    /// What the last commit changed.
    pub(crate) fn last_changes(&self) -> impl Iterator<Item = (&ServicePortKey, ChangeKind)> {
        let changes = self.history.commits.back().map(|record| &record.changes);
        changes.into_iter().flatten().map(|(key, change)| (key, change.kind()))
    }

    /// Clears the history. To be called after the first commit: no client has an older revision.
    pub(crate) fn forget_past(&mut self) {
        self.history = History::new(self.history.limits, self.revision);
        self.prune();
    }

    /// The expected digests of a node at the current revision.
    pub(crate) fn digests(&self, name: &str) -> DigestVector {
        let node_entry = self.nodes.get(name);
        let mut digests = self.digest_index.digests(self.zone(name));
        if let Some(own) = node_entry.and_then(|node_entry| node_entry.own.as_deref()) {
            digests.add_all(own);
        }
        digests[INFO_ENTRY].add(self.info_digest(name, node_entry));
        digests
    }

    /// The sum of [`Self::digests`], computed without building them: it is needed for every message.
    pub(crate) fn digest(&self, name: &str) -> Digest {
        let node_entry = self.nodes.get(name);
        let mut sum = self.digest_index.digest(node_entry.map_or("", NodeEntry::zone));
        if let Some(own) = node_entry.and_then(|node_entry| node_entry.own.as_deref()) {
            sum.add(own.total());
        }
        sum.add(self.info_digest(name, node_entry));
        sum
    }

    /// The digest of node and cluster info.
    fn info_digest(&self, name: &str, node_entry: Option<&NodeEntry>) -> Digest {
        let node = node_entry.and_then(|node_entry| node_entry.node.as_ref());
        let mut digest = node.map_or_else(|| Digest::of_node(&NodeInfo::unknown(name)), |(_, digest)| *digest);
        digest.add(Digest::of_cluster(&self.cluster));
        digest
    }

    fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.nodes.get(name)?.node()
    }

    /// The zone of a node; empty when it has none or is unknown.
    fn zone(&self, name: &str) -> &str {
        self.nodes.get(name).map_or("", NodeEntry::zone)
    }

    fn put_node(&mut self, name: Arc<str>, node: Option<Arc<NodeInfo>>) {
        let node_entry = self.nodes.entry(name.clone()).or_default();
        let moved = node_entry.put_node(node, self.revision);
        if moved {
            // The digests of a node are relative to those of its zone.
            let zone = node_entry.zone();
            let mut own: Option<Box<DigestVector>> = None;
            for (bucket, key) in &node_entry.ports {
                if let Some(view) = self.buckets[usize::from(*bucket)].get(key) {
                    let digest = digest_index::own_digest(KeyHash::of(key), view, &name, zone);
                    own.get_or_insert_default()[*bucket].add(digest);
                }
            }
            node_entry.own = own;
        }
        self.retire(name);
    }

    fn put_view(&mut self, key: ServicePortKey, view: Option<ServicePortView>, record: &mut CommitRecord) {
        let hash = KeyHash::of(&key);
        let bucket = hash.bucket();
        let old = self.buckets[usize::from(bucket)].remove(&key);
        let change = PortChange::between(old.as_ref(), view.as_ref(), |node| self.zone(node));
        record.add(&key, change, view.as_ref());
        let mut left = BTreeSet::new();
        if let Some(old) = old {
            self.account(hash, &old, Digest::remove);
            for name in port_change::nodes_of_view(&old) {
                if let Some(node_entry) = self.nodes.get_mut(name) {
                    node_entry.remove_port(bucket, &key);
                }
                left.insert(name.clone());
            }
            self.service_ports -= 1;
            self.endpoints -= old.endpoints();
        }
        if let Some(view) = view {
            for name in port_change::nodes_of_view(&view) {
                self.nodes.entry(name.clone()).or_default().ports.insert((bucket, key.clone()));
            }
            self.account(hash, &view, Digest::add);
            self.service_ports += 1;
            self.endpoints += view.endpoints();
            self.buckets[usize::from(bucket)].put(key, view);
        }
        for name in left {
            self.retire(name);
        }
    }

    /// Adds or removes the digests of a view, for all nodes, for zones and for single nodes.
    fn account(&mut self, hash: KeyHash, view: &ServicePortView, apply: ApplyDigest) {
        let zone_digests = self.digest_index.account(hash, view, apply);
        let own = digest_index::own_digests(hash, view, &zone_digests, |node| self.zone(node));
        for (name, digest) in own {
            if let Some(node_entry) = self.nodes.get_mut(name) {
                apply(&mut node_entry.own.get_or_insert_default()[hash.bucket()], digest);
            }
        }
    }

    /// Schedules the removal of a node entry that is no longer needed.
    fn retire(&mut self, name: Arc<str>) {
        if self.nodes.get(&name).is_some_and(NodeEntry::is_retired) {
            self.retired.push_back((self.revision, name));
        }
    }

    /// Removes the entries of nodes whose removal is older than the history.
    fn prune(&mut self) {
        while let Some((revision, name)) = self.retired.front() {
            if *revision > self.history.floor {
                break;
            }
            if self.nodes.get(name).is_some_and(|node_entry| node_entry.is_forgettable(self.history.floor)) {
                self.nodes.remove(name);
            }
            self.retired.pop_front();
        }
    }
}
