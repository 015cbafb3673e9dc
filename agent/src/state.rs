//! All that a node must do, one copy: service ports with their pools, the node's and the cluster's facts, and the digests
//! of it all.

use std::collections::BTreeMap;

use proto::{
    digest::{Digest, Digests, FACTS, KeyHash},
    model::{Cluster, Family, Node, PerFamily, Pool, PoolClass, ServicePort, ServicePortKey},
};

/// A service port and what can serve it here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The service port.
    pub port: ServicePort,
    /// For traffic policy Cluster.
    pub cluster: PerFamily<Pool>,
    /// The endpoints on this node.
    pub local: PerFamily<Pool>,
}

/// A committed state of a node. Changes only at a commit, as a whole (see `stage`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    node: Node,
    cluster: Cluster,
    services: BTreeMap<ServicePortKey, Service>,
    digests: Box<Digests>,
}

impl Service {
    /// A service port with empty pools.
    #[must_use]
    pub fn new(port: ServicePort) -> Self {
        Self { port, cluster: PerFamily::default(), local: PerFamily::default() }
    }

    /// The pool of a class and family.
    #[must_use]
    pub fn pool(&self, class: PoolClass, family: Family) -> &Pool {
        match class {
            PoolClass::Cluster => &self.cluster[family],
            PoolClass::Local => &self.local[family],
        }
    }

    /// The pool of a class and family, to change it.
    pub fn pool_mut(&mut self, class: PoolClass, family: Family) -> &mut Pool {
        match class {
            PoolClass::Cluster => &mut self.cluster[family],
            PoolClass::Local => &mut self.local[family],
        }
    }

    /// The content hashes of the service port and of all its endpoints.
    fn digest(&self) -> Digest {
        let hash = KeyHash::of(&self.port.key);
        let mut sum = Digest::of_service_port(&self.port);
        for class in [PoolClass::Cluster, PoolClass::Local] {
            for family in Family::ALL {
                sum.add(hash.pool(class, self.pool(class, family)));
            }
        }
        sum
    }
}

impl NodeState {
    /// A node that does nothing yet.
    #[must_use]
    pub fn new(node: Node) -> Self {
        let mut state =
            Self { node, cluster: Cluster::default(), services: BTreeMap::new(), digests: Box::default() };
        state.digest_facts();
        state
    }

    /// The node's facts.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The cluster's facts.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The service ports, in the order of their keys.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<ServicePortKey, Service> {
        &self.services
    }

    /// One service port.
    #[must_use]
    pub fn service(&self, key: &ServicePortKey) -> Option<&Service> {
        self.services.get(key)
    }

    /// The digests of all that is here.
    #[must_use]
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Replaces the node's facts. Says whether they differ.
    pub(crate) fn put_node(&mut self, node: Node) -> bool {
        let changed = self.node != node;
        self.node = node;
        self.digest_facts();
        changed
    }

    /// Replaces the cluster's facts. Says whether they differ.
    pub(crate) fn put_cluster(&mut self, cluster: Cluster) -> bool {
        let changed = self.cluster != cluster;
        self.cluster = cluster;
        self.digest_facts();
        changed
    }

    /// Puts or removes a whole service. Says whether anything differs.
    pub(crate) fn set_service(&mut self, key: &ServicePortKey, service: Option<Service>) -> bool {
        let old = self.services.get(key);
        if old == service.as_ref() {
            return false;
        }
        let bucket = &mut self.digests[KeyHash::of(key).bucket()];
        if let Some(old) = old {
            bucket.remove(old.digest());
        }
        match service {
            Some(service) => {
                bucket.add(service.digest());
                self.services.insert(key.clone(), service);
            }
            None => {
                self.services.remove(key);
            }
        }
        true
    }

    fn digest_facts(&mut self) {
        let mut sum = Digest::of_node(&self.node);
        sum.add(Digest::of_cluster(&self.cluster));
        self.digests[FACTS] = sum;
    }
}
