//! The pods that wait until no node sends them new connections, for the status, the page and the metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{DrainState, rates::QuestionRates, uses::AddressUses};
use crate::object::ObjectName;

/// All pods that this frontend is asked about at the moment.
#[derive(Debug, Default)]
pub(crate) struct WaitingDrains {
    /// Those that wait longest come first.
    drains: Mutex<BTreeMap<WaitingId, WaitingDrain>>,
    next: AtomicU64,
    pub(super) uses: AddressUses,
    pub(crate) rates: QuestionRates,
}

/// The time at which the pod began to wait, and a number.
type WaitingId = (Instant, u64);

/// One pod.
#[derive(Clone, Debug)]
pub(crate) struct WaitingDrain {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) services: BTreeSet<ObjectName>,
    pub(crate) state: DrainState,
    pub(crate) since: Instant,
}

/// An entry of [`WaitingDrains`], which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct WaitingEntry<'a> {
    drains: &'a WaitingDrains,
    id: WaitingId,
}

impl WaitingDrains {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// How often was decided how addresses are used.
    #[cfg(test)]
    pub(crate) fn decisions(&self) -> usize {
        self.uses.decisions()
    }

    /// The `limit` pods that have waited longest.
    pub(crate) fn longest(&self, limit: usize) -> Vec<WaitingDrain> {
        self.lock().values().take(limit).cloned().collect()
    }

    /// Adds a pod that has waited for this time already.
    pub(super) fn enter(&self, addresses: Vec<IpAddr>, waited: Duration) -> WaitingEntry<'_> {
        let now = Instant::now();
        let since = now.checked_sub(waited).unwrap_or(now);
        let id = (since, self.next.fetch_add(1, Ordering::Relaxed));
        let drain = WaitingDrain { addresses, services: BTreeSet::new(), state: DrainState::Unknown, since };
        self.lock().insert(id, drain);
        WaitingEntry { drains: self, id }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WaitingId, WaitingDrain>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingEntry<'_> {
    pub(super) fn update(&self, state: DrainState, services: &BTreeSet<ObjectName>) {
        if let Some(drain) = self.drains.lock().get_mut(&self.id)
            && (drain.state, &drain.services) != (state, services)
        {
            drain.state = state;
            drain.services.clone_from(services);
        }
    }
}

impl Drop for WaitingEntry<'_> {
    fn drop(&mut self) {
        self.drains.lock().remove(&self.id);
    }
}
