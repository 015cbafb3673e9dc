//! What a good client holds, done as simply as possible: everything is computed anew each time.

use std::collections::BTreeMap;

use proto::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{
        ClusterInfo, IpFamily, NodeInfo, Operation, PerFamily, Pool, PoolClass, PoolId, ServicePort, ServicePortKey,
    },
};

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) services: BTreeMap<ServicePortKey, Service>,
    node: Option<NodeInfo>,
    cluster: Option<ClusterInfo>,
}

/// A service port with its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    port: ServicePort,
    pub(crate) cluster: PerFamily<Pool>,
    local: PerFamily<Pool>,
}

impl Held {
    pub(crate) fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::PutServicePort(port) => {
                let new = Service { port: port.clone(), cluster: PerFamily::default(), local: PerFamily::default() };
                let held = self.services.entry(port.key.clone()).or_insert(new);
                held.port = port;
            }
            Operation::RemoveServicePort(key) => drop(self.services.remove(&key)),
            Operation::ChangePool { pool, add, remove } => {
                let target = self.pool(&pool);
                for endpoint in remove {
                    target.remove(&endpoint);
                }
                for endpoint in add {
                    target.insert(endpoint);
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

    pub(crate) fn digests(&self) -> DigestVector {
        let mut digests = DigestVector::default();
        for (key, Service { port, cluster, local }) in &self.services {
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
        let service = self.services.get_mut(&pool.key).expect("a pool belongs to a service port");
        match pool.class {
            PoolClass::Cluster => &mut service.cluster[pool.family],
            PoolClass::Local => &mut service.local[pool.family],
        }
    }
}
