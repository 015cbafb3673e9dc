//! What the cluster looks like now and how it came to that, for nodes that stand anywhere in between.
//!
//! ```text
//!   changed views ──commit──▶ current views, by digest bucket ──rebuild──▶ whole buckets   (snapshot, repair)
//!                        └──▶ history: what each revision did ──difference──▶ net changes    (everybody else)
//!                        └──▶ digests: everyone + zone + node ──▶ what a node must hold
//! ```
//!
//! A node is a name and a cursor; nothing is queued for it. What many nodes need is built and encoded once and shared
//! as [`EncodedChunk`]s: everything that is the same for everyone or for a zone. What only one node needs is appended.

mod buckets;
mod chunk;
mod difference;
mod digest_index;
mod history;
mod inspect;
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
    model::{ClusterInfo, Epoch, NodeInfo, Revision, ServicePortKey, SourceVersion},
};

use tokio::time::Instant;

use crate::{index::IndexChanges, view::ServicePortView};

use self::{
    buckets::Bucket,
    difference::DifferenceCache,
    digest_index::{DigestIndex, Sign},
    history::{CommitRecord, History},
    node_entry::NodeEntry,
    port_change::PortChange,
};

pub(crate) use self::chunk::CHUNK_BYTES;
pub use self::chunk::{EncodedChunk, EncodingCounters};

/// How much of the past is kept.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Commits.
    pub entries: usize,
    /// Memory in bytes, roughly; as much again for what was made of it for nodes at several revisions.
    pub bytes: usize,
}

/// What leads a node from one revision to the present one.
#[derive(Clone, Debug)]
pub struct NodeUpdate {
    /// The present revision.
    pub target: Revision,
    /// The operations; none when nothing changed for this node.
    pub chunks: Vec<Arc<EncodedChunk>>,
    /// When the oldest change in it was made in the cluster.
    pub oldest_trigger: Option<SystemTime>,
    /// The sum of the digests of all that the node holds afterwards.
    pub digest: Digest,
    /// What that reflects.
    pub source_version: SourceVersion,
}

/// The state of the cluster as the nodes see it, and its history.
#[derive(Debug)]
pub struct ChangeLog {
    epoch: Epoch,
    revision: Revision,
    cluster: ClusterInfo,
    /// Since when the cluster's facts are what they are.
    cluster_since: Revision,
    buckets: Vec<Bucket>,
    digest_index: DigestIndex,
    nodes: HashMap<Arc<str>, NodeEntry>,
    /// Nodes that are gone, with the revision below which a cursor may not know it yet.
    retired: VecDeque<(Revision, Arc<str>)>,
    history: History,
    shared: DifferenceCache,
    service_ports: usize,
    endpoints: usize,
    rebuilds: u64,
    source_version: SourceVersion,
}

impl ChangeLog {
    /// A cluster without services and nodes, at revision 1.
    #[must_use]
    pub fn new(epoch: Epoch, limits: HistoryLimits) -> Self {
        let revision = Revision(1);
        Self {
            epoch,
            revision,
            cluster: ClusterInfo::default(),
            cluster_since: revision,
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            digest_index: DigestIndex::default(),
            nodes: HashMap::new(),
            retired: VecDeque::new(),
            history: History::new(limits, revision),
            shared: DifferenceCache::new(limits.bytes),
            service_ports: 0,
            endpoints: 0,
            rebuilds: 0,
            source_version: SourceVersion::default(),
        }
    }

    /// The run of the frontend that the revisions belong to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The present revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many service ports there are.
    #[must_use]
    pub fn service_ports(&self) -> usize {
        self.service_ports
    }

    /// How many endpoints they have.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// How many snapshots and repairs have been put together.
    #[must_use]
    pub fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// When the oldest change after a revision was committed, whomever it concerns; `None` when there is none, or it is too long ago.
    #[must_use]
    pub fn changed_since(&self, revision: Revision) -> Option<Instant> {
        self.history.since(revision)?.next().map(CommitRecord::committed)
    }

    /// Takes in what may have changed. Gives the new revision, or `None` when nothing is different.
    pub fn commit(&mut self, changes: IndexChanges) -> Option<Revision> {
        let IndexChanges { mut ports, mut nodes, cluster, oldest_trigger, reflected, confirmed: _ } = changes;
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
            self.cluster_since = self.revision;
        }
        for (name, node) in nodes {
            self.put_node(name, node);
        }
        let mut entry = CommitRecord::new(oldest_trigger);
        for (key, view) in ports {
            self.put_view(key, view, &mut entry);
        }
        self.history.push(entry);
        self.shared.clear();
        self.prune();
        Some(self.revision)
    }

    /// Forgets how the present revision came about, because nobody was told of any before.
    pub fn forget_past(&mut self) {
        self.history.clear(self.revision);
        self.prune();
    }

    /// The digests of what a node must hold at the present revision.
    #[must_use]
    pub fn digests(&self, node: &str) -> DigestVector {
        let node_entry = self.nodes.get(node);
        let mut digests = self.digest_index.digests(self.zone(node));
        if let Some(own) = node_entry.and_then(NodeEntry::own) {
            digests.add_all(own);
        }
        let facts = node_entry.and_then(NodeEntry::facts_digest);
        digests[INFO_ENTRY].add(facts.unwrap_or_else(|| Digest::of_node(&NodeInfo::unknown(node))));
        digests[INFO_ENTRY].add(Digest::of_cluster(&self.cluster));
        digests
    }

    /// The sum of [`Self::digests`]: what is asked for with every message.
    #[must_use]
    pub fn digest(&self, node: &str) -> Digest {
        let node_entry = self.nodes.get(node);
        let zone = node_entry.and_then(NodeEntry::node).map_or("", |node| &node.zone);
        let mut sum = self.digest_index.digest(zone);
        if let Some(own) = node_entry.and_then(NodeEntry::own) {
            sum.add(own.total());
        }
        let facts = node_entry.and_then(NodeEntry::facts_digest);
        sum.add(facts.unwrap_or_else(|| Digest::of_node(&NodeInfo::unknown(node))));
        sum.add(Digest::of_cluster(&self.cluster));
        sum
    }

    fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.nodes.get(name)?.node()
    }

    /// The zone of a node; empty when it has none or is not known.
    fn zone(&self, name: &str) -> &str {
        self.node(name).map_or("", |node| &node.zone)
    }

    fn put_node(&mut self, name: Arc<str>, node: Option<Arc<NodeInfo>>) {
        let node_entry = self.nodes.entry(name.clone()).or_default();
        let moved = node_entry.put_node(node, self.revision);
        if moved {
            // Where node hints are in force, what a node holds beyond its zone depends on the zone.
            let zone = self.zone(&name);
            let mut own = DigestVector::default();
            for (bucket, key) in self.nodes.get(&name).into_iter().flat_map(NodeEntry::ports) {
                if let Some(view) = self.buckets[usize::from(*bucket)].get(key) {
                    own[*bucket].add(digest_index::own_digest(KeyHash::of(key), view, &name, zone));
                }
            }
            if let Some(node_entry) = self.nodes.get_mut(&name) {
                node_entry.set_own(own);
            }
        }
        self.retire(name);
    }

    fn put_view(&mut self, key: ServicePortKey, view: Option<ServicePortView>, entry: &mut CommitRecord) {
        let hash = KeyHash::of(&key);
        let bucket = hash.bucket();
        let old = self.buckets[usize::from(bucket)].remove(&key);
        let change = PortChange::between(old.as_ref(), view.as_ref(), |node| self.zone(node));
        entry.record(&key, change, view.as_ref());
        let mut left = BTreeSet::new();
        if let Some(old) = old {
            self.account(hash, &old, Sign::Remove);
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
                self.nodes.entry(name.clone()).or_default().add_port(bucket, key.clone());
            }
            self.account(hash, &view, Sign::Add);
            self.service_ports += 1;
            self.endpoints += view.endpoints();
            self.buckets[usize::from(bucket)].put(key, view);
        }
        for name in left {
            self.retire(name);
        }
    }

    /// Adds or removes the digests of a view, for everyone, for zones and for nodes.
    fn account(&mut self, hash: KeyHash, view: &ServicePortView, sign: Sign) {
        let zone_digests = self.digest_index.account(hash, view, sign);
        for (name, digest) in digest_index::own_digests(hash, view, &zone_digests, |node| self.zone(node)) {
            if let Some(node_entry) = self.nodes.get_mut(name) {
                node_entry.account(hash.bucket(), digest, sign);
            }
        }
    }

    /// Remembers to forget a node, when there is nothing to know about it any more.
    fn retire(&mut self, name: Arc<str>) {
        if self.nodes.get(&name).is_some_and(NodeEntry::is_retired) {
            self.retired.push_back((self.revision, name));
        }
    }

    /// Forgets the nodes that every cursor knows to be gone.
    fn prune(&mut self) {
        while let Some((revision, name)) = self.retired.front() {
            if *revision > self.history.floor() {
                break;
            }
            if self.nodes.get(name).is_some_and(|node_entry| node_entry.is_forgettable(self.history.floor())) {
                self.nodes.remove(name);
            }
            self.retired.pop_front();
        }
    }
}
