//! Follows one kind for ever: lists, watches, and finds back after anything that may happen to either.
//!
//! ```text
//!            ┌── a failed try: wait, then the other way ──┐
//!            ▼                                            │
//!   list, streamed or in pages ───────────────────────────┘
//!            │ Replace
//!            ▼
//!   watch behind the last version ◀── ended, cut, silent: wait if it failed; is the API where it was?
//!            │
//!            └── version of no use, order broken, API set back, or not confirmed for too long ──▶ list
//! ```
//!
//! EventChange is right is what the API says, in the order of one watch. So nothing is ever compared with what is known: duplicates are
//! applied again, and a list is taken as it is, even if its version is an older one. Only within a watch versions must not go back.
//! They are numbers there, in all of Kubernetes; where they are not, nothing is concluded.
//!
//! An API that comes from a backup accepts a watch behind a version of its future, is silent until it gets there, and then tells what
//! it does from there on; what the backup took back it never tells. So its version is asked for before a watch is taken up again.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use proto::model::SourceVersion;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::Deadlines;
use super::decode::{Event, EventChange, Need, Watchable};
use super::request::{RequestError, Requests, Start, Watch};
use super::retry::Retry;
use crate::object::{ObjectName, ParsedObject, SourceUpdate, VersionProgress};
use crate::source::Freshness;
use crate::source::freshness::{FreshnessRecorder, WatchPhase};

/// Nobody receives updates any more.
pub(super) struct ReceiverClosed;

/// Why a watch has ended.
enum Failure {
    Request(RequestError),
    ReceiverClosed,
}

/// Whether the server streams lists (`sendInitialEvents`, Kubernetes 1.32): supposed until it shows that it does not. One for all
/// kinds.
#[derive(Debug, Default)]
pub(super) struct Streaming {
    /// Never taken back: what it costs is some memory of the server.
    off: AtomicBool,
}

/// How to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMethod {
    /// As a watch that begins with everything.
    Stream,
    /// Page by page.
    Pages,
}

/// Whether the kind has been delivered as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Due,
    Done,
}

/// Follows one kind.
pub(super) struct KindWatcher<'a, K> {
    requests: Requests<K>,
    deadlines: Deadlines,
    streaming: &'a Streaming,
    updates: &'a mpsc::Sender<SourceUpdate>,
    recorder: FreshnessRecorder,
    retry: Retry,
    delivery: Delivery,
    /// How the next list is tried.
    way: ListMethod,
}

/// How far a kind is known.
struct WatchPosition<K> {
    version: String,
    /// How it goes on from here.
    next: Next<K>,
}

/// How a kind is watched behind a position.
enum Next<K> {
    /// By the watch that has streamed the list.
    Ready(Watch<K>),
    /// By a watch, now: the list has just come.
    Begin,
    /// By another watch, after one that ended.
    TakeUp,
}

/// EventChange a list has brought so far.
type ListedObjects = BTreeMap<ObjectName, ParsedObject>;

// === impl Streaming ===

impl Streaming {
    fn is_supposed(&self) -> bool {
        !self.off.load(Ordering::Relaxed)
    }

    fn give_up(&self, error: &RequestError) {
        if !self.off.swap(true, Ordering::Relaxed) {
            info!(%error, "the API does not stream lists: they are fetched in pages");
        }
    }
}

// === impl KindWatcher ===

impl<'a, K: Watchable> KindWatcher<'a, K> {
    pub(super) fn new(
        client: &Client,
        deadlines: Deadlines,
        streaming: &'a Streaming,
        updates: &'a mpsc::Sender<SourceUpdate>,
        freshness: &Freshness,
    ) -> Self {
        Self {
            requests: Requests::new(client.clone(), deadlines),
            deadlines,
            streaming,
            updates,
            recorder: freshness.recorder(K::KIND),
            retry: Retry::new(K::KIND, deadlines.retry),
            delivery: Delivery::Due,
            way: ListMethod::Stream,
        }
    }

    /// Follows until nobody receives.
    pub(super) async fn run(mut self) -> ReceiverClosed {
        loop {
            let position = match self.list().await {
                Ok(position) => position,
                Err(nobody) => return nobody,
            };
            if let Err(nobody) = self.watch(position).await {
                return nobody;
            }
        }
    }

    /// Says how far this kind has been delivered, where the API's versions are numbers.
    async fn seen(&self, version: &str, as_what: fn(SourceVersion) -> VersionProgress) -> Result<(), ReceiverClosed> {
        match version.parse() {
            Ok(number) => self.deliver(SourceUpdate::Progress(K::KIND, as_what(SourceVersion(number)))).await,
            Err(_) => Ok(()),
        }
    }

    async fn deliver(&self, update: SourceUpdate) -> Result<(), ReceiverClosed> {
        self.updates.send(update).await.map_err(|_| ReceiverClosed)
    }
}

// === Lists ===

impl<K: Watchable> KindWatcher<'_, K> {
    /// Lists until it succeeds.
    async fn list(&mut self) -> Result<WatchPosition<K>, ReceiverClosed> {
        self.recorder.phase(WatchPhase::Listing);
        self.way = ListMethod::Stream;
        loop {
            if !self.streaming.is_supposed() {
                self.way = ListMethod::Pages;
            }
            let mut listing = ListedObjects::new();
            let listed = match self.way {
                ListMethod::Stream => self.stream(&mut listing).await,
                ListMethod::Pages => self.pages(&mut listing).await,
            };
            match listed {
                Ok(position) => {
                    debug!(kind = %K::KIND, objects = listing.len(), way = ?self.way, "listed");
                    self.recorder.listed();
                    self.retry.over();
                    self.replace(listing).await?;
                    return Ok(position);
                }
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Decides how the next list is tried, and when.
    async fn failed(&mut self, error: RequestError) -> Result<(), ReceiverClosed> {
        let way = self.way;
        self.way = match way {
            ListMethod::Stream => ListMethod::Pages,
            ListMethod::Pages => ListMethod::Stream,
        };
        if way == ListMethod::Stream && error.is_of_no_streaming() {
            self.streaming.give_up(&error);
        } else if way == ListMethod::Stream && error.is_not_offered() {
            // It may be just watching that we are not allowed.
        } else if K::NEED == Need::Optional && error.is_not_offered() {
            self.do_without(&error).await?;
            sleep(self.deadlines.watch()).await;
        } else {
            self.retry.wait(&error, &self.recorder).await;
        }
        Ok(())
    }

    /// Streams everything. Objects that change meanwhile come once more, or are deleted again.
    async fn stream(&self, listing: &mut ListedObjects) -> Result<WatchPosition<K>, RequestError> {
        let mut watch = self.requests.watch(Start::Everything).await?;
        loop {
            let event = match watch.next(self.deadlines.initial_event).await {
                Ok(Some(event)) => event,
                // The silence of one that takes this for an ordinary watch.
                Ok(None) | Err(RequestError::Silent(_)) => return Err(RequestError::Unfinished),
                Err(error) => return Err(error),
            };
            match event.what {
                EventChange::Put(parsed) => {
                    listing.insert(parsed.name.clone(), parsed);
                }
                EventChange::Gone(name) => {
                    listing.remove(&name);
                }
                EventChange::Bookmark => {}
                EventChange::InitialEnd => {
                    return Ok(WatchPosition { version: event.version, next: Next::Ready(watch) });
                }
            }
        }
    }

    /// Fetches page after page. A token that has expired meanwhile (410) fails like anything else: the next try begins anew.
    async fn pages(&self, listing: &mut ListedObjects) -> Result<WatchPosition<K>, RequestError> {
        let mut token = None;
        loop {
            let page = self.requests.page(token).await?;
            listing.extend(page.objects.into_iter().map(|parsed| (parsed.name.clone(), parsed)));
            if page.next.is_none() {
                return Ok(WatchPosition { version: page.version, next: Next::Begin });
            }
            token = page.next;
        }
    }

    /// The API does not offer this kind. EventChange is known of it stays; if that is nothing, there is nothing.
    async fn do_without(&mut self, error: &RequestError) -> Result<(), ReceiverClosed> {
        self.recorder.phase(WatchPhase::NotOffered);
        match self.delivery {
            Delivery::Done => {
                debug!(kind = %K::KIND, %error, "the API does not offer this kind");
                Ok(())
            }
            Delivery::Due => {
                warn!(kind = %K::KIND, %error, "the API does not offer this kind: doing without");
                self.replace(ListedObjects::new()).await
            }
        }
    }

    /// Delivers everything there is.
    async fn replace(&mut self, listing: ListedObjects) -> Result<(), ReceiverClosed> {
        self.delivery = Delivery::Done;
        self.deliver(SourceUpdate::Replace(K::KIND, listing.into_values().collect())).await
    }
}

// === Watches ===

impl<K: Watchable> KindWatcher<'_, K> {
    /// Watches until everything must be listed anew.
    async fn watch(&mut self, mut position: WatchPosition<K>) -> Result<(), ReceiverClosed> {
        self.recorder.phase(WatchPhase::Watching);
        self.seen(&position.version, VersionProgress::Confirmed).await?;
        while self.recorder.age().is_some_and(|age| age < self.deadlines.confirmation) {
            let error = match self.watch_on(&mut position).await {
                Ok(()) => continue,
                Err(Failure::ReceiverClosed) => return Err(ReceiverClosed),
                Err(Failure::Request(error)) => error,
            };
            self.retry.wait(&error, &self.recorder).await;
            if error.needs_list() {
                return Ok(());
            }
        }
        warn!(kind = %K::KIND, deadline = ?self.deadlines.confirmation, "nothing was confirmed for too long, listing anew");
        Ok(())
    }

    /// Watches until the watch ends; in order, if nothing is wrong.
    async fn watch_on(&mut self, position: &mut WatchPosition<K>) -> Result<(), Failure> {
        let begin = Start::Behind(&position.version);
        let mut watch = match mem::replace(&mut position.next, Next::TakeUp) {
            Next::Ready(watch) => watch,
            Next::Begin => self.requests.watch(begin).await?,
            Next::TakeUp => {
                self.reaches(&position.version).await?;
                self.requests.watch(begin).await?
            }
        };
        while let Some(Event { version, what }) = watch.next(self.deadlines.event).await? {
            if goes_back(&position.version, &version) {
                return Err(RequestError::Backwards { last: position.version.clone(), found: version }.into());
            }
            position.version = version;
            self.recorder.confirmed();
            self.retry.over();
            let as_what = match what {
                EventChange::Put(parsed) => {
                    self.deliver(SourceUpdate::Apply(parsed)).await?;
                    VersionProgress::Changed
                }
                EventChange::Gone(name) => {
                    self.deliver(SourceUpdate::Delete(K::KIND, name)).await?;
                    VersionProgress::Changed
                }
                EventChange::Bookmark | EventChange::InitialEnd => VersionProgress::Confirmed,
            };
            self.seen(&position.version, as_what).await?;
        }
        match watch.age() {
            age if age < self.deadlines.watch() / 2 => Err(RequestError::EndedEarly(age).into()),
            _ => Ok(()),
        }
    }
}

impl<K: Watchable> KindWatcher<'_, K> {
    /// Fails if the API has not got to a version that it has told before.
    async fn reaches(&self, last: &str) -> Result<(), RequestError> {
        let found = match self.requests.version().await {
            Ok(found) => found,
            // It may be just listing that we are not allowed.
            Err(error) if error.is_not_offered() => return Ok(()),
            Err(error) => return Err(error),
        };
        if goes_back(last, &found) {
            return Err(RequestError::Backwards { last: last.to_owned(), found });
        }
        Ok(())
    }
}

/// Whether a version is older than the one before it, as far as that can be told.
fn goes_back(last: &str, version: &str) -> bool {
    matches!((last.parse::<u64>(), version.parse::<u64>()), (Ok(last), Ok(version)) if version < last)
}

// === impl Failure ===

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<ReceiverClosed> for Failure {
    fn from(ReceiverClosed: ReceiverClosed) -> Self {
        Self::ReceiverClosed
    }
}
