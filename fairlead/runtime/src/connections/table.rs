//! The open connections of a server, which it counts by key.
//!
//! Compiled again in `tests/simulation/concurrency/`, where the `primitives` are those of a scheduler that tries
//! many interleavings.

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use tokio::sync::Notify;
use tracing::{debug, warn};

use super::primitives::{Arc, Mutex, PoisonError};
use crate::failure::CountedLog;

/// The bounds of a [`ConnectionTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// Connections in total; at least one.
    pub total: usize,
    /// Connections of one key; at least one.
    pub per_key: usize,
}

/// The open connections of a server, counted by `K`. Clones share the same state.
#[derive(Clone, Debug)]
pub struct ConnectionTable<K: Ord> {
    /// Names the table in log lines.
    name: &'static str,
    bounds: ConnectionBounds,
    open: Arc<Mutex<OpenConnections<K>>>,
}

#[derive(Debug)]
pub(super) struct OpenConnections<K> {
    next_id: u64,
    /// By key and id; a higher id is a newer connection.
    pub(super) by_key: BTreeMap<K, BTreeMap<u64, OpenConnection>>,
    count: usize,
    evictions: u64,
    eviction_log: CountedLog<()>,
}

#[derive(Debug)]
pub(super) struct OpenConnection {
    is_busy: bool,
    evicted: Arc<Notify>,
}

/// The right to an open connection. Dropping it frees its part of the bounds.
#[derive(Debug)]
pub struct ConnectionPermit<K: Ord> {
    pub(super) table: ConnectionTable<K>,
    pub(super) key: K,
    pub(super) id: u64,
    evicted: Arc<Notify>,
}

impl<K: Ord + Clone + fmt::Debug> ConnectionTable<K> {
    /// An empty table. `name` names it in log lines.
    #[must_use]
    pub fn new(name: &'static str, bounds: ConnectionBounds) -> Self {
        let open = OpenConnections {
            next_id: 0,
            by_key: BTreeMap::new(),
            count: 0,
            evictions: 0,
            eviction_log: CountedLog::default(),
        };
        Self { name, bounds, open: Arc::new(Mutex::new(open)) }
    }

    /// Admits a connection. If a bound is reached, another connection is evicted for it: one of the same key if that
    /// has its maximum, otherwise one of the key with the most connections; an idle one before a busy one, the oldest
    /// first.
    #[must_use]
    pub fn admit(&self, key: K) -> ConnectionPermit<K> {
        self.admit_as(key, Arc::default())
    }

    /// Admits a connection like [`Self::admit`], and notifies `evicted` when it is evicted.
    #[must_use]
    pub fn admit_as(&self, key: K, evicted: Arc<Notify>) -> ConnectionPermit<K> {
        let Self { name, bounds, .. } = *self;
        let id = self.with(|open| {
            let victim = if open.of(&key) >= bounds.per_key.max(1) {
                open.victim_of(&key).map(|id| (key.clone(), id))
            } else if open.count >= bounds.total.max(1) {
                open.victim()
            } else {
                None
            };
            if let Some((victim, id)) = victim {
                debug!(table = name, key = ?victim, "evicting a connection");
                open.remove(&victim, id).inspect(|connection| connection.evicted.notify_one());
                open.evictions += 1;
                if let Some(count) = open.eviction_log.record(()) {
                    warn!(
                        table = name,
                        count,
                        busiest = ?open.busiest(),
                        max_connections = bounds.total,
                        max_per_client = bounds.per_key,
                        "too many connections, the oldest are closed"
                    );
                }
            }
            open.next_id += 1;
            let connection = OpenConnection { is_busy: false, evicted: evicted.clone() };
            open.by_key.entry(key.clone()).or_default().insert(open.next_id, connection);
            open.count += 1;
            open.next_id
        });
        ConnectionPermit { table: self.clone(), key, id, evicted }
    }

    /// How many connections are open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.with(|open| open.count)
    }

    /// How many connections were evicted so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.with(|open| open.evictions)
    }
}

impl<K: Ord> ConnectionTable<K> {
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut OpenConnections<K>) -> T) -> T {
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<K: Ord> OpenConnections<K> {
    fn of(&self, key: &K) -> usize {
        self.by_key.get(key).map_or(0, BTreeMap::len)
    }

    fn victim_of(&self, key: &K) -> Option<u64> {
        let connections = self.by_key.get(key)?;
        connections.iter().min_by_key(|(id, connection)| (connection.is_busy, **id)).map(|(id, _)| *id)
    }

    /// The connection to evict for one of another key. The search is linear, and only needed while the table is full.
    fn victim(&self) -> Option<(K, u64)>
    where
        K: Clone,
    {
        let keys = self.by_key.iter().flat_map(|(key, connections)| {
            let rank = move |(id, connection): (&u64, &OpenConnection)| {
                (Reverse(connections.len()), connection.is_busy, *id, key)
            };
            connections.iter().map(rank)
        });
        keys.min_by_key(|(count, is_busy, id, _)| (*count, *is_busy, *id)).map(|(.., id, key)| (key.clone(), id))
    }

    /// The key with the most connections.
    fn busiest(&self) -> Option<&K> {
        self.by_key.iter().max_by_key(|(_, connections)| connections.len()).map(|(key, _)| key)
    }

    fn remove(&mut self, key: &K, id: u64) -> Option<OpenConnection> {
        let connections = self.by_key.get_mut(key)?;
        let removed = connections.remove(&id)?;
        if connections.is_empty() {
            self.by_key.remove(key);
        }
        self.count -= 1;
        Some(removed)
    }
}

impl<K: Ord> ConnectionPermit<K> {
    /// Waits until the connection must be closed in favour of another one.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// The connection no longer counts, and is not evicted any more.
    pub fn release(&self) {
        self.table.with(|open| open.remove(&self.key, self.id));
    }

    /// The client has sent a request: idle connections are evicted first.
    pub fn set_busy(&self) {
        self.table.with(|open| {
            let connection = open.by_key.get_mut(&self.key).and_then(|connections| connections.get_mut(&self.id));
            if let Some(connection) = connection {
                connection.is_busy = true;
            }
        });
    }
}

impl<K: Ord> Drop for ConnectionPermit<K> {
    fn drop(&mut self) {
        self.table.with(|open| open.remove(&self.key, self.id));
    }
}
