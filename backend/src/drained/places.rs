//! Places for those who wait: a bounded number, and who gives way.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use prometheus_client::metrics::gauge::Gauge;
use runtime::lock;
use tokio::sync::oneshot;

use super::decide::AddressClass;

/// The most requests that wait on a node at a time, as any pod may ask: each has a task and a connection.
const MAX_PLACES: usize = 1024;

/// Who asks about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asker {
    /// The address itself. Each request takes a place.
    Address,
    /// A process of the node, such as the kubelet. All requests about an address share a place, because any tenant can
    /// have the kubelet ask about the pods of others.
    Node,
}

/// The places that are taken. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Places {
    addresses: Arc<Mutex<BTreeMap<IpAddr, AddressWaiters>>>,
    /// The number of addresses.
    waiting: Gauge,
}

/// Those who wait for one address, in the order in which they came.
#[derive(Debug, Default)]
struct AddressWaiters {
    by_asker: BTreeMap<Asker, Waiting>,
}

/// Ends when a waiter has to give way.
type Waiting = BTreeMap<u64, oneshot::Sender<()>>;

/// The right to wait, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    address: IpAddr,
    asker: Asker,
    number: u64,
    given_up: oneshot::Receiver<()>,
}

impl Places {
    /// Counts the addresses in this gauge.
    pub(super) fn counted(waiting: Gauge) -> Self {
        Self { addresses: Arc::default(), waiting }
    }

    /// Takes a place. If all are taken, one gives way: at an address of which least is known, then one of an address
    /// that asks for itself, then the oldest at the address with the most. `None`: that is this one.
    pub(super) fn take(
        &self,
        address: IpAddr,
        asker: Asker,
        class_of: impl Fn(IpAddr) -> AddressClass,
    ) -> Option<Place> {
        let (sender, given_up) = oneshot::channel();
        let mut addresses = lock(&self.addresses);
        let waiting = addresses.entry(address).or_default().by_asker.entry(asker).or_default();
        let number = waiting.last_key_value().map_or(0, |(last, _)| last + 1);
        waiting.insert(number, sender);
        let place = Place { places: self.clone(), address, asker, number, given_up };

        let count: usize = addresses.values().map(AddressWaiters::places).sum();
        if count > MAX_PLACES {
            give_way(&mut addresses, class_of);
        }
        self.count(&addresses);
        let is_kept = addresses.get(&address).is_some_and(|waiters| waiters.has(asker, number));
        drop(addresses);
        is_kept.then_some(place)
    }

    fn count(&self, addresses: &BTreeMap<IpAddr, AddressWaiters>) {
        self.waiting.set(i64::try_from(addresses.len()).unwrap_or(i64::MAX));
    }
}

/// Ends the waiters of one place.
fn give_way(addresses: &mut BTreeMap<IpAddr, AddressWaiters>, class_of: impl Fn(IpAddr) -> AddressClass) {
    let rank = |address: IpAddr, asker, waiters: &AddressWaiters| (class_of(address), asker, Reverse(waiters.places()));
    let ranked = addresses.iter().flat_map(|(address, waiters)| {
        waiters.by_asker.keys().map(move |asker| (rank(*address, *asker, waiters), *address, *asker))
    });
    let Some((_, address, asker)) = ranked.min() else { return };
    let Some(waiters) = addresses.get_mut(&address) else { return };

    match asker {
        Asker::Node => drop(waiters.by_asker.remove(&asker)),
        Asker::Address => {
            if let Some(waiting) = waiters.by_asker.get_mut(&asker) {
                waiting.pop_first();
            }
        }
    }
    waiters.by_asker.retain(|_, waiting| !waiting.is_empty());
    addresses.retain(|_, waiters| !waiters.by_asker.is_empty());
}

impl AddressWaiters {
    fn places(&self) -> usize {
        let places = self.by_asker.iter().map(|(asker, waiting)| match asker {
            Asker::Node => 1,
            Asker::Address => waiting.len(),
        });
        places.sum()
    }

    fn has(&self, asker: Asker, number: u64) -> bool {
        self.by_asker.get(&asker).is_some_and(|waiting| waiting.contains_key(&number))
    }
}

impl Place {
    /// Ends when the place is needed for another one.
    pub(super) async fn given_up(&mut self) {
        // The sender is dropped.
        let _ = (&mut self.given_up).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut addresses = lock(&self.places.addresses);
        let Some(waiters) = addresses.get_mut(&self.address) else { return };
        if let Some(waiting) = waiters.by_asker.get_mut(&self.asker) {
            waiting.remove(&self.number);
        }
        waiters.by_asker.retain(|_, waiting| !waiting.is_empty());
        if waiters.by_asker.is_empty() {
            addresses.remove(&self.address);
        }
        self.places.count(&addresses);
    }
}
