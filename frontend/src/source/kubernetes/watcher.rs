//! Lists and watches one kind without end, and resumes after any failure of either.
//!
//! ```text
//!            ┌── failed: wait, then the other method ─────┐
//!            ▼                                            │
//!   list, streamed or in pages ───────────────────────────┘
//!            │ Replace
//!            ▼
//!   watch after the last version ◀── ended, cut, timed out: wait if it failed; is the server at this version?
//!            │
//!            └── version expired, versions went back, or not confirmed for too long ──▶ list
//! ```
//!
//! The API server is right, in the order of one watch. Nothing is compared with what was delivered before: duplicates
//! are applied again, and a list replaces everything, even if its version is lower. Only within a watch versions must
//! not go back. All of Kubernetes uses numbers for them; versions that are no numbers are not compared.
//!
//! An API server that was restored from a backup accepts a watch after a version of its future. It is silent until it
//! gets there, and never reports what the restore took back. So its version is requested before a watch is resumed.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::model::SourceVersion;
use runtime::failure::chain;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::Deadlines;
use super::api::KubernetesApi;
use super::decode::{EventChange, Need, WatchEvent, Watchable};
use super::request::{RequestError, Requests, Watch, WatchStart};
use super::retry::{Operation, Retry, SharedCauses};
use crate::object::{ObjectName, ParsedObject, SourceUpdate, VersionProgress};
use crate::source::Freshness;
use crate::source::freshness::{FreshnessRecorder, WatchPhase};

/// The receiver of updates was dropped.
pub(super) struct ReceiverClosed;

/// Why a watch has ended.
enum WatchEnd {
    Failed(RequestError),
    ReceiverClosed,
}

/// What the watchers of all kinds share: they use one server.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    /// The server does not stream lists (`sendInitialEvents`, Kubernetes 1.32). Never unset: all it costs is memory of
    /// the server.
    no_streaming: AtomicBool,
    causes: SharedCauses,
}

/// How to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMethod {
    /// As a watch that starts with all objects.
    Stream,
    /// Page by page.
    Pages,
}

/// Whether all objects of the kind have been delivered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstDelivery {
    Pending,
    Done,
}

/// Lists and watches one kind.
pub(super) struct KindWatcher<'a, K> {
    requests: Requests<K>,
    deadlines: Deadlines,
    shared: &'a SharedState,
    updates: &'a mpsc::Sender<SourceUpdate>,
    recorder: FreshnessRecorder,
    retry: Retry<'a>,
    first_delivery: FirstDelivery,
    /// For the next list.
    method: ListMethod,
}

/// The last version of a list or event, and how to continue from it.
struct WatchPosition<K> {
    version: String,
    next: NextWatch<K>,
}

/// How a kind is watched from a position.
enum NextWatch<K> {
    /// By the open watch that has streamed the list.
    Open(Watch<K>),
    /// By a new watch: the list has just arrived.
    Start,
    /// By a new watch after one that ended.
    Resume,
}

/// The objects of a list so far.
type ListedObjects = BTreeMap<ObjectName, ParsedObject>;

// === impl SharedState ===

impl SharedState {
    fn streams_lists(&self) -> bool {
        !self.no_streaming.load(Ordering::Relaxed)
    }

    fn disable_streaming(&self, error: &RequestError) {
        if !self.no_streaming.swap(true, Ordering::Relaxed) {
            info!(error = chain(error), "the API server does not stream lists, using pages");
        }
    }
}

// === impl KindWatcher ===

impl<'a, K: Watchable> KindWatcher<'a, K> {
    pub(super) fn new(
        api: &KubernetesApi,
        deadlines: Deadlines,
        shared: &'a SharedState,
        updates: &'a mpsc::Sender<SourceUpdate>,
        freshness: &Freshness,
    ) -> Self {
        Self {
            requests: Requests::new(api.clone(), deadlines),
            deadlines,
            shared,
            updates,
            recorder: freshness.recorder(K::KIND),
            retry: Retry::new(K::KIND, deadlines.retry, &shared.causes),
            first_delivery: FirstDelivery::Pending,
            method: ListMethod::Stream,
        }
    }

    /// Lists and watches until the receiver of updates is dropped.
    pub(super) async fn run(mut self) -> ReceiverClosed {
        loop {
            let position = match self.list().await {
                Ok(position) => position,
                Err(closed) => return closed,
            };
            if let Err(closed) = self.watch(position).await {
                return closed;
            }
        }
    }

    /// Delivers how far this kind has come. Versions that are no numbers are not delivered.
    async fn deliver_progress(
        &self,
        version: &str,
        progress: fn(SourceVersion) -> VersionProgress,
    ) -> Result<(), ReceiverClosed> {
        match version.parse() {
            Ok(number) => self.deliver(SourceUpdate::Progress(K::KIND, progress(SourceVersion(number)))).await,
            Err(_) => Ok(()),
        }
    }

    async fn deliver(&self, update: SourceUpdate) -> Result<(), ReceiverClosed> {
        self.updates.send(update).await.map_err(|_| ReceiverClosed)
    }

    async fn wait(&mut self, operation: Operation, error: &RequestError) {
        let advice = self.requests.advice(error);
        self.retry.wait(operation, error, advice, &self.recorder).await;
    }
}

// === Lists ===

impl<K: Watchable> KindWatcher<'_, K> {
    /// Lists until it succeeds.
    async fn list(&mut self) -> Result<WatchPosition<K>, ReceiverClosed> {
        self.recorder.phase(WatchPhase::Listing);
        self.method = ListMethod::Stream;
        loop {
            if !self.shared.streams_lists() {
                self.method = ListMethod::Pages;
            }
            let mut objects = ListedObjects::new();
            let listed = match self.method {
                ListMethod::Stream => self.stream(&mut objects).await,
                ListMethod::Pages => self.pages(&mut objects).await,
            };
            match listed {
                Ok(position) => {
                    debug!(kind = %K::KIND, objects = objects.len(), method = ?self.method, "listed");
                    self.recorder.listed();
                    self.retry.list_succeeded();
                    self.replace(objects).await?;
                    return Ok(position);
                }
                Err(error) => self.list_failed(error).await?,
            }
        }
    }

    /// Decides how and when to list again.
    async fn list_failed(&mut self, error: RequestError) -> Result<(), ReceiverClosed> {
        let method = self.method;
        self.method = match method {
            ListMethod::Stream => ListMethod::Pages,
            ListMethod::Pages => ListMethod::Stream,
        };
        if method == ListMethod::Stream && error.means_no_streaming() {
            self.shared.disable_streaming(&error);
        } else if method == ListMethod::Stream && error.is_not_offered() {
            // Perhaps only the verb `watch` is not allowed.
        } else if K::NEED == Need::Optional && error.is_not_offered() {
            self.continue_without(&error).await?;
            sleep(self.deadlines.watch()).await;
        } else {
            let operation = match self.first_delivery {
                FirstDelivery::Pending => Operation::FirstList,
                FirstDelivery::Done => Operation::List,
            };
            self.wait(operation, &error).await;
        }
        Ok(())
    }

    /// Streams all objects. Those that change meanwhile arrive again, or are deleted again.
    async fn stream(&self, objects: &mut ListedObjects) -> Result<WatchPosition<K>, RequestError> {
        let mut watch = self.requests.watch(WatchStart::Everything).await?;
        loop {
            let event = match watch.next(self.deadlines.initial_event).await {
                Ok(Some(event)) => event,
                // A server that takes this for an ordinary watch is silent.
                Ok(None) | Err(RequestError::TimedOut(_)) => return Err(RequestError::Unfinished),
                Err(error) => return Err(error),
            };
            match event.change {
                EventChange::Put(parsed) => {
                    objects.insert(parsed.name.clone(), parsed);
                }
                EventChange::Delete(name) => {
                    objects.remove(&name);
                }
                EventChange::Bookmark => {}
                EventChange::InitialEventsEnd => {
                    return Ok(WatchPosition { version: event.version, next: NextWatch::Open(watch) });
                }
            }
        }
    }

    /// Requests page after page. A `continue` token that expires meanwhile (410) is an error: the next list starts from
    /// the first page.
    async fn pages(&self, objects: &mut ListedObjects) -> Result<WatchPosition<K>, RequestError> {
        let mut token = None;
        loop {
            let page = self.requests.page(token).await?;
            objects.extend(page.objects.into_iter().map(|parsed| (parsed.name.clone(), parsed)));
            if page.next.is_none() {
                return Ok(WatchPosition { version: page.version, next: NextWatch::Start });
            }
            token = page.next;
        }
    }

    /// The API server does not serve this kind. Objects that were delivered stay; if none were, there are none.
    async fn continue_without(&mut self, error: &RequestError) -> Result<(), ReceiverClosed> {
        self.recorder.phase(WatchPhase::NotOffered);
        let (kind, error_text) = (K::KIND, chain(error));
        match self.first_delivery {
            FirstDelivery::Done => {
                debug!(%kind, error = error_text, "kind still not available");
                Ok(())
            }
            FirstDelivery::Pending => {
                let advice = self.requests.advice(error);
                warn!(%kind, error = error_text, advice, "kind not available, continuing without");
                self.replace(ListedObjects::new()).await
            }
        }
    }

    /// Delivers all objects.
    async fn replace(&mut self, objects: ListedObjects) -> Result<(), ReceiverClosed> {
        self.first_delivery = FirstDelivery::Done;
        self.deliver(SourceUpdate::Replace(K::KIND, objects.into_values().collect())).await
    }
}

// === Watches ===

impl<K: Watchable> KindWatcher<'_, K> {
    /// Watches until a new list is needed.
    async fn watch(&mut self, mut position: WatchPosition<K>) -> Result<(), ReceiverClosed> {
        self.recorder.phase(WatchPhase::Watching);
        self.deliver_progress(&position.version, VersionProgress::Confirmed).await?;
        while self.recorder.age().is_some_and(|age| age < self.deadlines.confirmation) {
            let error = match self.watch_once(&mut position).await {
                Ok(()) => continue,
                Err(WatchEnd::ReceiverClosed) => return Err(ReceiverClosed),
                Err(WatchEnd::Failed(error)) => error,
            };
            self.wait(Operation::Watch, &error).await;
            if error.needs_list() {
                return Ok(());
            }
        }
        let age_ms = self.deadlines.confirmation.as_millis();
        warn!(kind = %K::KIND, age_ms, "no event or bookmark for too long, listing again");
        Ok(())
    }

    /// Watches until the watch ends. `Ok` if the server ended it in order.
    async fn watch_once(&mut self, position: &mut WatchPosition<K>) -> Result<(), WatchEnd> {
        let start = WatchStart::After(&position.version);
        let mut watch = match mem::replace(&mut position.next, NextWatch::Resume) {
            NextWatch::Open(watch) => watch,
            NextWatch::Start => self.requests.watch(start).await?,
            NextWatch::Resume => {
                self.check_server_version(&position.version).await?;
                self.requests.watch(start).await?
            }
        };
        while let Some(WatchEvent { version, change }) = watch.next(self.deadlines.event).await? {
            if goes_back(&position.version, &version) {
                return Err(RequestError::Backwards { last: position.version.clone(), found: version }.into());
            }
            position.version = version;
            self.recorder.confirmed();
            self.retry.watch_succeeded();
            let progress = match change {
                EventChange::Put(parsed) => {
                    self.deliver(SourceUpdate::Apply(parsed)).await?;
                    VersionProgress::Changed
                }
                EventChange::Delete(name) => {
                    self.deliver(SourceUpdate::Delete(K::KIND, name)).await?;
                    VersionProgress::Changed
                }
                EventChange::Bookmark | EventChange::InitialEventsEnd => VersionProgress::Confirmed,
            };
            self.deliver_progress(&position.version, progress).await?;
        }
        match watch.age() {
            age if age < self.deadlines.watch() / 2 => Err(RequestError::EndedEarly(age).into()),
            _ => Ok(()),
        }
    }

    /// Fails if the API server has not reached a version that it has reported before.
    async fn check_server_version(&self, last: &str) -> Result<(), RequestError> {
        let found = match self.requests.version().await {
            Ok(found) => found,
            // Perhaps only the verb `list` is not allowed.
            Err(error) if error.is_not_offered() => return Ok(()),
            Err(error) => return Err(error),
        };
        if goes_back(last, &found) {
            return Err(RequestError::Backwards { last: last.to_owned(), found });
        }
        Ok(())
    }
}

/// Whether a version is lower than the one before. Versions that are no numbers are not compared.
fn goes_back(last: &str, version: &str) -> bool {
    matches!((last.parse::<u64>(), version.parse::<u64>()), (Ok(last), Ok(version)) if version < last)
}

// === impl WatchEnd ===

impl From<RequestError> for WatchEnd {
    fn from(error: RequestError) -> Self {
        Self::Failed(error)
    }
}

impl From<ReceiverClosed> for WatchEnd {
    fn from(ReceiverClosed: ReceiverClosed) -> Self {
        Self::ReceiverClosed
    }
}
