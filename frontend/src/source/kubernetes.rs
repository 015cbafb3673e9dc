//! A Kubernetes API server as a source: each kind is listed and watched separately, its objects parsed as they are
//! decoded.
//!
//! ```text
//!   list: streamed, or in pages ─▶ Replace ──┐
//!                                            ├─▶ updates (bounded: a slow receiver slows the watch down)
//!   watch ─▶ Apply, Delete ──────────────────┘
//!     ├─▶ events and bookmarks ─▶ Freshness
//!     ║ verify: has the server gone back, did the watch miss changes? ─▶ list
//! ```
//!
//! `watcher` has the loop for one kind. A failure never ends it and never removes objects: what was delivered stays
//! until a list has succeeded.

mod advice;
mod api;
mod decode;
mod request;
mod retry;
mod verify;
mod versions;
mod watcher;

use std::{sync::atomic::AtomicBool, time::Duration};

use futures::future;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use runtime::Shutdown;
use tokio::sync::mpsc;

pub use self::api::KubernetesApi;
#[cfg(feature = "testing")]
use self::decode::{EventChange, WatchEvent};
use self::retry::SharedCauses;
use super::Freshness;
use crate::object::SourceUpdate;
#[cfg(feature = "testing")]
use crate::object::{ObjectKind, ParsedObject};

/// How long each step may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// The timeout that the server is asked to end a watch after, in whole seconds. The watch is then resumed.
    watch: Duration,
    /// For a complete page of a list, and for the start of a watch. The API server itself gives a request 60 seconds.
    response: Duration,
    /// For a complete list, streamed or in pages. An API server forgets the version of a list, and with it its next
    /// pages, within ten minutes.
    list: Duration,
    /// For the next complete event of a streaming list.
    initial_event: Duration,
    /// For the next complete event of a watch. Longer than `watch`: the server sends a bookmark before it ends a watch.
    event: Duration,
    /// Without a list, an event or a bookmark for this time, the versions of all objects are compared with the server:
    /// perhaps watches do not work here, or the server no longer delivers changes.
    silence: Duration,
    /// How long after a watch was resumed because it had failed the versions are compared as well.
    after_failure: Duration,
    /// How long events may take after a comparison has shown that they are missing.
    grace: Duration,
    /// The delay after the first failed request. Each one is longer.
    min_retry: Duration,
    /// The longest delay, which only lists have.
    max_retry: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(60),
            response: Duration::from_secs(70),
            list: Duration::from_secs(600),
            initial_event: Duration::from_secs(10),
            event: Duration::from_secs(70),
            silence: Duration::from_secs(150),
            after_failure: Duration::from_secs(10),
            grace: Duration::from_secs(5),
            min_retry: Duration::from_millis(100),
            max_retry: Duration::from_secs(10),
        }
    }
}

/// What the watchers of all kinds share: they use one server.
struct WatchContext {
    api: KubernetesApi,
    deadlines: Deadlines,
    updates: mpsc::Sender<SourceUpdate>,
    freshness: Freshness,
    /// The server does not stream lists (`sendInitialEvents`, Kubernetes 1.32). Never unset, because lists in pages
    /// only cost the server memory.
    no_streaming: AtomicBool,
    causes: SharedCauses,
    /// Why requests beside the watches fail.
    verify_causes: SharedCauses,
}

/// Delivers all objects and their changes until the shutdown, or until the receiver is dropped.
pub(super) async fn run(
    api: KubernetesApi,
    deadlines: Deadlines,
    updates: mpsc::Sender<SourceUpdate>,
    freshness: &Freshness,
    mut shutdown: Shutdown,
) {
    let context = WatchContext {
        api,
        deadlines,
        updates,
        freshness: freshness.clone(),
        no_streaming: AtomicBool::new(false),
        causes: SharedCauses::default(),
        verify_causes: SharedCauses::default(),
    };
    let watchers = future::join4(
        watcher::run::<Node>(&context),
        watcher::run::<Service>(&context),
        watcher::run::<EndpointSlice>(&context),
        watcher::run::<ServiceCIDR>(&context),
    );
    tokio::select! {
        _ = watchers => {}
        () = context.updates.closed() => {}
        () = shutdown.recv() => {}
    }
}

/// Decodes a line of a watch of this kind. `None`: it does not report that an object appeared or changed.
#[cfg(feature = "testing")]
#[must_use]
pub fn decode_event(kind: ObjectKind, line: &[u8]) -> Option<ParsedObject> {
    let event = match kind {
        ObjectKind::Node => WatchEvent::decode::<Node>(line),
        ObjectKind::Service => WatchEvent::decode::<Service>(line),
        ObjectKind::EndpointSlice => WatchEvent::decode::<EndpointSlice>(line),
        ObjectKind::ServiceCidr => WatchEvent::decode::<ServiceCIDR>(line),
    };
    match event.ok()?.change {
        EventChange::Put(object) => Some(object),
        EventChange::Delete(_) | EventChange::Bookmark | EventChange::InitialEventsEnd => None,
    }
}

#[cfg(test)]
mod tests;
