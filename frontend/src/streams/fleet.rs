//! The nodes of the cluster and their streams at one moment.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proto::model::{Revision, Role};

use super::{Registry, StreamStatus};

/// All streams, and the nodes without one.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// Agents, in the order of their nodes; of several of one node the last speaks for it.
    pub(crate) agents: Vec<StreamStatus>,
    /// Those who only look, shadows too, in the order of the nodes that they look at.
    pub(crate) observers: Vec<StreamStatus>,
    /// The nodes of the cluster that have no agent here, in order.
    pub(crate) absent: Vec<Absent>,
    /// How many nodes the cluster has.
    pub(crate) nodes: usize,
    /// By node, why the last stream was ended, where that is not over.
    errors: BTreeMap<Arc<str>, String>,
}

/// A node of the cluster that has no agent here.
#[derive(Debug)]
pub(crate) struct Absent {
    pub(crate) node: Arc<str>,
    /// For how long.
    pub(crate) alone: Duration,
}

impl Fleet {
    pub(super) fn of(registry: &Registry) -> Self {
        let ids = registry.agents.values().flatten();
        let agents = ids.filter_map(|id| registry.streams.get(id)).cloned().collect();
        let observers = registry.streams.values().filter(|status| status.role != Role::Backend);
        let mut observers: Vec<_> = observers.cloned().collect();
        observers.sort_by(|left, right| left.node.cmp(&right.node));
        let absent = registry.nodes.iter().filter(|(name, _)| !registry.agents.contains_key(*name));
        let absent =
            absent.map(|(name, alone_since)| Absent { node: name.clone(), alone: alone_since.elapsed() }).collect();
        Self { agents, observers, absent, nodes: registry.nodes.len(), errors: registry.errors.clone() }
    }

    /// For each node with an agent its newest stream.
    pub(crate) fn speakers(&self) -> impl Iterator<Item = &StreamStatus> {
        let nodes = self.agents.chunk_by(|left, right| left.node == right.node);
        nodes.filter_map(<[_]>::last)
    }

    /// The stream of a shadow on a node.
    pub(crate) fn shadow(&self, node: &str) -> Option<&StreamStatus> {
        self.observers.iter().find(|status| status.role == Role::Shadow && *status.node == *node)
    }

    /// The newest revision that every agent holds; `None` when there is no agent.
    pub(crate) fn in_every_kernel(&self) -> Option<Revision> {
        self.speakers().map(|status| status.held).min()
    }

    /// Why the node's last stream was ended, unless that is over.
    pub(crate) fn last_error(&self, node: &str) -> Option<&str> {
        self.errors.get(node).map(String::as_str)
    }
}
