//! Connections to frontends that many questions share: all pods of a node may ask at the same time, and a frontend
//! limits the connections of a node.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use runtime::{Backoff, failure::chain, lock};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

use super::{Connection, Credentials, FrontendAddress, connect};
use crate::stream::ReconnectDelays;

/// The calls that a frontend accepts on one connection.
const CALLS: usize = 16;
/// The connections to one frontend: enough for a call of each pod that may wait.
const CONNECTIONS: usize = 6;
/// After this time a connection gets no new calls: certificates and tokens change.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long a connection stays open after its last call.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct SharedConnections(Mutex<BTreeMap<FrontendAddress, Arc<FrontendConnections>>>);

#[derive(Debug, Default)]
struct FrontendConnections {
    slots: [Slot; CONNECTIONS],
    /// Locked while a call connects: there is one attempt at a time. `None`: the last one has succeeded.
    failure: tokio::sync::Mutex<Option<ConnectFailure>>,
}

/// The last attempts to connect have failed.
#[derive(Debug)]
struct ConnectFailure {
    backoff: Backoff,
    /// When the next attempt may be made. Calls until then fail like the last one.
    next: Instant,
    error: String,
}

/// At most one connection that gets new calls.
#[derive(Debug)]
struct Slot {
    calls: Arc<Semaphore>,
    current: Mutex<Weak<SharedConnection>>,
}

#[derive(Debug)]
struct SharedConnection {
    since: Instant,
    connection: Connection,
    /// It gets no new calls.
    has_failed: AtomicBool,
}

/// A call on a connection. Unless it has succeeded, the next call gets another connection.
#[derive(Debug)]
pub(super) struct SharedCall {
    connection: Arc<SharedConnection>,
    pub(super) has_succeeded: bool,
    _permit: OwnedSemaphorePermit,
}

// === impl SharedConnections ===

impl SharedConnections {
    /// Forgets the frontends that are not among these.
    pub(super) fn retain(&self, addresses: &[FrontendAddress]) {
        lock(&self.0).retain(|address, _| addresses.contains(address));
    }

    /// Waits until a connection has room for a call, and opens it if it is not open.
    ///
    /// # Errors
    /// When it cannot be opened, or the last attempt of any call has just failed.
    pub(super) async fn call(&self, address: &FrontendAddress, credentials: &Credentials) -> Result<SharedCall> {
        let frontend = lock(&self.0).entry(address.clone()).or_default().clone();
        let slots = &frontend.slots;
        let free = (0..CONNECTIONS).find_map(|slot| Some((slot, slots[slot].calls.clone().try_acquire_owned().ok()?)));
        let (slot, permit) = match free {
            Some(free) => free,
            None => (0, slots[0].calls.clone().acquire_owned().await?),
        };
        let connection = match slots[slot].usable() {
            Some(connection) => connection,
            None => frontend.connect(&slots[slot], address, credentials).await?,
        };
        Ok(SharedCall { connection, has_succeeded: false, _permit: permit })
    }
}

// === impl FrontendConnections ===

impl FrontendConnections {
    async fn connect(
        &self,
        slot: &Slot,
        address: &FrontendAddress,
        credentials: &Credentials,
    ) -> Result<Arc<SharedConnection>> {
        let mut failure = self.failure.lock().await;
        // Another call may have connected meanwhile.
        if let Some(connection) = slot.usable() {
            return Ok(connection);
        }
        if let Some(ConnectFailure { next, error, .. }) = &*failure
            && Instant::now() < *next
        {
            bail!("{error}");
        }
        match connect(address, credentials).await {
            Ok(connection) => {
                *failure = None;
                let has_failed = AtomicBool::new(false);
                let connection = Arc::new(SharedConnection { since: Instant::now(), connection, has_failed });
                *lock(&slot.current) = Arc::downgrade(&connection);
                Ok(connection)
            }
            Err(error) => {
                let failure = failure.get_or_insert_default();
                failure.next = Instant::now() + failure.backoff.next_delay();
                failure.error = chain(error.as_ref());
                Err(error)
            }
        }
    }
}

// === impl ConnectFailure ===

impl Default for ConnectFailure {
    fn default() -> Self {
        let ReconnectDelays { min, max, .. } = ReconnectDelays::default();
        Self { backoff: Backoff::new(min, max), next: Instant::now(), error: String::new() }
    }
}

// === impl Slot ===

impl Default for Slot {
    fn default() -> Self {
        Self { calls: Arc::new(Semaphore::new(CALLS)), current: Mutex::default() }
    }
}

impl Slot {
    /// The connection that gets new calls.
    fn usable(&self) -> Option<Arc<SharedConnection>> {
        let connection = lock(&self.current).upgrade()?;
        (connection.since.elapsed() < MAX_AGE && !connection.has_failed.load(Relaxed)).then_some(connection)
    }
}

// === impl SharedCall ===

impl SharedCall {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection.connection
    }
}

impl Drop for SharedCall {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.connection.has_failed.store(true, Relaxed);
        }
        // Pods ask again and again.
        let connection = self.connection.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                sleep(LINGER).await;
                drop(connection);
            });
        }
    }
}
