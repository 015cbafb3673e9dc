//! The state of a node, maintained as simply as possible. It panics on operations that a frontend must not send, and
//! computes its digests from scratch each time.

use std::collections::BTreeMap;

use proto::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{
        ClusterInfo, IpFamily, NodeInfo, Operation, PerFamily, Pool, PoolClass, PoolId, ServicePort, ServicePortKey,
    },
};

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) services: BTreeMap<ServicePortKey, ReplicaServicePort>,
    pub(crate) node: Option<NodeInfo>,
    pub(crate) cluster: Option<ClusterInfo>,
}

/// A service port with its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaServicePort {
    pub(crate) port: ServicePort,
    pub(crate) cluster: PerFamily<Pool>,
    pub(crate) local: PerFamily<Pool>,
    pub(crate) established: PerFamily<Pool>,
    pub(crate) gone: PerFamily<Pool>,
}

impl Replica {
    pub(crate) fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::PutServicePort(port) => match self.services.get_mut(&port.key) {
                Some(service) => {
                    assert_ne!(service.port, port, "put without a change");
                    service.port = port;
                }
                None => {
                    let key = port.key.clone();
                    let (cluster, local, established, gone) = Default::default();
                    let service = ReplicaServicePort { port, cluster, local, established, gone };
                    self.services.insert(key, service);
                }
            },
            Operation::RemoveServicePort(key) => {
                self.services.remove(&key).expect("only existing service ports are removed");
            }
            Operation::ChangePool { pool, add, remove } => {
                assert!(add.len() + remove.len() > 0, "a change without endpoints");
                let target = self.pool(&pool);
                for endpoint in remove {
                    target.remove(&endpoint).expect("only existing endpoints are removed");
                }
                for endpoint in add {
                    assert!(target.insert(endpoint), "only missing endpoints are added");
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
        for (key, ReplicaServicePort { port, cluster, local, established, gone }) in &self.services {
            let hash = KeyHash::of(key);
            let bucket = &mut digests[hash.bucket()];
            bucket.add(Digest::of_service_port(port));
            for family in IpFamily::ALL {
                bucket.add(hash.pool(PoolClass::Cluster, &cluster[family]));
                bucket.add(hash.pool(PoolClass::Local, &local[family]));
                bucket.add(hash.pool(PoolClass::Established, &established[family]));
                bucket.add(hash.pool(PoolClass::Gone, &gone[family]));
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
        let service = self.services.get_mut(&pool.key).expect("a pool belongs to an existing service port");
        match pool.class {
            PoolClass::Cluster => &mut service.cluster[pool.family],
            PoolClass::Local => &mut service.local[pool.family],
            PoolClass::Established => &mut service.established[pool.family],
            PoolClass::Gone => &mut service.gone[pool.family],
        }
    }
}
