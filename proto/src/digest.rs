//! Digests, by which two peers detect whether and where their states differ.
//!
//! The state of a node is a set of elements: service ports and the endpoints of their pools. Service ports are spread
//! over [`BUCKETS`] buckets by the hash of their key. The digest of a bucket is the wrapping sum of the 64-bit content
//! hashes of its elements, so it is independent of their order and cheap to update. One more entry covers node and
//! cluster info. The definition is part of the protocol (`docs/protocol.md`, "Digests").

use std::ops::{Index, IndexMut};

use prost::Message as _;
use serde::Serialize;
use xxhash_rust::xxh64::{Xxh64, xxh64};

use crate::{
    model::{ClusterInfo, Endpoint, NodeInfo, PoolClass, ServicePort, ServicePortKey, pack_endpoint},
    v1,
};

/// The number of buckets.
pub const BUCKETS: usize = 128;

/// The index of the entry for node and cluster info in a [`DigestVector`], after the buckets.
pub const INFO_ENTRY: u8 = 128;

const SEED_KEY: u64 = 0;
const SEED_SERVICE_PORT: u64 = 1;
const SEED_ENDPOINT: u64 = 2;
const SEED_NODE: u64 = 3;
const SEED_CLUSTER: u64 = 4;
const SEED_NODE_NAME: u64 = 5;

/// A wrapping sum of content hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Digest(pub u64);

/// The digests of a node's state: one entry per bucket, and one for node and cluster info.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestVector([Digest; BUCKETS + 1]);

/// The hash of a service port key. It determines the bucket, and is part of the hashes of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes namespace, name and port name, each followed by a zero byte, and then the protocol number.
    #[must_use]
    pub fn of(key: &ServicePortKey) -> Self {
        let mut hash = Xxh64::new(SEED_KEY);
        for part in [&key.namespace, &key.name, &key.port_name] {
            hash.update(part.as_bytes());
            hash.update(&[0]);
        }
        hash.update(&[key.protocol.number()]);
        Self(hash.digest())
    }

    /// The bucket of the key: its hash modulo [`BUCKETS`].
    #[must_use]
    pub const fn bucket(self) -> u8 {
        (self.0 % BUCKETS as u64) as u8
    }

    /// The content hash of one endpoint in a pool of this key.
    #[must_use]
    pub fn endpoint(self, class: PoolClass, endpoint: &Endpoint) -> Digest {
        self.pool(class, std::slice::from_ref(endpoint))
    }

    /// The sum of the content hashes of all endpoints in a pool of this key.
    #[must_use]
    pub fn pool(self, class: PoolClass, endpoints: &[Endpoint]) -> Digest {
        let mut sum = Digest::default();
        let mut bytes = Vec::with_capacity(28);
        for endpoint in endpoints {
            bytes.clear();
            bytes.extend_from_slice(&self.0.to_le_bytes());
            bytes.push(class as u8);
            pack_endpoint(class, endpoint, &mut bytes);
            sum.add(Digest(xxh64(&bytes, SEED_ENDPOINT)));
        }
        sum
    }
}

impl Digest {
    /// Adds the hash of an element, or the sum of several.
    pub const fn add(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// Subtracts the hash of an element, or the sum of several.
    pub const fn remove(&mut self, other: Self) {
        self.0 = self.0.wrapping_sub(other.0);
    }

    /// The content hash of a service port, computed over its wire form.
    #[must_use]
    pub fn of_service_port(port: &ServicePort) -> Self {
        Self(xxh64(&v1::ServicePort::from(port).encode_to_vec(), SEED_SERVICE_PORT))
    }

    /// The content hash of node info, computed over its wire form.
    #[must_use]
    pub fn of_node(node: &NodeInfo) -> Self {
        Self(xxh64(&v1::NodeInfo::from(node).encode_to_vec(), SEED_NODE))
    }

    /// The content hash of cluster info, computed over its wire form.
    #[must_use]
    pub fn of_cluster(cluster: &ClusterInfo) -> Self {
        Self(xxh64(&v1::ClusterInfo::from(cluster).encode_to_vec(), SEED_CLUSTER))
    }

    /// The hash of the name of a node.
    #[must_use]
    pub fn of_node_name(name: &str) -> Self {
        Self(xxh64(name.as_bytes(), SEED_NODE_NAME))
    }
}

impl DigestVector {
    /// The vector of a message; `None` unless it has exactly [`BUCKETS`] + 1 entries.
    #[must_use]
    pub fn from_slice(entries: &[u64]) -> Option<Self> {
        let entries: [u64; BUCKETS + 1] = entries.try_into().ok()?;
        Some(Self(entries.map(Digest)))
    }

    /// The entries of a message.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u64> {
        self.0.iter().map(|digest| digest.0).collect()
    }

    /// The sum of all entries, as in `Ack` and `Bookmark`.
    #[must_use]
    pub fn total(&self) -> Digest {
        let mut sum = Digest::default();
        for digest in &self.0 {
            sum.add(*digest);
        }
        sum
    }

    /// Adds every entry of `other`: the digests of the union of two disjoint states.
    pub fn add_all(&mut self, other: &Self) {
        for (entry, other) in self.0.iter_mut().zip(&other.0) {
            entry.add(*other);
        }
    }

    /// The indexes of the entries that differ: buckets, and [`INFO_ENTRY`].
    pub fn differing(&self, other: &Self) -> impl Iterator<Item = usize> {
        (0..=BUCKETS).filter(|&entry| self.0[entry] != other.0[entry])
    }
}

impl Default for DigestVector {
    /// The digests of an empty state, without node and cluster info.
    fn default() -> Self {
        Self([Digest::default(); BUCKETS + 1])
    }
}

impl Index<u8> for DigestVector {
    type Output = Digest;

    fn index(&self, bucket: u8) -> &Digest {
        &self.0[usize::from(bucket)]
    }
}

impl IndexMut<u8> for DigestVector {
    fn index_mut(&mut self, bucket: u8) -> &mut Digest {
        &mut self.0[usize::from(bucket)]
    }
}
