//! Connections to frontends that many questions share: all pods of a node may ask at the same time, and a frontend
//! limits the connections of a node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use anyhow::{Result, bail};
use runtime::{Backoff, failure::chain, lock};
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};
use tonic::transport::Channel;

use super::{Credentials, FrontendAddress, Token, connect};
use crate::stream::ReconnectDelays;

/// The calls that a frontend accepts on one connection.
const CALLS: usize = 16;
/// The connections to one frontend: enough for a call of each pod that may wait.
const CONNECTIONS: usize = 6;
/// After this time a connection gets no new calls: certificates and tokens change.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long a connection stays open after its last call.
const LINGER: Duration = Duration::from_secs(5);

/// The connections to all frontends, by their addresses.
#[derive(Debug, Default)]
pub(super) struct SharedConnections(Mutex<BTreeMap<FrontendAddress, Arc<FrontendConnections>>>);

/// The connections to one frontend.
#[derive(Debug, Default)]
struct FrontendConnections {
    slots: [Slot; CONNECTIONS],
    /// Calls attempt to connect one after the other.
    attempt: tokio::sync::Mutex<()>,
    failure: Mutex<Option<ConnectFailure>>,
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
    created: Instant,
    opened: OnceCell<(Channel, Option<Token>)>,
}

/// A call on a connection. Unless it has succeeded, the next call gets another connection.
#[derive(Debug)]
pub(super) struct SharedCall {
    frontend: Arc<FrontendConnections>,
    slot: usize,
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

    /// Waits until a connection has room for a call.
    pub(super) async fn call(&self, address: &FrontendAddress) -> Result<SharedCall> {
        let frontend = lock(&self.0).entry(address.clone()).or_default().clone();
        let slots = &frontend.slots;
        let free = (0..CONNECTIONS).find_map(|slot| Some((slot, slots[slot].calls.clone().try_acquire_owned().ok()?)));
        let (slot, permit) = match free {
            Some(free) => free,
            None => (0, slots[0].calls.clone().acquire_owned().await?),
        };
        let connection = slots[slot].connection();
        Ok(SharedCall { frontend, slot, connection, has_succeeded: false, _permit: permit })
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
    fn connection(&self) -> Arc<SharedConnection> {
        let mut current = lock(&self.current);
        let usable = current.upgrade().filter(|connection| connection.created.elapsed() < MAX_AGE);
        usable.unwrap_or_else(|| {
            let new = Arc::new(SharedConnection { created: Instant::now(), opened: OnceCell::new() });
            *current = Arc::downgrade(&new);
            new
        })
    }

    /// The next call gets another connection.
    fn give_up(&self, connection: &Arc<SharedConnection>) {
        let mut current = lock(&self.current);
        if current.as_ptr() == Arc::as_ptr(connection) {
            *current = Weak::new();
        }
    }
}

// === impl SharedCall ===

impl SharedCall {
    /// The connection, which the first call opens, and the token for requests.
    ///
    /// # Errors
    /// When it cannot be opened, or the last attempt of any call has just failed.
    pub(super) async fn open(
        &self,
        address: &FrontendAddress,
        credentials: &Credentials,
    ) -> Result<(Channel, Option<Token>)> {
        let opened = &self.connection.opened;
        if let Some(opened) = opened.get() {
            return Ok(opened.clone());
        }
        let FrontendConnections { attempt, failure, .. } = &*self.frontend;
        let _attempt = attempt.lock().await;
        let connect = async || {
            match &*lock(failure) {
                Some(ConnectFailure { next, error, .. }) if Instant::now() < *next => bail!("{error}"),
                _ => {}
            }
            let connected = connect(address, credentials).await;
            let mut failure = lock(failure);
            match &connected {
                Ok(_) => *failure = None,
                Err(error) => {
                    let failure = failure.get_or_insert_default();
                    failure.next = Instant::now() + failure.backoff.next_delay();
                    failure.error = chain(error.as_ref());
                }
            }
            connected
        };
        opened.get_or_try_init(connect).await.cloned()
    }
}

impl Drop for SharedCall {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.frontend.slots[self.slot].give_up(&self.connection);
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
