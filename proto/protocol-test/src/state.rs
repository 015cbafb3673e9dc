//! The state that a backend must have committed, computed independently of the `backend` crate.

use std::collections::{BTreeMap, BTreeSet};

use proto::{
    digest::{BUCKETS, Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, ServicePort, ServicePortKey},
};

use crate::samples;

/// The state of a node after all commits.
#[derive(Clone, Debug)]
pub(crate) struct CommittedState {
    node: NodeInfo,
    cluster: ClusterInfo,
    service_ports: BTreeMap<ServicePortKey, ServicePortState>,
}

#[derive(Clone, Debug)]
struct ServicePortState {
    port: ServicePort,
    pools: BTreeMap<(PoolClass, IpFamily), Pool>,
}

impl CommittedState {
    /// A state with node and cluster info, and without service ports.
    pub(crate) fn new(node: &str) -> Self {
        Self { node: samples::node(node), cluster: samples::cluster(), service_ports: BTreeMap::new() }
    }

    /// Applies operations.
    pub(crate) fn with(mut self, operations: &[Operation]) -> Self {
        operations.iter().for_each(|operation| self.apply(operation));
        self
    }

    pub(crate) fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::PutServicePort(port) => {
                let pools = self.service_ports.remove(&port.key).map(|state| state.pools).unwrap_or_default();
                self.service_ports.insert(port.key.clone(), ServicePortState { port: port.clone(), pools });
            }
            Operation::RemoveServicePort(key) => drop(self.service_ports.remove(key)),
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
                self.service_ports.retain(|key, _| KeyHash::of(key).bucket() != *bucket);
            }
        }
    }

    /// The pool, if its service port exists.
    fn pool(&mut self, PoolId { key, class, family }: &PoolId) -> Option<&mut Pool> {
        self.service_ports.get_mut(key).map(|state| state.pools.entry((*class, *family)).or_default())
    }

    pub(crate) fn has(&self, key: &ServicePortKey) -> bool {
        self.service_ports.contains_key(key)
    }

    /// The digest vector of this state.
    pub(crate) fn digests(&self) -> DigestVector {
        let mut digests = DigestVector::default();
        for (key, state) in &self.service_ports {
            let hash = KeyHash::of(key);
            let bucket = &mut digests[hash.bucket()];
            bucket.add(Digest::of_service_port(&state.port));
            for ((class, _), pool) in &state.pools {
                bucket.add(hash.pool(*class, pool));
            }
        }
        digests[INFO_ENTRY].add(Digest::of_node(&self.node));
        digests[INFO_ENTRY].add(Digest::of_cluster(&self.cluster));
        digests
    }

    /// The digest entries in which a client differs; all of them for a client without a digest vector.
    pub(crate) fn differing(&self, client: Option<&DigestVector>) -> BTreeSet<u8> {
        let digests = self.digests();
        (0..=INFO_ENTRY).filter(|entry| client.is_none_or(|client| client[*entry] != digests[*entry])).collect()
    }

    /// The operations that repair these digest entries.
    pub(crate) fn repair(&self, entries: &BTreeSet<u8>) -> Vec<Operation> {
        let buckets = entries.iter().filter(|entry| usize::from(**entry) < BUCKETS);
        let mut operations: Vec<_> = buckets.map(|bucket| Operation::ResetBucket(*bucket)).collect();
        if entries.contains(&INFO_ENTRY) {
            operations.push(Operation::PutNode(self.node.clone()));
            operations.push(Operation::PutCluster(self.cluster.clone()));
        }
        for (key, state) in &self.service_ports {
            if entries.contains(&KeyHash::of(key).bucket()) {
                operations.push(Operation::PutServicePort(state.port.clone()));
                operations.extend(state.pools.iter().map(|((class, family), pool)| Operation::ReplacePool {
                    pool: samples::pool_id(key, *class, *family),
                    endpoints: pool.clone(),
                }));
            }
        }
        operations
    }

    /// The endpoints of the cluster pools by service port, in the text form of state commands.
    pub(crate) fn cluster_endpoints(&self) -> BTreeMap<String, BTreeSet<String>> {
        let endpoints = |state: &ServicePortState| -> BTreeSet<_> {
            let pools = state.pools.iter().filter(|((class, _), _)| *class == PoolClass::Cluster);
            pools.flat_map(|(_, pool)| pool.iter().map(ToString::to_string)).collect()
        };
        self.service_ports.iter().map(|(key, state)| (key.to_string(), endpoints(state))).collect()
    }
}
