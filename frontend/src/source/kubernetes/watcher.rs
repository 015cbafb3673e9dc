//! Lists and watches one kind without end, and resumes after any failure of either.
//!
//! ```text
//!            ┌── failed: wait, then the other method ─────┐
//!            ▼                                            │
//!   list, streamed or in pages ───────────────────────────┘
//!            │ Replace
//!            ▼
//!   watch after the last version ◀── ended, cut, timed out: wait if it failed
//!            │             ║ beside it: verify.rs
//!            └── version expired, versions went back, or changes were missed ──▶ list, the first time at once
//! ```
//!
//! The API server is authoritative. Nothing is compared with what was delivered before: duplicates are applied again,
//! and a list replaces everything, even if its version is lower. Only within a watch, versions must not decrease. All
//! of Kubernetes uses numbers for them; versions that are no numbers are not compared.

use std::{collections::BTreeMap, future, sync::atomic::Ordering};

use proto::{model::SourceVersion, v1::WatchPhase};
use runtime::failure::chain;
use tokio::{select, time::sleep};
use tracing::{debug, info, warn};

use super::{
    WatchContext,
    decode::{EventChange, WatchEvent, Watchable},
    request::{PAGE_OBJECTS, RequestError, Requests, Watch, with_deadline},
    retry::{Operation, Retry},
    verify::{Verifier, Watched},
    versions::{ObjectVersions, check_order},
};
use crate::object::{ObjectName, ParsedObject, SourceUpdate, VersionProgress};

struct KindWatcher<'a, K> {
    context: &'a WatchContext,
    requests: &'a Requests<K>,
    watched: &'a Watched,
    retry: Retry<'a>,
    /// Whether all objects have been delivered once.
    delivered: bool,
}

/// From where a kind is watched.
struct WatchPosition {
    /// The last version of a list or event.
    version: String,
    /// The watch that has streamed the list; `None`: a new one is needed.
    open: Option<Watch>,
}

/// The objects of a list so far, each with its version.
type ListedObjects = BTreeMap<ObjectName, (ParsedObject, String)>;

/// Lists and watches a kind without end.
pub(super) async fn run<K: Watchable>(context: &WatchContext) {
    let WatchContext { api, deadlines, causes, verify_causes, .. } = context;
    let requests = &Requests::<K>::new(api.clone(), *deadlines);
    let watched = &Watched::default();
    let retry = Retry::new(K::KIND, deadlines, causes);
    let mut watcher = KindWatcher { context, requests, watched, retry, delivered: false };
    let retry = Retry::new(K::KIND, deadlines, verify_causes);
    let mut verifier = Verifier { context, requests, watched, retry, compared: None };
    loop {
        let position = watcher.list().await;
        let error = select! {
            error = watcher.watch(position) => error,
            error = verifier.run() => error,
        };
        watcher.wait(Operation::ExpiredWatch, &error).await;
    }
}

impl<K: Watchable> KindWatcher<'_, K> {
    /// Delivers how far this kind has come. Versions that are no numbers are not delivered.
    async fn deliver_progress(&self, version: &str, progress: fn(SourceVersion) -> VersionProgress) {
        if let Ok(number) = version.parse() {
            self.deliver(SourceUpdate::Progress(K::KIND, progress(SourceVersion(number)))).await;
        }
    }

    /// Waits for space in the channel. If the receiver was dropped, waits for [`super::run`] to stop all watchers.
    async fn deliver(&self, update: SourceUpdate) {
        if self.context.updates.send(update).await.is_err() {
            future::pending().await
        }
    }

    async fn wait(&mut self, operation: Operation, error: &RequestError) {
        self.retry.wait(operation, error, &self.context.freshness, self.requests.advice(error)).await;
    }
}

// === Lists ===

impl<K: Watchable> KindWatcher<'_, K> {
    /// Lists until it succeeds, streamed and in pages by turns.
    async fn list(&mut self) -> WatchPosition {
        self.context.freshness.phase(K::KIND, WatchPhase::Listing);
        let mut streamed = true;
        loop {
            streamed &= !self.context.no_streaming.load(Ordering::Relaxed);
            let list = async { if streamed { self.stream().await } else { self.pages().await } };
            match with_deadline("list", self.context.deadlines.list, list).await {
                Ok((objects, position)) => {
                    debug!(kind = %K::KIND, objects = objects.len(), streamed, "listed");
                    self.context.freshness.listed(K::KIND);
                    self.retry.list_succeeded();
                    self.replace(objects).await;
                    return position;
                }
                Err(error) => self.list_failed(streamed, &error).await,
            }
            streamed = !streamed;
        }
    }

    /// Waits before the next list, unless another method may succeed at once.
    async fn list_failed(&mut self, streamed: bool, error: &RequestError) {
        if streamed && error.means_no_streaming() {
            if !self.context.no_streaming.swap(true, Ordering::Relaxed) {
                info!(error = chain(error), "the API server does not stream lists, using pages");
            }
        } else if streamed && error.is_not_offered() {
            // Perhaps only the verb `watch` is not allowed.
        } else if K::OPTIONAL && error.is_not_offered() {
            self.continue_without(error).await;
            sleep(self.context.deadlines.watch).await;
        } else {
            self.wait(if self.delivered { Operation::List } else { Operation::FirstList }, error).await;
        }
    }

    /// Streams all objects. Objects that change meanwhile arrive again, or are deleted again.
    async fn stream(&self) -> Result<(ListedObjects, WatchPosition), RequestError> {
        let mut objects = ListedObjects::default();
        let mut watch = self.requests.watch(None).await?;
        loop {
            let event = match watch.next::<K>(self.context.deadlines.initial_event).await {
                Ok(Some(event)) => event,
                // A server that takes this request for an ordinary watch is silent.
                Ok(None) | Err(RequestError::TimedOut(..)) => return Err(RequestError::Unfinished),
                Err(error) => return Err(error),
            };
            match event.change {
                EventChange::Put(parsed) => drop(objects.insert(parsed.name.clone(), (parsed, event.version))),
                EventChange::Delete(name) => drop(objects.remove(&name)),
                EventChange::Bookmark => {}
                EventChange::InitialEventsEnd => {
                    return Ok((objects, WatchPosition { version: event.version, open: Some(watch) }));
                }
            }
        }
    }

    /// Requests page after page. A `continue` token that expires meanwhile (410) is an error: the next list starts from
    /// the first page.
    async fn pages(&self) -> Result<(ListedObjects, WatchPosition), RequestError> {
        let mut objects = ListedObjects::default();
        let mut token = None;
        let mut limit = PAGE_OBJECTS;
        loop {
            let page = self.requests.page(&mut limit, token).await?;
            objects.extend(page.objects.into_iter().map(|listed| (listed.0.name.clone(), listed)));
            if page.next.is_none() {
                return Ok((objects, WatchPosition { version: page.version, open: None }));
            }
            token = page.next;
        }
    }

    /// The API server does not serve this kind. Objects that were delivered stay; if none were, there are none.
    async fn continue_without(&mut self, error: &RequestError) {
        self.context.freshness.phase(K::KIND, WatchPhase::NotOffered);
        let (kind, cause) = (K::KIND, chain(error));
        if self.delivered {
            debug!(%kind, error = cause, "kind still not available");
        } else {
            warn!(%kind, error = cause, advice = self.requests.advice(error), "kind not available, continuing without");
            self.replace(ListedObjects::default()).await;
        }
    }

    /// Delivers all objects, and the version of the newest one.
    async fn replace(&mut self, listed: ListedObjects) {
        self.delivered = true;
        let mut versions = ObjectVersions::default();
        let mut objects = Vec::with_capacity(listed.len());
        let mut newest = None;
        for (name, (parsed, version)) in listed {
            versions.set(&name, &version);
            objects.push(parsed);
            newest = newest.max(version.parse::<u64>().ok());
        }

        self.watched.replaced(versions);
        self.deliver(SourceUpdate::Replace(K::KIND, objects)).await;
        if let Some(newest) = newest {
            let progress = VersionProgress::Changed(SourceVersion(newest));
            self.deliver(SourceUpdate::Progress(K::KIND, progress)).await;
        }
    }
}

// === Watches ===

impl<K: Watchable> KindWatcher<'_, K> {
    /// Watches until a new list is needed, and returns why.
    async fn watch(&mut self, mut position: WatchPosition) -> RequestError {
        self.context.freshness.phase(K::KIND, WatchPhase::Watching);
        self.deliver_progress(&position.version, VersionProgress::Confirmed).await;
        let mut after_failure = false;
        loop {
            match self.watch_once(&mut position, after_failure).await {
                Ok(()) => after_failure = false,
                Err(error) if error.needs_list() => return error,
                Err(error) => {
                    after_failure = true;
                    self.wait(Operation::Watch, &error).await;
                }
            }
        }
    }

    /// Watches until the watch ends. `Ok` if the server ended it in order.
    async fn watch_once(&mut self, position: &mut WatchPosition, after_failure: bool) -> Result<(), RequestError> {
        let mut watch = match position.open.take() {
            Some(watch) => watch,
            None => {
                let watch = self.requests.watch(Some(&position.version)).await?;
                self.watched.resumed(&position.version, after_failure);
                watch
            }
        };

        while let Some(WatchEvent { version, change }) = watch.next::<K>(self.context.deadlines.event).await? {
            check_order(&position.version, &version)?;
            position.version = version;
            self.context.freshness.confirmed(K::KIND);
            self.retry.succeeded();

            let progress = match change {
                EventChange::Put(parsed) => {
                    self.watched.event(|objects| objects.set(&parsed.name, &position.version));
                    self.deliver(SourceUpdate::Apply(parsed)).await;
                    VersionProgress::Changed
                }
                EventChange::Delete(name) => {
                    self.watched.event(|objects| objects.remove(&name));
                    self.deliver(SourceUpdate::Delete(K::KIND, name)).await;
                    VersionProgress::Changed
                }
                EventChange::Bookmark | EventChange::InitialEventsEnd => VersionProgress::Confirmed,
            };
            self.deliver_progress(&position.version, progress).await;
        }

        let age = watch.started.elapsed();
        if age < self.context.deadlines.watch / 2 {
            return Err(RequestError::EndedEarly(age));
        }
        Ok(())
    }
}
