//! The pods that wait until no node sends them new connections, for the status, the page and the metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use proto::model::Revision;
use runtime::lock;
use tokio::time::Instant;

use crate::object::ObjectName;

/// How long after the answer to one question about a pod the next one continues it.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);
/// The most pods whose last question is remembered.
const MAX_REMEMBERED: usize = 4096;

/// All pods that this frontend is asked about at the moment.
#[derive(Debug, Default)]
pub(crate) struct WaitingDrains {
    /// Those that wait longest come first.
    drains: Mutex<BTreeMap<WaitingId, WaitingDrain>>,
    next: AtomicU64,
    /// By addresses: pods whose last question was answered.
    answered: Mutex<BTreeMap<Vec<IpAddr>, AnsweredDrain>>,
}

/// A pod that may be asked about again.
#[derive(Clone, Copy, Debug)]
struct AnsweredDrain {
    /// When it was first asked about.
    since: Instant,
    /// When the last question was answered.
    at: Instant,
}

/// The time at which the pod began to wait, and a number.
type WaitingId = (Instant, u64);

/// What is known about new connections to the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainState {
    /// No EndpointSlice has one of its addresses.
    Unknown,
    /// Some entry is not terminating, or a pool has one.
    InUse,
    /// Nodes have not programmed this revision yet, in which no pool has one.
    Behind(Revision),
    /// No node that is connected here and makes progress sends new connections.
    Drained,
}

#[derive(Clone, Debug)]
pub(crate) struct WaitingDrain {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) services: BTreeSet<ObjectName>,
    pub(crate) state: DrainState,
    pub(crate) since: Instant,
}

/// An entry of [`WaitingDrains`], which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingEntry<'a> {
    drains: &'a WaitingDrains,
    id: WaitingId,
}

impl WaitingDrains {
    pub(crate) fn count(&self) -> usize {
        lock(&self.drains).len()
    }

    /// The `limit` pods that have waited longest. Those in no EndpointSlice are last: a node may ask about any such
    /// address.
    pub(crate) fn longest(&self, limit: usize) -> Vec<WaitingDrain> {
        let drains = lock(&self.drains);
        let is_known = |drain: &&WaitingDrain| drain.state != DrainState::Unknown;
        let unknown = drains.values().filter(|drain| !is_known(drain));
        drains.values().filter(is_known).chain(unknown).take(limit).cloned().collect()
    }

    /// Adds a pod. It has waited since the first of its questions that followed each other.
    pub(crate) fn enter(&self, addresses: Vec<IpAddr>) -> WaitingEntry<'_> {
        let now = Instant::now();
        let before = lock(&self.answered).remove(&addresses).filter(|before| now - before.at < PAUSE);
        let since = before.map_or(now, |before| before.since);
        let id = (since, self.next.fetch_add(1, Ordering::Relaxed));
        let drain = WaitingDrain { addresses, services: BTreeSet::new(), state: DrainState::Unknown, since };
        lock(&self.drains).insert(id, drain);
        WaitingEntry { drains: self, id }
    }

    /// Remembers a pod whose question was answered.
    fn remember(&self, drain: WaitingDrain) {
        let (mut answered, now) = (lock(&self.answered), Instant::now());
        if answered.len() >= MAX_REMEMBERED {
            answered.retain(|_, answered| now - answered.at < PAUSE);
        }
        if answered.len() < MAX_REMEMBERED {
            answered.insert(drain.addresses, AnsweredDrain { since: drain.since, at: now });
        }
    }
}

impl WaitingEntry<'_> {
    pub(crate) fn update(&self, state: DrainState, services: &BTreeSet<ObjectName>) {
        if let Some(drain) = lock(&self.drains.drains).get_mut(&self.id)
            && (drain.state, &drain.services) != (state, services)
        {
            drain.state = state;
            drain.services.clone_from(services);
        }
    }
}

impl Drop for WaitingEntry<'_> {
    fn drop(&mut self) {
        let ended = lock(&self.drains.drains).remove(&self.id);
        if let Some(drain) = ended {
            self.drains.remember(drain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pod_has_waited_since_the_first_question_that_this_frontend_saw() {
        let drains = WaitingDrains::default();
        let ask = || drains.enter(vec![IpAddr::from([10, 0, 0, 1])]);
        let first = Instant::now();
        for _ in 0..3 {
            let _entry = ask();
            assert_eq!(drains.longest(1)[0].since, first);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        drop(ask());
        tokio::time::advance(PAUSE).await;
        let _entry = ask();
        assert_eq!(drains.longest(1)[0].since, Instant::now(), "another pod, after a pause");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_in_no_slice_do_not_hide_pods_that_wait() {
        let drains = WaitingDrains::default();
        let ask = |number| drains.enter(vec![std::net::Ipv4Addr::from_bits(number).into()]);
        let _made_up: Vec<_> = (0..512).map(ask).collect();
        tokio::time::advance(Duration::from_secs(60)).await;
        let pod = ask(1_000);
        pod.update(DrainState::InUse, &BTreeSet::new());
        let states: Vec<_> = drains.longest(3).iter().map(|drain| drain.state).collect();
        assert_eq!(states, [DrainState::InUse, DrainState::Unknown, DrainState::Unknown]);
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_pods_are_bounded() {
        let drains = WaitingDrains::default();
        for number in 0..3 * MAX_REMEMBERED {
            drop(drains.enter(vec![std::net::Ipv4Addr::from_bits(number as u32).into()]));
        }
        assert_eq!(lock(&drains.answered).len(), MAX_REMEMBERED);
    }
}
