//! What a frontend compares and sends of the state that a backend must have committed.

use std::collections::{BTreeMap, BTreeSet};

use proto::{
    digest::{BUCKETS, DigestVector, INFO_ENTRY, KeyHash},
    model::{Operation, PoolClass},
    state::NodeState,
};

/// The digest entries in which a client differs; all of them for a client without a digest vector.
pub(crate) fn differing(state: &NodeState, client: Option<&DigestVector>) -> BTreeSet<u8> {
    let digests = state.digests();
    (0..=INFO_ENTRY).filter(|entry| client.is_none_or(|client| client[*entry] != digests[*entry])).collect()
}

/// The operations that repair these digest entries.
pub(crate) fn repair(state: &NodeState, entries: &BTreeSet<u8>) -> Vec<Operation> {
    let buckets = entries.iter().filter(|entry| usize::from(**entry) < BUCKETS);
    let is_repaired = |operation: &Operation| match operation {
        Operation::PutServicePort(port) => entries.contains(&KeyHash::of(&port.key).bucket()),
        Operation::ReplacePool { pool, .. } => entries.contains(&KeyHash::of(&pool.key).bucket()),
        _ => entries.contains(&INFO_ENTRY),
    };
    buckets.map(|bucket| Operation::ResetBucket(*bucket)).chain(state.snapshot().filter(is_repaired)).collect()
}

/// The endpoints of the cluster pools by service port, in the text form of state commands.
pub(crate) fn cluster_endpoints(state: &NodeState) -> BTreeMap<String, BTreeSet<String>> {
    let endpoints = state.service_ports().iter().map(|(key, service_port)| {
        let pools = service_port.pools().filter(|(class, ..)| *class == PoolClass::Cluster);
        (key.to_string(), pools.flat_map(|(.., pool)| pool.iter().map(ToString::to_string)).collect())
    });
    endpoints.collect()
}
