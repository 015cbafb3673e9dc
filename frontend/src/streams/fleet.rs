//! The nodes of the cluster and their streams at one moment.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proto::model::{Revision, Role};

use super::{Registry, StreamStatus};

/// All streams, and the nodes without a backend.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Backend streams, by node. The last one of a node represents it.
    pub(crate) backends: Vec<StreamStatus>,
    /// Streams of observers and shadows, by node.
    pub(crate) observers: Vec<StreamStatus>,
    /// The nodes of the cluster without a backend stream here, by name.
    pub(crate) disconnected: Vec<DisconnectedNode>,
    /// How many nodes the cluster has.
    pub(crate) nodes: usize,
    /// By node, why its last stream was ended, until a later stream succeeds.
    errors: BTreeMap<Arc<str>, String>,
}

/// A node of the cluster without a backend stream here.
#[derive(Debug)]
pub(crate) struct DisconnectedNode {
    pub(crate) node: Arc<str>,
    /// For how long.
    pub(crate) duration: Duration,
}

impl Fleet {
    pub(super) fn of(registry: &Registry) -> Self {
        let ids = registry.backends.values().flatten();
        let backends = ids.filter_map(|id| registry.streams.get(id)).cloned().collect();
        let observers = registry.streams.values().filter(|status| status.role != Role::Backend);
        let mut observers: Vec<_> = observers.cloned().collect();
        observers.sort_by(|left, right| left.node.cmp(&right.node));
        let disconnected = registry.nodes.iter().filter(|(name, _)| !registry.backends.contains_key(*name));
        let disconnected =
            disconnected.map(|(name, since)| DisconnectedNode { node: name.clone(), duration: since.elapsed() });
        Self {
            backends,
            observers,
            disconnected: disconnected.collect(),
            nodes: registry.nodes.len(),
            errors: registry.errors.clone(),
        }
    }

    /// The newest backend stream of each connected node.
    pub(crate) fn current_backends(&self) -> impl Iterator<Item = &StreamStatus> {
        let nodes = self.backends.chunk_by(|left, right| left.node == right.node);
        nodes.filter_map(<[_]>::last)
    }

    /// The stream of a shadow on a node.
    pub(crate) fn shadow(&self, node: &str) -> Option<&StreamStatus> {
        self.observers.iter().find(|status| status.role == Role::Shadow && *status.node == *node)
    }

    /// The newest revision that every connected node has programmed; `None` when no node is connected.
    pub(crate) fn programmed_on_all_nodes(&self) -> Option<Revision> {
        self.current_backends().map(|status| status.programmed).min()
    }

    /// Why the node's last stream was ended, until a later stream succeeds.
    pub(crate) fn last_error(&self, node: &str) -> Option<&str> {
        self.errors.get(node).map(String::as_str)
    }
}
