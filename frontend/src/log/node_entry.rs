//! What the log stores about one node: its facts, and the service ports with pools specific to it.

use std::{collections::BTreeSet, sync::Arc};

use proto::{
    digest::{Digest, DigestVector},
    model::{NodeInfo, Revision, ServicePortKey},
};

/// A node that has a Node object or endpoints, or had one recently.
#[derive(Debug, Default)]
pub(super) struct NodeEntry {
    /// The node with its digest.
    pub(super) node: Option<(Arc<NodeInfo>, Digest)>,
    /// The revision of the last change of `node`.
    changed: Revision,
    /// The revision of the last change of the zone. Changes recorded before do not apply to this node.
    moved: Revision,
    /// The service ports with pools specific to this node, with their buckets.
    pub(super) ports: BTreeSet<(u8, ServicePortKey)>,
    /// What is added to the digests of its zone; `None` when there is nothing.
    pub(super) own: Option<Box<DigestVector>>,
}

impl NodeEntry {
    pub(super) fn node(&self) -> Option<&Arc<NodeInfo>> {
        self.node.as_ref().map(|(node, _)| node)
    }

    /// The zone; empty when it has none or is unknown.
    pub(super) fn zone(&self) -> &str {
        self.node().map_or("", |node| &node.zone)
    }

    /// Replaces the facts. Returns whether the zone has changed.
    pub(super) fn put_node(&mut self, node: Option<Arc<NodeInfo>>, revision: Revision) -> bool {
        let moved = self.zone() != node.as_ref().map_or("", |node| &node.zone);
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

    /// Whether the facts have changed since a revision.
    pub(super) fn changed_since(&self, from: Revision) -> bool {
        self.changed > from
    }

    /// Whether the zone has changed since a revision.
    pub(super) fn moved_since(&self, from: Revision) -> bool {
        self.moved > from
    }

    pub(super) fn remove_port(&mut self, bucket: u8, key: &ServicePortKey) {
        self.ports.remove(&(bucket, key.clone()));
        if self.ports.is_empty() {
            self.own = None;
        }
    }

    /// Whether the node has neither a Node object nor endpoints.
    pub(super) fn is_retired(&self) -> bool {
        self.node.is_none() && self.ports.is_empty()
    }

    /// Whether the entry can be removed: no client can resume from before the removal of the node.
    pub(super) fn is_forgettable(&self, floor: Revision) -> bool {
        self.is_retired() && !self.changed_since(floor) && !self.moved_since(floor)
    }
}
