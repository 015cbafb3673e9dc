//! What replicas of a server share: the objects, and who is notified of their changes.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{ApiServer, Shared};
use crate::store::Store;

/// The objects and versions of a server.
#[derive(Clone, Debug)]
pub struct Backup(Store);

/// What replicas of a server share.
#[derive(Debug, Default)]
pub(super) struct Storage {
    store: Mutex<Store>,
    /// Those of all replicas.
    changed: Mutex<Vec<watch::Sender<u64>>>,
}

impl ApiServer {
    /// Another server with the same objects, and with faults and reviews of its own, for [`Self::call`].
    #[must_use]
    pub fn replica(&self) -> Self {
        Self::new(self.0.address, self.0.storage.clone())
    }

    pub(super) fn new(address: SocketAddr, storage: Arc<Storage>) -> Self {
        let changed = watch::Sender::new(0);
        storage.changed.lock().unwrap_or_else(PoisonError::into_inner).push(changed.clone());
        Self(Arc::new(Shared { address, storage, state: Mutex::default(), serving: Mutex::default(), changed }))
    }

    /// Forgets all older versions, so that all watches and `continue` tokens expire (410).
    pub fn compact(&self) {
        self.store().compact();
        self.notify_all();
    }

    /// What [`Self::restore`] restores.
    #[must_use]
    pub fn backup(&self) -> Backup {
        Backup(self.store().clone())
    }

    /// Takes all later changes back, and restarts all replicas: their watches are cut.
    pub fn restore(&self, Backup(mut store): Backup) {
        let mut current = self.store();
        store.remember(&mut current);
        *current = store;
        drop(current);
        self.0.storage.send(|cuts| *cuts += 1);
    }

    pub(super) fn notify_all(&self) {
        self.0.storage.send(|_| {});
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.0.storage.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Storage ===

impl Storage {
    /// Notifies all replicas.
    fn send(&self, modify: impl Fn(&mut u64)) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|sender| {
            sender.send_modify(&modify);
        });
    }
}
