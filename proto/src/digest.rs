//! How two sides find out cheaply that they hold the same, and where they do not.
//!
//! What a node holds is a set of elements: service ports and the endpoints of their pools. Each has a 64-bit content
//! hash; the sum of the hashes (wrapping) of all elements of a bucket is the bucket's digest, so order does not matter
//! and a change costs what the change is. Service ports are spread over [`BUCKETS`] buckets by the hash of their key;
//! one more entry, the last, is for the node and cluster facts. The definition is part of the contract:
//! `docs/protocol.md`, "Digests".

use std::ops::{Index, IndexMut};

use prost::Message as _;
use serde::Serialize;
use xxhash_rust::xxh64::{Xxh64, xxh64};

use crate::{
    convert::pack_endpoint,
    model::{ClusterInfo, Endpoint, NodeInfo, PoolClass, ServicePort, ServicePortKey},
    v1,
};

/// The number of buckets that service ports are spread over.
pub const BUCKETS: usize = 128;

/// Where the digest of the node and cluster facts stands in [`DigestVector`]: after the buckets.
pub const INFO_ENTRY: u8 = 128;

const SEED_KEY: u64 = 0;
const SEED_SERVICE_PORT: u64 = 1;
const SEED_ENDPOINT: u64 = 2;
const SEED_NODE: u64 = 3;
const SEED_CLUSTER: u64 = 4;

/// A sum of content hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Digest(pub u64);

/// The digests of everything that a node holds: [`BUCKETS`] buckets and the facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestVector([Digest; BUCKETS + 1]);

/// The hash of a key, from which its bucket and the hashes of its endpoints follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes namespace, name and port name, each followed by a zero byte, and the protocol number.
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

    /// The sum over the endpoints of a pool of this key.
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
    /// The content hash of a service port: of its wire form.
    #[must_use]
    pub fn of_service_port(port: &ServicePort) -> Self {
        Self(xxh64(&v1::ServicePort::from(port).encode_to_vec(), SEED_SERVICE_PORT))
    }

    /// The content hash of the node facts: of their wire form.
    #[must_use]
    pub fn of_node(node: &NodeInfo) -> Self {
        Self(xxh64(&v1::NodeInfo::from(node).encode_to_vec(), SEED_NODE))
    }

    /// The content hash of the cluster facts: of their wire form.
    #[must_use]
    pub fn of_cluster(cluster: &ClusterInfo) -> Self {
        Self(xxh64(&v1::ClusterInfo::from(cluster).encode_to_vec(), SEED_CLUSTER))
    }

    /// Takes an element (or several) in.
    pub const fn add(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// Takes an element (or several) out.
    pub const fn remove(&mut self, other: Self) {
        self.0 = self.0.wrapping_sub(other.0);
    }
}

impl DigestVector {
    /// From the wire: exactly [`BUCKETS`] + 1 entries.
    #[must_use]
    pub fn from_slice(entries: &[u64]) -> Option<Self> {
        let entries: [u64; BUCKETS + 1] = entries.try_into().ok()?;
        Some(Self(entries.map(Digest)))
    }

    /// For the wire.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u64> {
        self.0.iter().map(|digest| digest.0).collect()
    }

    /// The sum of all entries, which an `Ack` and a `Bookmark` carry.
    #[must_use]
    pub fn total(&self) -> Digest {
        let mut sum = Digest::default();
        for digest in &self.0 {
            sum.add(*digest);
        }
        sum
    }

    /// Adds every entry of `other`, as when the digests of two disjoint sets are joined.
    pub fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.add(*theirs);
        }
    }

    /// The entries that differ: buckets, and [`INFO_ENTRY`].
    pub fn differing(&self, other: &Self) -> impl Iterator<Item = usize> {
        (0..=BUCKETS).filter(|&entry| self.0[entry] != other.0[entry])
    }
}

impl Default for DigestVector {
    /// Of nothing at all, not even of facts.
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
