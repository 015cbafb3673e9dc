//! A node that applies the updates of a log to its replica.

use std::sync::Arc;

use proto::model::{PerFamily, Revision};

use super::{
    super::NodeUpdate,
    replica::{Replica, ReplicaServicePort},
};
use crate::view::ServicePortView;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeReplica {
    pub(crate) name: Arc<str>,
    pub(crate) revision: Revision,
    pub(crate) state: Replica,
}

impl NodeReplica {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), revision: Revision(0), state: Replica::default() }
    }

    /// Adds a service port with the pools that a node in a zone uses.
    pub(crate) fn put(&mut self, view: &ServicePortView, node: &str, zone: &str) {
        let service = ReplicaServicePort {
            port: view.port.clone(),
            cluster: PerFamily::from_fn(|family| view.cluster_pool(family, node, zone).clone()),
            established: PerFamily::from_fn(|family| view.established[family].resolve(node, zone).clone()),
            gone: PerFamily::from_fn(|family| view.gone[family].default.clone()),
            local: PerFamily::from_fn(|family| view.local_pool(family, node).cloned().unwrap_or_default()),
        };
        self.state.services.insert(view.port.key.clone(), service);
    }

    pub(crate) fn apply(&mut self, update: NodeUpdate) {
        for operation in update.chunks.iter().flat_map(|chunk| chunk.operations()) {
            self.state.apply(operation.clone());
        }
        self.revision = update.target;
    }
}
