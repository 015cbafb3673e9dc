//! Places for requests that wait: their number is bounded, and beyond it one of them gives way.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
    sync::{Arc, Mutex},
};

use prometheus_client::metrics::gauge::Gauge;
use runtime::lock;
use tokio::sync::oneshot;

use super::decide::AddressClass;

/// The most requests that wait on a node at a time. Each has a task and a connection, and any pod may ask.
const MAX_PLACES: usize = 1024;

/// Who asks about an address, in the order of the keys of one address.
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
    waiters: Arc<Mutex<WaitersByAsker>>,
    /// The number of addresses.
    waiting: Gauge,
}

type WaitersByAsker = BTreeMap<(IpAddr, Asker), Waiters>;

/// The requests in the order in which they came. A sender is dropped when its request has to give way.
type Waiters = BTreeMap<u64, oneshot::Sender<()>>;

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
        Self { waiters: Arc::default(), waiting }
    }

    /// Takes a place. If all are taken, a request about an address of which least is known gives way; among them a
    /// request of an address that asks for itself; among them the oldest request at the address with the most places.
    /// `None` if this request gives way.
    pub(super) fn take(
        &self,
        address: IpAddr,
        asker: Asker,
        class_of: impl Fn(IpAddr) -> AddressClass,
    ) -> Option<Place> {
        let (sender, given_up) = oneshot::channel();
        let mut all = lock(&self.waiters);
        let waiters = all.entry((address, asker)).or_default();
        let number = waiters.last_key_value().map_or(0, |(last, _)| last + 1);
        waiters.insert(number, sender);

        if all.iter().map(places).sum::<usize>() > MAX_PLACES {
            give_way(&mut all, class_of);
        }
        self.count(&all);

        let is_kept = all.get(&(address, asker)).is_some_and(|waiters| waiters.contains_key(&number));
        drop(all);
        if is_kept { Some(Place { places: self.clone(), address, asker, number, given_up }) } else { None }
    }

    fn count(&self, all: &WaitersByAsker) {
        let mut addresses: Vec<_> = all.keys().map(|(address, _)| address).collect();
        addresses.dedup();
        self.waiting.set(i64::try_from(addresses.len()).unwrap_or(i64::MAX));
    }
}

/// Ends the waiters of one place.
fn give_way(all: &mut WaitersByAsker, class_of: impl Fn(IpAddr) -> AddressClass) {
    let places_at = |address| all.range((address, Asker::Address)..=(address, Asker::Node)).map(places).sum::<usize>();
    let rank = |(address, asker): &(IpAddr, Asker)| (class_of(*address), *asker, Reverse(places_at(*address)));
    let Some(first) = all.keys().copied().min_by_key(rank) else { return };

    if let Entry::Occupied(mut waiters) = all.entry(first) {
        waiters.get_mut().pop_first();
        let (_, asker) = first;
        if asker == Asker::Node || waiters.get().is_empty() {
            waiters.remove();
        }
    }
}

/// The number of places that waiters take.
fn places(((_, asker), waiters): (&(IpAddr, Asker), &Waiters)) -> usize {
    match asker {
        Asker::Node => 1,
        Asker::Address => waiters.len(),
    }
}

impl Place {
    /// Ends when the place is needed for another request.
    pub(super) async fn given_up(&mut self) {
        // The sender is dropped.
        let _ = (&mut self.given_up).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = lock(&self.places.waiters);
        if let Entry::Occupied(mut waiters) = all.entry((self.address, self.asker)) {
            waiters.get_mut().remove(&self.number);
            if waiters.get().is_empty() {
                waiters.remove();
            }
        }
        self.places.count(&all);
    }
}
