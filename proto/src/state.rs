//! The state that a node is to program, as a value. A commit makes a new state that shares the equal parts of the last
//! one, and the difference of two states is the change.
//!
//! ```text
//!   NodeState ──apply(operations)──▶ NodeState'        cost: what the operations touch
//!       └─────────────diff──────────────┘              cost: what differs
//! ```

mod apply;
mod service_port;
mod service_ports;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, Endpoint, NodeInfo, Operation, ServicePortKey},
};

pub use apply::RejectedOperation;
pub use service_port::{ServiceName, ServicePortState};
pub use service_ports::{ServicePortChange, ServicePorts};

/// The state of a node: the facts of the node and the cluster, service ports with their pools, and the digests of all
/// of them. Cloning it costs three pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    facts: Arc<Facts>,
    service_ports: ServicePorts,
    digests: Arc<DigestVector>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    node: NodeInfo,
    /// The facts that are used in place of `node`. While there is no Node object, its last facts, because it may have
    /// been deleted by mistake. While the object has no addresses, its other facts with its last addresses.
    retained_node: Option<NodeInfo>,
    cluster: ClusterInfo,
}

/// What differs between two states, so that a backend need not inspect the rest. Exact: a key is listed only if its
/// service port or one of its pools differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The service ports that were added, removed or changed, or whose pools changed.
    pub service_ports: BTreeSet<ServicePortKey>,
    /// Whether the node's facts changed.
    pub node: bool,
    /// Whether the cluster's facts changed.
    pub cluster: bool,
}

/// Endpoints that left all pools of their service ports, except for those of endpoints that are gone.
pub type DepartedEndpoints = BTreeMap<ServicePortKey, Vec<Endpoint>>;

// === impl Changes ===

impl Changes {
    /// What differs.
    #[must_use]
    pub fn between(before: &NodeState, after: &NodeState) -> Self {
        Self {
            service_ports: before.diff(after).map(|change| change.key.clone()).collect(),
            node: before.node() != after.node(),
            cluster: before.cluster() != after.cluster(),
        }
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

// === impl NodeState ===

impl NodeState {
    /// A node without service ports.
    #[must_use]
    pub fn new(node: NodeInfo) -> Self {
        let facts = Arc::new(Facts { node, retained_node: None, cluster: ClusterInfo::default() });
        let mut state = Self { facts, service_ports: ServicePorts::default(), digests: Arc::default() };
        state.digest_facts();
        state
    }

    /// The node's facts: the last known ones while it has no Node object, the last addresses while that has none.
    #[must_use]
    pub fn node(&self) -> &NodeInfo {
        self.facts.retained_node.as_ref().unwrap_or(&self.facts.node)
    }

    /// Whether the Node object is gone, and its last facts are retained.
    #[must_use]
    pub fn retains_node(&self) -> bool {
        self.facts.node.is_unknown() && self.facts.retained_node.is_some()
    }

    /// Whether the Node object has lost its addresses, and its last ones are retained.
    #[must_use]
    pub fn retains_addresses(&self) -> bool {
        !self.facts.node.is_unknown() && self.facts.retained_node.is_some()
    }

    /// The cluster's facts.
    #[must_use]
    pub fn cluster(&self) -> &ClusterInfo {
        &self.facts.cluster
    }

    /// The service ports, in the order of their keys.
    #[must_use]
    pub fn service_ports(&self) -> &ServicePorts {
        &self.service_ports
    }

    /// One service port.
    #[must_use]
    pub fn service_port(&self, key: &ServicePortKey) -> Option<&ServicePortState> {
        self.service_ports.get(key)
    }

    /// All service ports of a Service, which are adjacent in key order.
    pub fn ports_of<'a>(
        &'a self,
        service: &ServiceName,
    ) -> impl Iterator<Item = (&'a ServicePortKey, &'a ServicePortState)> + use<'a> {
        let service = service.clone();
        self.service_ports.iter_from(&service.first_key()).take_while(move |(key, _)| service.contains(key))
    }

    /// The service ports in which a later state differs, with what they were and are.
    pub fn diff<'a>(&'a self, after: &'a Self) -> impl Iterator<Item = ServicePortChange<'a>> {
        self.service_ports.diff(&after.service_ports)
    }

    /// The operations that create this state, one after the other.
    pub fn snapshot(&self) -> impl Iterator<Item = Operation> {
        let Facts { node, retained_node, cluster } = &*self.facts;
        let nodes = retained_node.iter().chain([node]).cloned().map(Operation::PutNode);
        let service_ports = self.service_ports.values().flat_map(ServicePortState::snapshot);
        nodes.chain([Operation::PutCluster(cluster.clone())]).chain(service_ports)
    }

    /// The digests of the whole state.
    #[must_use]
    pub fn digests(&self) -> &DigestVector {
        &self.digests
    }

    /// Replaces the node's facts. The facts of a Node object that is gone are retained, and the addresses of a Node
    /// that has no addresses any more.
    pub fn put_node(&mut self, node: NodeInfo) {
        let before = self.node().clone();
        let retained_node = if node.is_unknown() {
            Some(before).filter(|before| !before.is_unknown())
        } else if node.addresses.is_empty() && !before.addresses.is_empty() {
            Some(NodeInfo { addresses: before.addresses, ..node.clone() })
        } else {
            None
        };
        let cluster = self.facts.cluster.clone();
        self.facts = Arc::new(Facts { node, retained_node, cluster });
        self.digest_facts();
    }

    /// Replaces the cluster's facts.
    pub fn put_cluster(&mut self, cluster: ClusterInfo) {
        Arc::make_mut(&mut self.facts).cluster = cluster;
        self.digest_facts();
    }

    /// Sets or removes a service port with its pools. `service_port` has this key.
    pub fn set_service_port(&mut self, key: &ServicePortKey, service_port: Option<ServicePortState>) {
        if self.service_port(key) == service_port.as_ref() {
            return;
        }

        let hash = KeyHash::of(key);
        let mut change = Digest::default();
        let before = match service_port {
            Some(service_port) => {
                change.add(service_port.digest(hash));
                self.service_ports.insert_hashed(hash, service_port)
            }
            None => self.service_ports.remove(key),
        };
        if let Some(before) = before {
            change.remove(before.digest(hash));
        }
        self.digest_mut(hash).add(change);
    }

    fn digest_facts(&mut self) {
        let mut sum = Digest::of_node(&self.facts.node);
        sum.add(Digest::of_cluster(&self.facts.cluster));
        Arc::make_mut(&mut self.digests)[INFO_ENTRY] = sum;
    }

    /// The digest of the bucket of a key.
    fn digest_mut(&mut self, hash: KeyHash) -> &mut Digest {
        &mut Arc::make_mut(&mut self.digests)[hash.bucket()]
    }
}

#[cfg(test)]
mod tests;
