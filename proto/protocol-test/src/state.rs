//! The state that a backend must have committed: its differences from a client, and its repair.

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

/// The operations that repair these digest entries, in the order of a frontend: node and cluster info, then each bucket
/// after its reset, then the pools that differ between nodes.
pub(crate) fn repair(state: &NodeState, entries: &BTreeSet<u8>) -> Vec<Operation> {
    let buckets = entries.iter().filter(|entry| usize::from(**entry) < BUCKETS);
    let mut operations: Vec<_> = buckets.map(|bucket| Operation::ResetBucket(*bucket)).collect();
    operations.extend(state.snapshot().filter(|operation| entries.contains(&digest_entry(operation))));
    // The sort is stable: a reset stays before the service ports of its bucket, and these before their pools.
    operations.sort_by_key(phase);
    operations
}

/// The position of an operation in a repair: the phase, and the bucket within the phase.
fn phase(operation: &Operation) -> (u8, u8) {
    match (operation, digest_entry(operation)) {
        (_, INFO_ENTRY) => (0, 0),
        (Operation::ReplacePool { pool, .. }, _) if pool.class == PoolClass::Local => (2, 0),
        (_, bucket) => (1, bucket),
    }
}

/// The digest entry that an operation of a repair changes.
fn digest_entry(operation: &Operation) -> u8 {
    match operation {
        Operation::ResetBucket(bucket) => *bucket,
        Operation::PutServicePort(port) => KeyHash::of(&port.key).bucket(),
        Operation::ReplacePool { pool, .. } => KeyHash::of(&pool.key).bucket(),
        _ => INFO_ENTRY,
    }
}

/// The endpoints of the cluster pools by service port, in the text form of state commands.
pub(crate) fn cluster_endpoints(state: &NodeState) -> BTreeMap<String, BTreeSet<String>> {
    let mut endpoints = BTreeMap::new();
    for (key, service_port) in state.service_ports().iter() {
        let pools = service_port.pools().filter(|(class, ..)| *class == PoolClass::Cluster);
        let of_port = pools.flat_map(|(.., pool)| pool.iter().map(ToString::to_string)).collect();
        endpoints.insert(key.to_string(), of_port);
    }
    endpoints
}
