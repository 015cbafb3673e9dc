//! The current state of the cluster as nodes see it, and the changes that led to it, for nodes at any revision.
//!
//! ```text
//!   changed views ──PreparedChanges──▶ commit ──▶ current views, by digest bucket ──rebuild──▶ whole buckets
//!   (without the lock)                  │                                                  (snapshot, repair)
//!                                       ├──▶ history: operations by commit ──difference──▶ those after a revision
//!                                       ├──▶ changes: what each was, for people
//!                                       └──▶ digests: all nodes + zone + node ──▶ the expected digest of a node
//! ```
//!
//! Nothing is queued for a node: it is a name and a revision, and receives what the commits after it sent, in order.
//! Operations for all nodes or for a zone are built and encoded once, as shared [`EncodedChunk`]s.

mod buckets;
mod change_history;
mod chunk;
mod digest_index;
mod history;
mod node_entry;
mod operations;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    iter, mem,
    sync::Arc,
    time::SystemTime,
};

use proto::{
    digest::{BUCKETS, Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, KindVersions, NodeInfo, Operation, Revision, ServicePortKey},
};
use tokio::time::Instant;

use crate::{
    config::HistoryLimits,
    index::IndexChanges,
    view::{ServicePortView, describe},
};

use self::{
    buckets::Bucket,
    change_history::ChangeHistory,
    digest_index::{ApplyDigest, DigestIndex},
    history::History,
    node_entry::NodeEntry,
    operations::{CommitOperations, Recipients, changed_nodes},
};

pub(crate) use self::{
    change_history::LoggedChange,
    chunk::{CHUNK_BYTES, EncodedChunk},
    history::CommitRecord,
};

/// The bytes of the changes since a revision that a node is sent, however small the whole state is: nodes that are some
/// commits behind must not all compare digests, which are answered to few at a time.
const MAX_DIFFERENCE: usize = 1 << 20;

/// An update that brings a node to the current revision.
#[derive(Clone, Debug)]
pub(crate) struct NodeUpdate {
    /// The current revision.
    pub(crate) target: Revision,
    /// The operations; empty when nothing changes for this node.
    pub(crate) chunks: Vec<Arc<EncodedChunk>>,
    /// When the oldest change in it was made, according to the API.
    pub(crate) oldest_trigger: Option<SystemTime>,
    /// When the first of its commits was made; `None` for a snapshot or repair.
    pub(crate) committed_at: Option<Instant>,
    /// The expected digest of the node afterwards.
    pub(crate) digest: Digest,
    /// The version of each kind that the update reflects.
    pub(crate) kind_versions: KindVersions,
}

/// The commits since the revision of a node, from which its update follows without the log: a commit may have an
/// operation for each of many pools with hints.
#[derive(Debug)]
pub(crate) struct CommitsSince {
    records: Vec<Arc<CommitRecord>>,
    zone: String,
    /// The most bytes of several commits.
    limit: usize,
    /// Without its operations.
    update: NodeUpdate,
}

/// The last changes, from which those that concern a node follow without the log.
#[derive(Debug)]
pub(crate) struct ChangesSince {
    /// Newest first.
    pub(crate) changes: Vec<Arc<LoggedChange>>,
    /// Of the node.
    zone: String,
}

/// The current state of the cluster as nodes see it, and its history.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    revision: Revision,
    cluster: ClusterInfo,
    buckets: Vec<Bucket>,
    digest_index: DigestIndex,
    nodes: HashMap<Arc<str>, NodeEntry>,
    history: History,
    /// What the last commits changed, for people.
    pub(crate) changes: ChangeHistory,
    /// How many service ports there are.
    pub(crate) service_ports: usize,
    /// How many endpoints they have.
    pub(crate) endpoints: usize,
    /// Service ports that had endpoints and have none now.
    pub(crate) lost: BTreeSet<ServicePortKey>,
    kind_versions: KindVersions,
}

impl CommitsSince {
    /// What the node receives. `None` when several commits have more than [`MAX_DIFFERENCE`] and the whole state: then
    /// digests must be compared.
    pub(crate) fn difference(self, node: &str) -> Option<NodeUpdate> {
        let Self { records, zone, limit, mut update } = self;
        let mut size = 0;
        for record in &records {
            let is_first = update.chunks.is_empty();
            for chunk in record.chunks(node, &zone) {
                size += chunk.size();
                update.chunks.push(chunk.clone());
            }
            if size > limit && !is_first {
                return None;
            }
        }
        Some(update)
    }
}

impl ChangesSince {
    /// Whether the node was sent something for a change.
    pub(crate) fn concerns(&self, node: &str, change: &LoggedChange) -> bool {
        change.recipients.contains(node, &self.zone)
    }
}

/// The change of one service port, before it is committed.
#[derive(Debug)]
struct PortChange {
    key: ServicePortKey,
    after: Option<ServicePortView>,
    /// For people.
    summary: String,
    recipients: Recipients,
    /// See [`changed_nodes`].
    nodes: BTreeSet<Arc<str>>,
}

/// Changes with all that follows from the service ports before and after. That is computed before the log is locked:
/// sessions wait for it.
#[derive(Debug)]
pub(crate) struct PreparedChanges {
    /// Those that differ.
    ports: Vec<PortChange>,
    /// What they send to nodes.
    operations: CommitOperations,
    /// Everything but service ports.
    others: IndexChanges,
}

impl PreparedChanges {
    /// `before`: the views before ([`ChangeLog::views_of`]). `zone_of` returns the zone of a node after the changes.
    pub(crate) fn new<'a>(
        mut changes: IndexChanges,
        before: &[Option<Arc<ServicePortView>>],
        zone_of: impl Fn(&str) -> &'a str,
    ) -> Self {
        let mut ports = Vec::new();
        let mut operations = CommitOperations::default();
        for ((key, view), before) in iter::zip(mem::take(&mut changes.ports), before) {
            let before = before.as_deref();
            let after = view.as_ref();
            if before == after {
                continue;
            }

            let mut of_port = CommitOperations::default();
            of_port.change(&key, before, after, &zone_of);
            let recipients = of_port.recipients();
            operations.append(of_port);

            let summary = describe(before, after);
            let nodes = changed_nodes(before, after);
            ports.push(PortChange { key, after: view, summary, recipients, nodes });
        }
        Self { ports, operations, others: changes }
    }
}

impl ChangeLog {
    /// A cluster without services and nodes, at revision 1.
    pub(crate) fn new(limits: HistoryLimits) -> Self {
        let revision = Revision(1);
        Self {
            revision,
            cluster: ClusterInfo::default(),
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            digest_index: DigestIndex::default(),
            nodes: HashMap::new(),
            history: History::new(limits, revision),
            changes: ChangeHistory::default(),
            service_ports: 0,
            endpoints: 0,
            lost: BTreeSet::new(),
            kind_versions: KindVersions::default(),
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// When the first change after a revision was committed, for any node; `None` when there is none or the history
    /// does not reach back to it.
    pub(crate) fn changed_since(&self, revision: Revision) -> Option<Instant> {
        self.history.since(revision)?.next().map(|record| record.committed)
    }

    /// The first commit: no client has an older revision, so that no history is kept of it.
    pub(crate) fn start(&mut self, changes: IndexChanges) {
        let IndexChanges { ports, nodes, cluster, reflected, .. } = changes;
        self.kind_versions = reflected;
        self.cluster = cluster.unwrap_or_default();
        for (name, node) in nodes {
            self.put_node(&name, node);
        }
        for (key, view) in ports {
            let nodes = changed_nodes(None, view.as_ref());
            self.put_view(key, view, &nodes);
        }
        self.revision.0 += 1;
        self.history = History::new(self.history.limits, self.revision);
        self.changes = ChangeHistory::since(SystemTime::now());
    }

    /// Commits changes, prepared with the current views. Returns the new revision, or `None` when nothing is different.
    pub(crate) fn commit(&mut self, changes: PreparedChanges) -> Option<Revision> {
        let PreparedChanges { ports, mut operations, others } = changes;
        let IndexChanges { mut causes, mut nodes, cluster, oldest_trigger, reflected, .. } = others;
        self.kind_versions = reflected;
        let cluster = cluster.filter(|cluster| *cluster != self.cluster);
        nodes.retain(|(name, node)| self.node(name) != node.as_ref());
        if nodes.is_empty() && ports.is_empty() && cluster.is_none() {
            return None;
        }

        self.revision.0 += 1;
        let revision = self.revision;
        let at = self.changes.commit_time(SystemTime::now());

        if let Some(cluster) = cluster {
            operations.all.push(Operation::PutCluster(cluster.clone()));
            self.cluster = cluster;
        }

        let mut moved = BTreeSet::new();
        for (name, node) in nodes {
            if self.put_node(&name, node) {
                // No operation: a node whose zone has changed gets a repair.
                self.changes.record_move(at, name.clone());
                moved.insert(name);
            } else {
                let facts = Operation::PutNode(self.facts(&name));
                operations.own.entry(name).or_default().push(facts);
            }
        }

        for PortChange { key, after, summary, recipients, nodes } in ports {
            let cause = causes.remove(&key);
            self.changes.push(LoggedChange { at, revision, key: key.clone(), summary, cause, recipients });
            self.put_view(key, after, &nodes);
        }

        self.history.push(CommitRecord::new(operations, moved, oldest_trigger));
        Some(revision)
    }

    /// The changes at later times, newest first.
    pub(crate) fn changes_while(&self, node: &str, is_later: impl Fn(SystemTime) -> bool) -> ChangesSince {
        let changes = self.changes.iter().take_while(|change| is_later(change.at));
        ChangesSince { changes: changes.cloned().collect(), zone: self.zone(node).to_owned() }
    }

    /// The commits between a revision and the current one. `None` when the revision is older than the history, or when
    /// the zone of the node has changed since: then digests must be compared.
    pub(crate) fn commits_since(&self, node: &str, from: Revision) -> Option<CommitsSince> {
        let records = self.history.since(from)?;
        if records.clone().any(|record| record.moved.contains(node)) {
            return None;
        }
        let oldest_trigger = records.clone().filter_map(|record| record.oldest_trigger).min();
        let committed_at = records.clone().next().map(|record| record.committed);
        Some(CommitsSince {
            records: records.cloned().collect(),
            zone: self.zone(node).to_owned(),
            limit: MAX_DIFFERENCE.max(self.snapshot_size()),
            update: NodeUpdate { oldest_trigger, committed_at, ..self.update(node, Vec::new()) },
        })
    }

    /// A snapshot or repair of a node with these operations.
    fn update(&self, node: &str, chunks: Vec<Arc<EncodedChunk>>) -> NodeUpdate {
        NodeUpdate {
            target: self.revision,
            chunks,
            oldest_trigger: None,
            committed_at: None,
            digest: self.digest(node),
            kind_versions: self.kind_versions,
        }
    }

    /// About the size of a snapshot, in bytes.
    fn snapshot_size(&self) -> usize {
        /// With its key and those of its pools.
        const SERVICE_PORT: usize = 512;
        const ENDPOINT: usize = 20;
        self.service_ports * SERVICE_PORT + self.endpoints * ENDPOINT
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

    /// Replaces the facts about a node. Returns whether its zone has changed.
    fn put_node(&mut self, name: &Arc<str>, node: Option<Arc<NodeInfo>>) -> bool {
        let node_entry = self.nodes.entry(name.clone()).or_default();
        let has_moved = node_entry.put_node(node);
        if has_moved {
            node_entry.own = own_digests(name, node_entry, &self.buckets);
        }
        self.forget_if_empty(name);
        has_moved
    }

    /// Replaces a view. `nodes` are the nodes whose own pools differ. No other node is visited, because a Service can
    /// have endpoints on thousands of nodes.
    fn put_view(&mut self, key: ServicePortKey, view: Option<ServicePortView>, nodes: &BTreeSet<Arc<str>>) {
        let hash = KeyHash::of(&key);
        let had_endpoints = self.view(&key).is_some_and(|view| view.has_endpoints());
        let has_endpoints = view.as_ref().map(ServicePortView::has_endpoints);

        self.remove_view(&key, hash, nodes);
        self.update_own_ports(&key, hash, view.as_ref(), nodes);
        if let Some(view) = view {
            self.add_view(&key, hash, view, nodes);
        }

        match has_endpoints {
            Some(false) if had_endpoints => drop(self.lost.insert(key)),
            // A service port that never had endpoints is not lost, and a lost one stays lost.
            Some(false) => {}
            Some(true) | None => drop(self.lost.remove(&key)),
        }
    }

    /// Removes the view of a service port, if it has one.
    fn remove_view(&mut self, key: &ServicePortKey, hash: KeyHash, nodes: &BTreeSet<Arc<str>>) {
        let Some(view) = self.buckets[usize::from(hash.bucket())].remove(key) else { return };
        let endpoints = view.endpoints();

        self.account(hash, &view, nodes, Digest::remove);
        self.service_ports -= 1;
        self.endpoints -= endpoints;
    }

    /// Adds the view of a service port that has none.
    fn add_view(&mut self, key: &ServicePortKey, hash: KeyHash, view: ServicePortView, nodes: &BTreeSet<Arc<str>>) {
        let endpoints = view.endpoints();

        self.account(hash, &view, nodes, Digest::add);
        self.service_ports += 1;
        self.endpoints += endpoints;
        self.buckets[usize::from(hash.bucket())].put(key.clone(), Arc::new(view));
    }

    /// Updates which of these nodes have pools of their own in a service port.
    fn update_own_ports(
        &mut self,
        key: &ServicePortKey,
        hash: KeyHash,
        view: Option<&ServicePortView>,
        nodes: &BTreeSet<Arc<str>>,
    ) {
        for name in nodes {
            if view.is_some_and(|view| view.has_own_pools(name)) {
                let node_entry = self.nodes.entry(name.clone()).or_default();
                node_entry.ports.insert((hash.bucket(), key.clone()));
            } else if let Some(node_entry) = self.nodes.get_mut(name) {
                node_entry.remove_port(hash.bucket(), key);
                self.forget_if_empty(name);
            }
        }
    }

    /// Adds or removes the digests of a view: for all nodes, for zones, and for each of `nodes`.
    fn account(&mut self, hash: KeyHash, view: &ServicePortView, nodes: &BTreeSet<Arc<str>>, apply: ApplyDigest) {
        let by_zone = self.digest_index.account(hash, view, apply);
        for name in nodes.iter().filter(|name| view.has_own_pools(name)) {
            let Some(node_entry) = self.nodes.get_mut(name) else { continue };
            let zone = node_entry.zone();
            let own = digest_index::own_digest(hash, view, name, |at, _, _| *by_zone[at].in_zone(zone));
            apply(&mut node_entry.own.get_or_insert_default()[hash.bucket()], own);
        }
    }

    fn forget_if_empty(&mut self, name: &Arc<str>) {
        if self.nodes.get(name).is_some_and(NodeEntry::is_empty) {
            self.nodes.remove(name);
        }
    }
}

/// What the pools that only one node has add to its digests, relative to the digests of its zone. `None` without any.
fn own_digests(node: &str, node_entry: &NodeEntry, buckets: &[Bucket]) -> Option<Box<DigestVector>> {
    let zone = node_entry.zone();
    let mut own: Option<Box<DigestVector>> = None;
    for (bucket, key) in &node_entry.ports {
        let Some(view) = buckets[usize::from(*bucket)].get(key) else { continue };
        let hash = KeyHash::of(key);
        let digest =
            digest_index::own_digest(hash, view, node, |_, class, pools| hash.pool(class, pools.in_zone(zone)));
        own.get_or_insert_default()[*bucket].add(digest);
    }
    own
}
