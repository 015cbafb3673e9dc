//! What the log stores about one node: its facts, and the service ports with pools specific to it.

use std::{collections::BTreeSet, sync::Arc};

use proto::{
    digest::{Digest, DigestVector},
    model::{NodeInfo, ServicePortKey},
};

/// A node that has a Node object or endpoints.
#[derive(Debug, Default)]
pub(super) struct NodeEntry {
    /// The node with its digest.
    pub(super) node: Option<(Arc<NodeInfo>, Digest)>,
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
    pub(super) fn put_node(&mut self, node: Option<Arc<NodeInfo>>) -> bool {
        let moved = self.zone() != node.as_ref().map_or("", |node| &node.zone);
        self.node = node.map(|node| {
            let digest = Digest::of_node(&node);
            (node, digest)
        });
        moved
    }

    pub(super) fn remove_port(&mut self, bucket: u8, key: &ServicePortKey) {
        self.ports.remove(&(bucket, key.clone()));
        if self.ports.is_empty() {
            self.own = None;
        }
    }

    /// Whether the node has neither a Node object nor endpoints.
    pub(super) fn is_empty(&self) -> bool {
        self.node.is_none() && self.ports.is_empty()
    }
}
