//! What is kept for each client, as long as it says more than a new entry.

use std::collections::BTreeMap;

use runtime::TokenBucket;
use tokio::time::Instant;

/// Entries are not cleaned up below this number.
pub(crate) const MIN_CLEANUP: usize = 64;

/// An entry for each client. Unused ones are removed when there are twice as many as the last time.
#[derive(Debug)]
pub(crate) struct PerClient<K, V> {
    entries: BTreeMap<K, V>,
    cleanup_at: usize,
}

impl<K, V> Default for PerClient<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), cleanup_at: MIN_CLEANUP }
    }
}

impl<K: Ord, V> PerClient<K, V> {
    /// The entry of a client. `is_used` decides which of the others stay.
    pub(crate) fn entry(&mut self, client: K, is_used: impl Fn(&V) -> bool, new: impl FnOnce() -> V) -> &mut V {
        if self.entries.len() >= self.cleanup_at {
            self.entries.retain(|_, entry| is_used(entry));
            self.cleanup_at = MIN_CLEANUP.max(2 * self.entries.len());
        }
        self.entries.entry(client).or_insert_with(new)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<K: Ord> PerClient<K, TokenBucket> {
    pub(crate) fn bucket(&mut self, client: K, now: Instant) -> &mut TokenBucket {
        self.entry(client, |bucket| !bucket.is_full(now), || TokenBucket::full(now))
    }
}
