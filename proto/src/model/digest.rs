//! The values of digests, which messages contain; [`crate::digest`] computes them.

use std::ops::{Index, IndexMut};

use serde::Serialize;

/// The number of buckets.
pub const BUCKETS: usize = 128;

/// The index of the entry for node and cluster info in a [`DigestVector`], after the buckets.
pub const INFO_ENTRY: u8 = 128;

/// A wrapping sum of content hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Digest(pub u64);

/// The digests of a node's state: one entry per bucket, and one for node and cluster info.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestVector([Digest; BUCKETS + 1]);

impl Digest {
    /// Adds the hash of an element, or the sum of several.
    pub const fn add(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// Subtracts the hash of an element, or the sum of several.
    pub const fn remove(&mut self, other: Self) {
        self.0 = self.0.wrapping_sub(other.0);
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
