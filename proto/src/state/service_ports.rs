//! A sorted collection of service ports whose clones share what is equal.
//!
//! ```text
//!   clone 1 ──▶ [ chunk, chunk, chunk  ]        A clone is one pointer. A change copies the list of chunks, one chunk
//!                  │      │      │              and one service port.
//!   clone 2 ──▶ [ chunk, chunk, chunk' ]        A difference skips what both have by pointer.
//! ```

use std::{cmp::Ordering, fmt, iter, mem, ptr, sync::Arc};

use super::ServicePortState;
use crate::{
    digest::{BUCKETS, KeyHash},
    model::{Endpoint, Protocol, ServicePortKey},
};

/// The most service ports of a chunk. A change copies up to so many pointers; a clone of 50,000 service ports has 400
/// chunks.
const MAX_CHUNK: usize = 128;
/// Neighbours with fewer service ports than this together become one chunk.
const MIN_PAIR: usize = MAX_CHUNK / 2;

/// Service ports in the order of their keys. Cloning it costs one pointer, and a change of a clone as much as a chunk.
#[derive(Clone, Default)]
pub struct ServicePorts {
    /// None is empty.
    chunks: Arc<Vec<Arc<Chunk>>>,
    len: usize,
    /// Where something was changed last, or would be now: operations on the pools of a service port follow each other.
    last_changed: Place,
}

type Chunk = Vec<Entry>;

#[derive(Clone)]
struct Entry {
    hash: KeyHash,
    service_port: Arc<ServicePortState>,
}

/// The place of a key in the chunks.
#[derive(Clone, Copy, Default)]
struct Place {
    chunk: usize,
    entry: usize,
}

/// A service port in which two collections differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePortChange<'a> {
    /// The key.
    pub key: &'a ServicePortKey,
    /// What it was; `None`: added.
    pub before: Option<&'a ServicePortState>,
    /// What it is; `None`: removed.
    pub after: Option<&'a ServicePortState>,
}

/// A position in the chunks of one of two collections.
struct Cursor<'a> {
    chunks: &'a [Arc<Chunk>],
    entry: usize,
}

// === impl ServicePorts ===

impl ServicePorts {
    /// The number of service ports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One service port.
    #[must_use]
    pub fn get(&self, key: &ServicePortKey) -> Option<&ServicePortState> {
        let Place { chunk, entry } = self.find(key).ok()?;
        Some(&self.chunks[chunk][entry].service_port)
    }

    /// One service port, shared with this collection.
    #[must_use]
    pub fn shared(&self, key: &ServicePortKey) -> Option<Arc<ServicePortState>> {
        let Place { chunk, entry } = self.find(key).ok()?;
        Some(self.chunks[chunk][entry].service_port.clone())
    }

    /// All service ports with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&ServicePortKey, &ServicePortState)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(Entry::pair)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &ServicePortKey> {
        self.iter().map(|(key, _)| key)
    }

    /// All service ports.
    pub fn values(&self) -> impl Iterator<Item = &ServicePortState> {
        self.iter().map(|(_, service_port)| service_port)
    }

    /// The service ports from a key on.
    pub fn iter_from<'a>(
        &'a self,
        first: &ServicePortKey,
    ) -> impl Iterator<Item = (&'a ServicePortKey, &'a ServicePortState)> + use<'a> {
        let (Ok(Place { chunk, entry }) | Err(Place { chunk, entry })) = self.find(first);
        let mut chunks = self.chunks.get(chunk..).unwrap_or_default().iter();
        let entries = chunks.next().and_then(|chunk| chunk.get(entry..)).unwrap_or_default().iter();
        entries.chain(chunks.flat_map(|chunk| chunk.iter())).map(Entry::pair)
    }

    /// What differs between this collection and a later one. Costs as much as the chunks that they do not share.
    pub fn diff<'a>(&'a self, after: &'a Self) -> impl Iterator<Item = ServicePortChange<'a>> {
        let mut before = Cursor { chunks: &self.chunks, entry: 0 };
        let mut after = Cursor { chunks: &after.chunks, entry: 0 };
        iter::from_fn(move || {
            loop {
                before.skip_shared(&mut after);
                let change = ServicePortChange::of_heads(before.entry(), after.entry())?;
                if change.before.is_some() {
                    before.advance();
                }
                if change.after.is_some() {
                    after.advance();
                }
                if !change.is_none() {
                    return Some(change);
                }
            }
        })
    }

    /// The service port with the hash of its key, to be changed. Its key must stay the same.
    pub(super) fn get_mut(&mut self, key: &ServicePortKey) -> Option<(KeyHash, &mut ServicePortState)> {
        let place = self.find(key).ok()?;
        self.last_changed = place;
        let entry = &mut self.chunk_mut(place.chunk)[place.entry];
        Some((entry.hash, Arc::make_mut(&mut entry.service_port)))
    }

    /// Adds or replaces a service port. Returns the earlier one.
    pub fn insert(&mut self, service_port: ServicePortState) -> Option<Arc<ServicePortState>> {
        self.insert_hashed(KeyHash::of(&service_port.port.key), service_port)
    }

    /// As [`Self::insert`], with the hash of the key.
    pub(super) fn insert_hashed(
        &mut self,
        hash: KeyHash,
        service_port: ServicePortState,
    ) -> Option<Arc<ServicePortState>> {
        let place = self.find(&service_port.port.key);
        let (Ok(last_changed) | Err(last_changed)) = place;
        self.last_changed = last_changed;
        let new = Entry { hash, service_port: Arc::new(service_port) };
        match place {
            Ok(Place { chunk, entry }) => {
                let old = mem::replace(&mut self.chunk_mut(chunk)[entry], new);
                Some(old.service_port)
            }
            Err(place) => {
                self.insert_at(place, new);
                None
            }
        }
    }

    /// Removes a service port, and returns it.
    pub fn remove(&mut self, key: &ServicePortKey) -> Option<Arc<ServicePortState>> {
        let Place { chunk, entry } = self.find(key).ok()?;
        let removed = self.chunk_mut(chunk).remove(entry);
        self.len -= 1;
        self.merge(chunk);
        Some(removed.service_port)
    }

    /// Removes the service ports of some digest buckets.
    pub(super) fn remove_buckets(&mut self, buckets: &[bool; BUCKETS]) {
        let is_removed = |entry: &Entry| buckets[usize::from(entry.hash.bucket())];
        // A snapshot resets one bucket after the other, each of which may be empty already.
        if !self.chunks.iter().flat_map(|chunk| chunk.iter()).any(is_removed) {
            return;
        }

        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let kept: Vec<Entry> = entries.filter(|entry| !is_removed(entry)).cloned().collect();
        self.len = kept.len();
        self.chunks = Arc::new(kept.chunks(MAX_CHUNK).map(|chunk| Arc::new(chunk.to_vec())).collect());
    }

    fn insert_at(&mut self, Place { chunk, entry }: Place, new: Entry) {
        self.len += 1;
        let chunks = Arc::make_mut(&mut self.chunks);
        let is_last = chunk + 1 >= chunks.len();
        match chunks.get_mut(chunk) {
            None => chunks.push(Arc::new(vec![new])),
            // Service ports that arrive in the order of their keys fill the chunks.
            Some(last) if last.len() == MAX_CHUNK && is_last && entry == MAX_CHUNK => chunks.push(Arc::new(vec![new])),
            Some(full) if full.len() == MAX_CHUNK => {
                let mut lower = full[..MAX_CHUNK / 2].to_vec();
                let mut upper = full[MAX_CHUNK / 2..].to_vec();
                match entry.checked_sub(lower.len()) {
                    Some(entry) => upper.insert(entry, new),
                    None => lower.insert(entry, new),
                }
                *full = Arc::new(lower);
                chunks.insert(chunk + 1, Arc::new(upper));
            }
            Some(chunk) => Arc::make_mut(chunk).insert(entry, new),
        }
    }

    /// Joins a chunk from which something was removed with a neighbour, if both are small.
    fn merge(&mut self, chunk: usize) {
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks[chunk].is_empty() {
            chunks.remove(chunk);
            return;
        }

        let pairs = [chunk.checked_sub(1), Some(chunk)].into_iter().flatten();
        let fits =
            |first: &usize| chunks.get(first + 1).is_some_and(|next| chunks[*first].len() + next.len() < MIN_PAIR);
        if let Some(first) = pairs.into_iter().find(fits) {
            let next = chunks.remove(first + 1);
            Arc::make_mut(&mut chunks[first]).extend_from_slice(&next);
        }
    }

    fn chunk_mut(&mut self, chunk: usize) -> &mut Chunk {
        Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[chunk])
    }

    fn key_at(&self, Place { chunk, entry }: Place) -> Option<&ServicePortKey> {
        self.chunks.get(chunk)?.get(entry).map(Entry::key)
    }

    /// Where a key is, or where it belongs: in the last chunk that does not begin with a higher one.
    fn find(&self, key: &ServicePortKey) -> Result<Place, Place> {
        if self.key_at(self.last_changed) == Some(key) {
            return Ok(self.last_changed);
        }

        let chunk = self.chunks.partition_point(|chunk| chunk[0].key() <= key).saturating_sub(1);
        let entries = self.chunks.get(chunk).map_or(&[][..], |chunk| chunk);
        match entries.binary_search_by(|entry| entry.key().cmp(key)) {
            Ok(entry) => Ok(Place { chunk, entry }),
            Err(entry) => Err(Place { chunk, entry }),
        }
    }
}

impl PartialEq for ServicePorts {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.diff(other).next().is_none()
    }
}

impl Eq for ServicePorts {}

impl fmt::Debug for ServicePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

// === impl Entry ===

impl Entry {
    fn key(&self) -> &ServicePortKey {
        &self.service_port.port.key
    }

    fn pair(&self) -> (&ServicePortKey, &ServicePortState) {
        (self.key(), &self.service_port)
    }
}

// === impl ServicePortChange ===

impl<'a> ServicePortChange<'a> {
    /// The endpoints that left all pools, except for the pools of gone endpoints, of a TCP service port that existed
    /// and exists. `None` if there are no such endpoints.
    #[must_use]
    pub fn departed(&self) -> Option<(ServicePortKey, Vec<Endpoint>)> {
        if self.key.protocol != Protocol::Tcp {
            return None;
        }
        let endpoints = self.before?.departed(self.after?);
        if endpoints.is_empty() { None } else { Some((self.key.clone(), endpoints)) }
    }

    /// The change of the lower one of the next keys.
    fn of_heads(before: Option<&'a Entry>, after: Option<&'a Entry>) -> Option<Self> {
        let (before, after) = match (before, after) {
            (Some(one), Some(other)) => match one.key().cmp(other.key()) {
                Ordering::Less => (Some(one), None),
                Ordering::Equal => (Some(one), Some(other)),
                Ordering::Greater => (None, Some(other)),
            },
            heads => heads,
        };
        let key = before.or(after)?.key();
        let service_port = |entry: &'a Entry| &*entry.service_port;
        Some(Self { key, before: before.map(service_port), after: after.map(service_port) })
    }

    fn is_none(&self) -> bool {
        match (self.before, self.after) {
            (Some(before), Some(after)) => ptr::eq(before, after) || before == after,
            _ => false,
        }
    }
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    fn entry(&self) -> Option<&'a Entry> {
        self.chunks.first()?.get(self.entry)
    }

    fn advance(&mut self) {
        self.entry += 1;
        if self.chunks.first().is_some_and(|chunk| self.entry == chunk.len()) {
            self.chunks = &self.chunks[1..];
            self.entry = 0;
        }
    }

    /// Skips the chunks that are in both collections, where both begin one.
    fn skip_shared(&mut self, other: &mut Self) {
        if self.entry != 0 || other.entry != 0 {
            return;
        }
        let pairs = self.chunks.iter().zip(other.chunks);
        let shared = pairs.take_while(|(one, other)| Arc::ptr_eq(one, other)).count();
        self.chunks = &self.chunks[shared..];
        other.chunks = &other.chunks[shared..];
    }
}
