//! The net difference between a revision and the present one, for one node: never a queue of events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use proto::model::{Operation, PoolId, Revision, ServicePortKey};

use super::{
    Log, Update,
    change::{self, PortChange},
    history::Entry,
    piece::Piece,
};

/// Pieces that many nodes are sent.
type SharedPieces = Arc<[Arc<Piece>]>;

/// What nodes without anything special need to get to the present revision, by where they come from and, if it matters, by
/// zone. A client says itself where it comes from, so this is bounded.
#[derive(Debug)]
pub(super) struct Shared {
    limit: usize,
    pieces: HashMap<(Revision, Arc<str>), SharedPieces>,
    /// Of all entries, in bytes.
    size: usize,
}

impl Shared {
    /// At most about `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, pieces: HashMap::new(), size: 0 }
    }

    /// About how many bytes of memory it takes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The present revision is another one.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.size = 0;
    }

    fn get(&self, at: &(Revision, Arc<str>)) -> Option<SharedPieces> {
        self.pieces.get(at).cloned()
    }

    fn insert(&mut self, at: (Revision, Arc<str>), pieces: SharedPieces) {
        /// What an entry needs beside its pieces.
        const ENTRY: usize = 128;
        let size = ENTRY + pieces.iter().map(|piece| piece.size()).sum::<usize>();
        if self.size + size > self.limit {
            self.clear();
        }
        self.size += size;
        self.pieces.insert(at, pieces);
    }
}

impl Log {
    /// What leads a node from a revision to the present one. `None` when that is not known any more, because the
    /// revision is too old or the node has come into another zone since: then buckets must be compared.
    pub fn difference(&mut self, node: &str, from: Revision) -> Option<Update> {
        if from > self.revision || self.recipients.get(node).is_some_and(|recipient| recipient.moved_since(from)) {
            return None;
        }
        let entries = self.history.since(from)?;
        let oldest_trigger = entries.clone().filter_map(Entry::oldest_trigger).min();
        let mut changes: BTreeMap<_, Vec<_>> =
            entries.clone().flat_map(|entry| entry.own(node)).map(|key| (key, Vec::new())).collect();
        entries.for_each(|entry| entry.changes_of(&mut changes));
        let mut own = Vec::new();
        if self.recipients.get(node).is_some_and(|recipient| recipient.changed_since(from)) {
            own.push(self.facts(node));
        }
        if self.cluster_since > from {
            own.push(Operation::PutCluster(self.cluster.clone()));
        }
        let zone: Arc<str> = self.zone(node).into();
        let mut instead = BTreeSet::new();
        for (key, changes) in changes {
            let current = self.view(key);
            instead.extend(change::net_for_node(key, &changes, current, (node, &zone), &mut own));
        }
        let shared = self.shared(from, zone)?;
        let mut pieces = if instead.is_empty() { shared.to_vec() } else { without(&shared, &instead) };
        pieces.extend(Piece::pack(own));
        let digest = self.digest(node);
        Some(Update { target: self.revision, pieces, oldest_trigger, digest, source_version: self.source_version })
    }

    /// What all nodes of a zone need, but for what is special for each.
    fn shared(&mut self, from: Revision, zone: Arc<str>) -> Option<SharedPieces> {
        let mut entries = self.history.since(from)?;
        let differs = entries.any(|entry| entry.differs_in(&zone));
        let at = (from, if differs { zone } else { Arc::default() });
        if let Some(shared) = self.shared.get(&at) {
            return Some(shared);
        }
        let mut changes = BTreeMap::<&ServicePortKey, Vec<&PortChange>>::new();
        for (key, change) in self.history.since(from)?.flat_map(Entry::changes) {
            changes.entry(key).or_default().push(change);
        }
        let mut operations = Vec::new();
        for (key, changes) in changes {
            change::net_for_zone(key, &changes, self.view(key), &at.1, &mut operations);
        }
        let shared: SharedPieces = Piece::pack(operations).into();
        self.shared.insert(at, shared.clone());
        Some(shared)
    }
}

/// The pieces anew, without the operations on some pools.
fn without(pieces: &[Arc<Piece>], pools: &BTreeSet<PoolId>) -> Vec<Arc<Piece>> {
    let operations = pieces.iter().flat_map(|piece| piece.operations());
    let kept = operations.filter(|operation| match operation {
        Operation::ChangePool { pool, .. } | Operation::ReplacePool { pool, .. } => !pools.contains(pool),
        _ => true,
    });
    Piece::pack(kept.cloned())
}
