//! What is known about one node: its facts, and what it holds that others in its zone do not.

use std::{collections::BTreeSet, sync::Arc};

use proto::{
    digest::{Digest, DigestVector},
    model::{NodeInfo, Revision, ServicePortKey},
};

use super::digest_index::Sign;

/// A node that has a Node object, or endpoints, or had one not long ago.
#[derive(Debug, Default)]
pub(super) struct NodeEntry {
    /// With its digest.
    node: Option<(Arc<NodeInfo>, Digest)>,
    /// When `node` last changed.
    changed: Revision,
    /// When the zone last changed: deltas recorded before do not fit this node any more.
    moved: Revision,
    /// The service ports that have something special for this node, with their buckets.
    ports: BTreeSet<(u8, ServicePortKey)>,
    /// What is to be added to the digests of its zone; nothing when there are no `ports`.
    own: Option<Box<DigestVector>>,
}

impl NodeEntry {
    pub(super) fn node(&self) -> Option<&Arc<NodeInfo>> {
        self.node.as_ref().map(|(node, _)| node)
    }

    pub(super) fn facts_digest(&self) -> Option<Digest> {
        self.node.as_ref().map(|(_, digest)| *digest)
    }

    /// Replaces the facts. Says whether the zone is another one.
    pub(super) fn put_node(&mut self, node: Option<Arc<NodeInfo>>, revision: Revision) -> bool {
        let zone_of = |node: Option<&Arc<NodeInfo>>| node.map(|node| node.zone.clone()).unwrap_or_default();
        let moved = zone_of(self.node()) != zone_of(node.as_ref());
        self.node = node.map(|node| {
            let digest = Digest::of_node(&node);
            (node, digest)
        });
        self.changed = revision;
        if moved {
            self.moved = revision;
        }
        moved
    }

    /// Whether the facts are newer than a cursor.
    pub(super) fn changed_since(&self, from: Revision) -> bool {
        self.changed > from
    }

    /// Whether a cursor is from before the node came into its zone.
    pub(super) fn moved_since(&self, from: Revision) -> bool {
        self.moved > from
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = &(u8, ServicePortKey)> {
        self.ports.iter()
    }

    pub(super) fn add_port(&mut self, bucket: u8, key: ServicePortKey) {
        self.ports.insert((bucket, key));
    }

    pub(super) fn remove_port(&mut self, bucket: u8, key: &ServicePortKey) {
        self.ports.remove(&(bucket, key.clone()));
        if self.ports.is_empty() {
            self.own = None;
        }
    }

    pub(super) fn own(&self) -> Option<&DigestVector> {
        self.own.as_deref()
    }

    pub(super) fn set_own(&mut self, own: DigestVector) {
        self.own = (!self.ports.is_empty()).then(|| Box::new(own));
    }

    pub(super) fn account(&mut self, bucket: u8, digest: Digest, sign: Sign) {
        sign.apply(&mut self.own.get_or_insert_default()[bucket], digest);
    }

    /// Whether there is nothing to know about it.
    pub(super) fn is_retired(&self) -> bool {
        self.node.is_none() && self.ports.is_empty()
    }

    /// Whether there is nothing to know about it, and every cursor from `floor` on knows that.
    pub(super) fn is_forgettable(&self, floor: Revision) -> bool {
        self.is_retired() && !self.changed_since(floor) && !self.moved_since(floor)
    }
}
