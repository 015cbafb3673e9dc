//! What a node must hold: the operations that were committed, applied as the contract says, and the digests of that.

use std::collections::{BTreeMap, BTreeSet};

use proto::{
    digest::{BUCKETS, Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, ServicePort, ServicePortKey},
};

use crate::samples;

/// All that was committed.
#[derive(Clone, Debug)]
pub(crate) struct State {
    node: NodeInfo,
    cluster: ClusterInfo,
    services: BTreeMap<ServicePortKey, Held>,
}

#[derive(Clone, Debug)]
struct Held {
    port: ServicePort,
    pools: BTreeMap<(PoolClass, IpFamily), Pool>,
}

impl State {
    /// A node with its facts and nothing to do.
    pub(crate) fn new(node: &str) -> Self {
        Self { node: samples::node(node), cluster: samples::cluster(), services: BTreeMap::new() }
    }

    /// With these operations on top.
    pub(crate) fn with(mut self, operations: &[Operation]) -> Self {
        operations.iter().for_each(|operation| self.apply(operation));
        self
    }

    pub(crate) fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::PutServicePort(port) => {
                let pools = self.services.remove(&port.key).map(|held| held.pools).unwrap_or_default();
                self.services.insert(port.key.clone(), Held { port: port.clone(), pools });
            }
            Operation::RemoveServicePort(key) => drop(self.services.remove(key)),
            Operation::ChangePool { pool, add, remove } => {
                if let Some(pool) = self.pool(pool) {
                    for endpoint in remove {
                        pool.remove(endpoint);
                    }
                    for endpoint in add {
                        pool.insert(*endpoint);
                    }
                }
            }
            Operation::ReplacePool { pool, endpoints } => {
                if let Some(pool) = self.pool(pool) {
                    pool.clone_from(endpoints);
                }
            }
            Operation::PutNode(node) => self.node = node.clone(),
            Operation::PutCluster(cluster) => self.cluster = cluster.clone(),
            Operation::ResetBucket(bucket) => {
                self.services.retain(|key, _| KeyHash::of(key).bucket() != *bucket);
            }
        }
    }

    /// That of a service port that is not there is lost.
    fn pool(&mut self, PoolId { key, class, family }: &PoolId) -> Option<&mut Pool> {
        self.services.get_mut(key).map(|held| held.pools.entry((*class, *family)).or_default())
    }

    pub(crate) fn has(&self, key: &ServicePortKey) -> bool {
        self.services.contains_key(key)
    }

    /// The digest vector of a client that holds this.
    pub(crate) fn digests(&self) -> DigestVector {
        let mut digests = DigestVector::default();
        for (key, held) in &self.services {
            let hash = KeyHash::of(key);
            let bucket = &mut digests[hash.bucket()];
            bucket.add(Digest::of_service_port(&held.port));
            for ((class, _), pool) in &held.pools {
                bucket.add(hash.pool(*class, pool));
            }
        }
        digests[INFO_ENTRY].add(Digest::of_node(&self.node));
        digests[INFO_ENTRY].add(Digest::of_cluster(&self.cluster));
        digests
    }

    /// The entries in which a client's vector differs; all for one that has none.
    pub(crate) fn differing(&self, held: Option<&DigestVector>) -> BTreeSet<u8> {
        let digests = self.digests();
        (0..=INFO_ENTRY).filter(|entry| held.is_none_or(|held| held[*entry] != digests[*entry])).collect()
    }

    /// What makes these entries right, whatever is held.
    pub(crate) fn rebuild(&self, entries: &BTreeSet<u8>) -> Vec<Operation> {
        let buckets = entries.iter().filter(|entry| usize::from(**entry) < BUCKETS);
        let mut operations: Vec<_> = buckets.map(|bucket| Operation::ResetBucket(*bucket)).collect();
        if entries.contains(&INFO_ENTRY) {
            operations.push(Operation::PutNode(self.node.clone()));
            operations.push(Operation::PutCluster(self.cluster.clone()));
        }
        for (key, held) in &self.services {
            if entries.contains(&KeyHash::of(key).bucket()) {
                operations.push(Operation::PutServicePort(held.port.clone()));
                operations.extend(held.pools.iter().map(|((class, family), pool)| Operation::ReplacePool {
                    pool: samples::pool(key, *class, *family),
                    endpoints: pool.clone(),
                }));
            }
        }
        operations
    }

    /// The service ports, each with the endpoints of its cluster pools, as text.
    pub(crate) fn described(&self) -> BTreeMap<String, BTreeSet<String>> {
        let cluster = |held: &Held| -> BTreeSet<_> {
            let pools = held.pools.iter().filter(|((class, _), _)| *class == PoolClass::Cluster);
            pools.flat_map(|(_, pool)| pool.iter().map(ToString::to_string)).collect()
        };
        self.services.iter().map(|(key, held)| (key.to_string(), cluster(held))).collect()
    }
}
