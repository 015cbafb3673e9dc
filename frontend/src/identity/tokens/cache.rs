//! Results of reviews by the hash of the token, each reviewed once at a time. Compiled again in
//! `tests/simulation/concurrency/`, where the `primitives` are those of a scheduler that tries many interleavings.

use std::collections::HashMap;

use tokio::{sync::OnceCell, time::Instant};

use super::primitives::{Arc, Mutex, MutexGuard, PoisonError};

/// How many results are cached: three times the number of nodes in the largest clusters.
pub(super) const MAX_ENTRIES: usize = 16_384;

/// The SHA-256 of a token: tokens are secrets and not stored.
pub(super) type TokenHash = [u8; 32];
/// A result, once a review has one.
pub(super) type CacheEntry<I, E> = OnceCell<CachedResult<I, E>>;
pub(super) type Entries<I, E> = HashMap<TokenHash, Arc<CacheEntry<I, E>>>;

#[derive(Debug)]
pub(super) struct CachedResult<I, E> {
    pub(super) identity: Result<I, E>,
    pub(super) expires_at: Instant,
}

/// Results, and reviews in progress.
#[derive(Debug)]
pub(super) struct TokenCache<I, E>(Mutex<Entries<I, E>>);

impl<I, E> Default for TokenCache<I, E> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<I, E> TokenCache<I, E> {
    /// The cache entry of a token, empty if there is no valid result.
    pub(super) fn entry(&self, hash: TokenHash) -> Arc<CacheEntry<I, E>> {
        let now = Instant::now();
        let mut cache = self.lock();
        if let Some(entry) = cache.get(&hash)
            && entry.get().is_none_or(|result| result.expires_at > now)
        {
            return entry.clone();
        }

        if cache.len() >= MAX_ENTRIES {
            evict(&mut cache, now);
        }
        let entry = Arc::new(CacheEntry::new());
        cache.insert(hash, entry.clone());
        entry
    }

    /// Removes an entry without a result that no other request waits for.
    pub(super) fn forget(&self, hash: &TokenHash, entry: Arc<CacheEntry<I, E>>) {
        let mut cache = self.lock();
        let is_unused = |cached: &Arc<CacheEntry<I, E>>| {
            Arc::ptr_eq(cached, &entry) && cached.get().is_none() && Arc::strong_count(cached) == 2
        };
        if cache.get(hash).is_some_and(is_unused) {
            cache.remove(hash);
        }
        // Before the lock is released: of several requests whose review has failed, the last one removes the entry.
        drop(entry);
        drop(cache);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Entries<I, E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes expired results and entries without a review in progress; if that is not enough, the result that expires
/// first.
fn evict<I, E>(cache: &mut Entries<I, E>, now: Instant) {
    cache.retain(|_, entry| match entry.get() {
        Some(result) => result.expires_at > now,
        None => Arc::strong_count(entry) > 1,
    });
    if cache.len() >= MAX_ENTRIES {
        let first = cache.iter().min_by_key(|(_, entry)| entry.get().map(|result| result.expires_at));
        if let Some((&hash, _)) = first {
            cache.remove(&hash);
        }
    }
}
