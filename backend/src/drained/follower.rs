//! Follows the frontends for all waiters of the node, while there are any.
//!
//! ```text
//!   waiters ──Demand──▶ follow ──▶ one task for each address: opens the stream, again and again
//!      ▲                  │   ▲                   │
//!      └──────View────────┘   └──────Update───────┘
//! ```

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Result, anyhow};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use proto::v1::DrainLevels;
use runtime::{Backoff, failure::chain, sleep_until};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::{Instant, sleep},
};
use tracing::debug;

use super::{
    DrainStreams, Drained,
    decide::{AddressClass, Decision, Latest, View, Wait, Waiter},
};
use crate::FrontendAddress;

/// How long streams stay open after the last waiter: pods often end one after the other.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// The first delay before a question about a pod that ends is asked again: a stream that failed is opened again, or a
/// hook asks a backend again that gives no answer.
pub const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The longest of these delays, and the time after which addresses that could not be resolved are resolved again.
pub const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// How often to check whether the node's session is with another frontend: nothing notifies of that.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest timeout of a question, so that a frontend that is asked for it has time to answer.
const MIN_TIMEOUT: Duration = Duration::from_millis(500);

/// The most messages of all frontends together that wait until they are taken over. Beyond it their streams wait.
const QUEUED_UPDATES: usize = 16;

/// Knows how far the pods of this node are drained, as long as a request waits for one. Clones share the streams.
#[derive(Clone, Debug)]
pub struct Follower {
    streams: Arc<dyn DrainStreams>,
    demand: watch::Sender<Demand>,
    view: watch::Sender<View>,
}

/// The needs of all waiters.
#[derive(Debug, Default)]
struct Demand {
    waiting: usize,
    /// The waiters for which all frontends are asked.
    asking_all: usize,
    /// When the list of frontends must have been resolved.
    list_since: Option<Instant>,
    is_followed: bool,
}

/// A waiter's part of the demand.
#[derive(Debug)]
struct Claim {
    demand: watch::Sender<Demand>,
    is_asking_all: bool,
}

/// A message of a stream, or its end.
#[derive(Debug)]
enum Update {
    Levels(DrainLevels),
    Failed(String),
}

/// The task.
struct Following {
    follower: Follower,
    updates: mpsc::Sender<(FrontendAddress, Update)>,
    tasks: BTreeMap<FrontendAddress, AbortHandle>,
    /// Addresses of frontends that another address serves.
    aliases: BTreeMap<FrontendAddress, FrontendAddress>,
    view: View,
    /// The lookup of addresses, and when it began.
    resolving: Option<(Instant, BoxFuture<'static, Result<()>>)>,
    /// When a request last waited, and when one last waited for all frontends.
    last_waiting: Instant,
    last_asking_all: Option<Instant>,
}

// === impl Follower ===

impl Follower {
    /// Opens no stream before a request waits.
    #[must_use]
    pub fn new(streams: Arc<dyn DrainStreams>) -> Self {
        Self { streams, demand: watch::Sender::default(), view: watch::Sender::default() }
    }

    /// Waits until no node sends new connections to the pod at an address, at most for this time.
    pub async fn wait(&self, address: IpAddr, patience: Duration) -> Drained {
        let mut claim = self.claim();
        let mut view = self.view.subscribe();
        let mut waiter = Waiter::new(address, Instant::now() + patience.max(MIN_TIMEOUT));
        loop {
            let decision = waiter.decide(&view.borrow_and_update(), Instant::now());
            let Wait { until, list_since } = match decision {
                Decision::Wait(wait) => wait,
                Decision::Done(drained) => return drained,
            };
            claim.update(list_since);

            tokio::select! {
                // It does not end while this handle exists.
                _ = view.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    pub(super) fn class_of(&self, address: IpAddr) -> AddressClass {
        self.view.borrow().class_of(address)
    }

    /// Adds a waiter, and follows frontends from now on.
    fn claim(&self) -> Claim {
        let mut is_followed = true;
        self.demand.send_modify(|demand| {
            demand.waiting += 1;
            is_followed = std::mem::replace(&mut demand.is_followed, true);
        });
        if !is_followed {
            tokio::spawn(follow(self.clone()));
        }
        Claim { demand: self.demand.clone(), is_asking_all: false }
    }
}

// === impl Claim ===

impl Claim {
    fn update(&mut self, list_since: Option<Instant>) {
        let is_asking_all = list_since.is_some();
        self.demand.send_if_modified(|demand| {
            let needs_newer = list_since > demand.list_since;
            let changes = is_asking_all != self.is_asking_all;
            if needs_newer {
                demand.list_since = list_since;
            }
            if changes {
                demand.asking_all = demand.asking_all + usize::from(is_asking_all) - usize::from(self.is_asking_all);
            }
            needs_newer || changes
        });
        self.is_asking_all = is_asking_all;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.demand.send_modify(|demand| {
            demand.waiting -= 1;
            demand.asking_all -= usize::from(self.is_asking_all);
        });
    }
}

// === impl Following ===

/// Follows frontends until no request has waited for [`LINGER_TIMEOUT`].
async fn follow(follower: Follower) {
    let mut demand = follower.demand.subscribe();
    let (updates, mut received) = mpsc::channel(QUEUED_UPDATES);
    let mut following = Following::new(follower, updates);
    loop {
        following.reconcile();
        following.follower.view.send_replace(following.view.clone());
        if following.is_over() {
            return;
        }

        let closing = following.next_closing();
        tokio::select! {
            Some((address, update)) = received.recv() => following.updated(address, update),
            resolved = resolved(&mut following.resolving) => following.resolved(&resolved),
            // It does not end while the follower exists.
            _ = demand.changed() => {}
            () = sleep_until(closing) => {}
            () = sleep(CHECK_INTERVAL) => {}
        }
        // Several may have come at once.
        while let Ok((address, update)) = received.try_recv() {
            following.updated(address, update);
        }
    }
}

impl Following {
    fn new(follower: Follower, updates: mpsc::Sender<(FrontendAddress, Update)>) -> Self {
        Self {
            follower,
            updates,
            tasks: BTreeMap::new(),
            aliases: BTreeMap::new(),
            view: View::default(),
            resolving: None,
            last_waiting: Instant::now(),
            last_asking_all: None,
        }
    }

    /// Opens and closes streams, and resolves addresses, as waiters need it.
    fn reconcile(&mut self) {
        let now = Instant::now();
        let list_since = {
            let demand = self.follower.demand.borrow();
            if demand.waiting > 0 {
                self.last_waiting = now;
            }
            if demand.asking_all > 0 {
                self.last_asking_all = Some(now);
                demand.list_since
            } else {
                None
            }
        };

        let streams = self.follower.streams.clone();
        if list_since > self.view.resolved && self.resolving.is_none() {
            self.resolving = Some((now, streams.resolve()));
        }

        let known = streams.addresses();
        self.view.last_removed = streams.last_removed();
        self.choose_own(streams.own(), &known);

        let asks_all = self.last_asking_all.is_some_and(|last| now < last + LINGER_TIMEOUT);
        let mut wanted: Vec<_> = if asks_all { known } else { Vec::new() };
        wanted.extend(self.view.own.clone());
        self.retain(&wanted);
        for address in wanted {
            self.open(address, now);
        }
    }

    /// The own frontend is the frontend of the session, or any frontend while there is no session.
    fn choose_own(&mut self, of_session: Option<FrontendAddress>, known: &[FrontendAddress]) {
        let of_session = of_session.map(|own| self.aliases.get(&own).cloned().unwrap_or(own));
        if of_session.is_some() {
            self.view.own = of_session;
            return;
        }

        let latest = self.view.own.as_ref().and_then(|own| self.view.frontends.get(own));
        let is_usable = match latest {
            Some(Latest::Levels { .. }) => true,
            Some(Latest::Failing { since, .. }) => since.elapsed() < MAX_RETRY_DELAY,
            Some(Latest::Alias) | None => false,
        };
        if !is_usable {
            let other = known.iter().find(|address| Some(*address) != self.view.own.as_ref());
            self.view.own = other.or(known.first()).cloned();
        }
    }

    fn retain(&mut self, wanted: &[FrontendAddress]) {
        self.aliases.retain(|address, _| wanted.contains(address));
        for (_, task) in self.tasks.extract_if(.., |address, _| !wanted.contains(address)) {
            task.abort();
        }
        self.view.frontends.retain(|address, _| wanted.contains(address));
    }

    fn open(&mut self, address: FrontendAddress, now: Instant) {
        if self.tasks.contains_key(&address) || self.aliases.contains_key(&address) {
            return;
        }
        let latest = Latest::Failing { error: "no answer yet".to_owned(), since: now };
        self.view.frontends.insert(address.clone(), latest);
        let task = tokio::spawn(read_again(self.follower.streams.clone(), address.clone(), self.updates.clone()));
        self.tasks.insert(address, task.abort_handle());
    }

    fn updated(&mut self, address: FrontendAddress, update: Update) {
        // The stream may have been closed meanwhile.
        let Some(latest) = self.view.frontends.get_mut(&address) else { return };
        if !self.tasks.contains_key(&address) {
            return;
        }

        let now = Instant::now();
        match update {
            Update::Levels(message) => {
                let epoch = message.epoch;
                let since = if let Latest::Levels { since, .. } = latest { *since } else { now };
                *latest = Latest::Levels { message: Arc::new(message), since };
                self.end_older_stream(epoch, &address);
            }
            Update::Failed(error) => {
                debug!(frontend = address.uri, error, "the levels of pods are not known");
                if !matches!(latest, Latest::Failing { .. }) {
                    *latest = Latest::Failing { error, since: now };
                } else if let Latest::Failing { error: last, .. } = latest {
                    *last = error;
                }
                // They are asked again.
                self.aliases.retain(|_, serving| *serving != address);
            }
        }
    }

    /// A frontend with two addresses has ended the older one of two streams.
    fn end_older_stream(&mut self, epoch: u64, address: &FrontendAddress) {
        if epoch == 0 {
            return;
        }
        let is_same = |latest: &Latest| matches!(latest, Latest::Levels { message, .. } if message.epoch == epoch);
        let mut others = self.view.frontends.iter().filter(|(other, _)| *other != address);
        let Some((older, _)) = others.find(|(_, latest)| is_same(latest)) else { return };
        let older = older.clone();

        if let Some(task) = self.tasks.remove(&older) {
            task.abort();
        }
        if self.view.own.as_ref() == Some(&older) {
            self.view.own = Some(address.clone());
        }
        self.view.frontends.insert(older.clone(), Latest::Alias);
        self.aliases.insert(older, address.clone());
    }

    fn resolved(&mut self, resolved: &Resolved) {
        let Resolved { began, result } = resolved;
        match result {
            Ok(()) => {
                self.view.resolved = Some(*began);
                self.view.resolve_failure = None;
            }
            Err(error) => {
                let since = self.view.resolve_failure.take().map_or(*began, |(since, _)| since);
                self.view.resolve_failure = Some((since, error.clone()));

                let streams = self.follower.streams.clone();
                let again = async move {
                    sleep(MAX_RETRY_DELAY).await;
                    streams.resolve().await
                };
                self.resolving = Some((Instant::now() + MAX_RETRY_DELAY, again.boxed()));
            }
        }
    }

    /// When the next streams are closed.
    fn next_closing(&self) -> Option<Instant> {
        let now = Instant::now();
        let demand = self.follower.demand.borrow();
        let own = if demand.waiting == 0 { Some(self.last_waiting + LINGER_TIMEOUT) } else { None };
        let mut others = None;
        if demand.asking_all == 0 {
            others = self.last_asking_all.map(|last| last + LINGER_TIMEOUT).filter(|closing| *closing > now);
        }
        own.into_iter().chain(others).min()
    }

    /// Whether no request has waited for [`LINGER_TIMEOUT`]. The next waiter starts another task.
    fn is_over(&self) -> bool {
        let mut is_over = false;
        self.follower.demand.send_if_modified(|demand| {
            is_over = demand.waiting == 0 && self.last_waiting.elapsed() >= LINGER_TIMEOUT;
            demand.is_followed = !is_over;
            if is_over {
                demand.list_since = None;
                self.follower.view.send_replace(View::default());
            }
            false
        });
        is_over
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.tasks.values().for_each(AbortHandle::abort);
    }
}

/// The end of a lookup.
struct Resolved {
    began: Instant,
    result: Result<(), String>,
}

async fn resolved(resolving: &mut Option<(Instant, BoxFuture<'static, Result<()>>)>) -> Resolved {
    let Some((began, lookup)) = resolving else { return std::future::pending().await };
    let began = *began;
    let result = lookup.await.map_err(|error| chain(error.as_ref()));
    *resolving = None;
    Resolved { began, result }
}

/// Reads the stream of a frontend, and opens it again when it has ended.
async fn read_again(
    streams: Arc<dyn DrainStreams>,
    address: FrontendAddress,
    updates: mpsc::Sender<(FrontendAddress, Update)>,
) {
    let mut backoff = Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
    loop {
        let opened = Instant::now();
        let error = match streams.open(&address).await {
            Ok(mut levels) => loop {
                match levels.next().await {
                    Some(Ok(message)) => {
                        // Fails when the task has ended, which aborts this one.
                        let _ = updates.send((address.clone(), Update::Levels(message))).await;
                    }
                    Some(Err(error)) => break error,
                    None => break anyhow!("the frontend ended the stream"),
                }
            },
            Err(error) => error,
        };

        let _ = updates.send((address.clone(), Update::Failed(chain(error.as_ref())))).await;
        if opened.elapsed() > MAX_RETRY_DELAY {
            backoff.reset();
        }
        sleep(backoff.next_delay()).await;
    }
}
