//! A node as simple as possible: it does what it is told, and complains about everything that is not needed.

use std::{collections::BTreeMap, sync::Arc};

use proto::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{
        ClusterInfo, IpFamily, NodeInfo, Operation, PerFamily, Pool, PoolClass, PoolId, Revision, ServicePort,
        ServicePortKey,
    },
};

use crate::view::ServicePortView;

use super::super::NodeUpdate;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) name: Arc<str>,
    pub(crate) revision: Revision,
    pub(crate) node: Option<NodeInfo>,
    pub(crate) cluster: Option<ClusterInfo>,
    pub(crate) services: BTreeMap<ServicePortKey, Held>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    port: ServicePort,
    pub(crate) cluster: PerFamily<Pool>,
    local: PerFamily<Pool>,
}

impl Mirror {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), revision: Revision(0), node: None, cluster: None, services: BTreeMap::new() }
    }

    /// Holds what a view is on a node.
    pub(crate) fn put(&mut self, view: &ServicePortView, node: &str, zone: &str) {
        let held = Held {
            port: view.port.clone(),
            cluster: PerFamily::from_fn(|family| view.cluster_pool(family, node, zone).clone()),
            local: PerFamily::from_fn(|family| view.local_pool(family, node).cloned().unwrap_or_default()),
        };
        self.services.insert(view.port.key.clone(), held);
    }

    pub(crate) fn apply(&mut self, update: NodeUpdate) {
        for operation in update.chunks.iter().flat_map(|chunk| chunk.operations()) {
            self.operate(operation.clone());
        }
        self.revision = update.target;
    }

    pub(crate) fn operate(&mut self, operation: Operation) {
        match operation {
            Operation::PutServicePort(port) => match self.services.get_mut(&port.key) {
                Some(held) => {
                    assert_ne!(held.port, port, "put again though it is the same");
                    held.port = port;
                }
                None => {
                    let key = port.key.clone();
                    let held = Held { port, cluster: PerFamily::default(), local: PerFamily::default() };
                    self.services.insert(key, held);
                }
            },
            Operation::RemoveServicePort(key) => {
                self.services.remove(&key).expect("what is removed is there");
            }
            Operation::ChangePool { pool, add, remove } => {
                assert!(add.len() + remove.len() > 0, "a change of nothing");
                let target = self.pool(&pool);
                for endpoint in remove {
                    target.remove(&endpoint).expect("what is taken out is there");
                }
                for endpoint in add {
                    assert!(target.insert(endpoint), "added though it is there");
                }
            }
            Operation::ReplacePool { pool, endpoints } => *self.pool(&pool) = endpoints,
            Operation::PutNode(node) => self.node = Some(node),
            Operation::PutCluster(cluster) => self.cluster = Some(cluster),
            Operation::ResetBucket(bucket) => {
                self.services.retain(|key, _| KeyHash::of(key).bucket() != bucket);
            }
        }
    }

    /// Computed anew each time.
    pub(crate) fn digests(&self) -> DigestVector {
        let mut digests = DigestVector::default();
        for (key, Held { port, cluster, local }) in &self.services {
            let hash = KeyHash::of(key);
            let bucket = &mut digests[hash.bucket()];
            bucket.add(Digest::of_service_port(port));
            for family in IpFamily::ALL {
                bucket.add(hash.pool(PoolClass::Cluster, &cluster[family]));
                bucket.add(hash.pool(PoolClass::Local, &local[family]));
            }
        }
        if let Some(node) = &self.node {
            digests[INFO_ENTRY].add(Digest::of_node(node));
        }
        if let Some(cluster) = &self.cluster {
            digests[INFO_ENTRY].add(Digest::of_cluster(cluster));
        }
        digests
    }

    fn pool(&mut self, pool: &PoolId) -> &mut Pool {
        let held = self.services.get_mut(&pool.key).expect("a pool belongs to a service port that is there");
        match pool.class {
            PoolClass::Cluster => &mut held.cluster[pool.family],
            PoolClass::Local => &mut held.local[pool.family],
        }
    }
}
