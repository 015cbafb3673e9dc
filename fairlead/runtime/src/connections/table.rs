//! The open connections of a server, which it counts by key.
//!
//! Compiled again in `tests/simulation/concurrency/`, where the `primitives` are those of a scheduler that tries
//! many interleavings.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    iter::{repeat, zip},
};

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
        let open =
            OpenConnections { next_id: 0, by_key: BTreeMap::new(), count: 0, eviction_log: CountedLog::default() };
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
        let connection = OpenConnection { is_busy: false, evicted: evicted.clone() };
        let id = self.with(|open| {
            self.make_room(open, &key);
            open.insert(key.clone(), connection)
        });
        ConnectionPermit { table: self.clone(), key, id, evicted }
    }

    /// Evicts a connection if a bound is reached.
    fn make_room(&self, open: &mut OpenConnections<K>, key: &K) {
        let ConnectionBounds { total, per_key } = self.bounds;
        let victim = if open.of(key) >= per_key.max(1) {
            open.victim_of(key).map(|id| (key.clone(), id))
        } else if open.count >= total.max(1) {
            open.victim()
        } else {
            None
        };
        let Some((key, id)) = victim else { return };

        debug!(table = self.name, ?key, "evicting a connection");
        if let Some(connection) = open.remove(&key, id) {
            connection.evicted.notify_one();
        }
        if let Some(count) = open.eviction_log.record(()) {
            warn!(
                table = self.name,
                count,
                busiest = ?open.busiest(),
                max_connections = total,
                max_per_client = per_key,
                "too many connections, the oldest are closed"
            );
        }
    }

    /// How many connections are open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.with(|open| open.count)
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
        let connections = self.by_key.iter().flat_map(|(key, open)| zip(repeat((key, open.len())), open));
        let victim = connections.min_by_key(|((_, count), (id, open))| (Reverse(*count), open.is_busy, **id));
        victim.map(|((key, _), (id, _))| (key.clone(), *id))
    }

    /// The key with the most connections.
    fn busiest(&self) -> Option<&K> {
        self.by_key.iter().max_by_key(|(_, connections)| connections.len()).map(|(key, _)| key)
    }

    /// Adds a connection, and returns its id.
    fn insert(&mut self, key: K, connection: OpenConnection) -> u64 {
        self.next_id += 1;
        self.count += 1;
        self.by_key.entry(key).or_default().insert(self.next_id, connection);
        self.next_id
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
