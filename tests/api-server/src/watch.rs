//! Watches, which may begin with a streamed list.

use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::{
    select,
    time::{Instant, sleep_until},
};

use crate::{
    http::{ApiRequest, BodySender, Cut},
    list::expired_status,
    resource::{Collection, Resource, Route},
    selector::Selector,
    server::ApiServer,
    status::Answer,
    store::StoredEvent,
};

/// The duration of a watch without `timeoutSeconds`. A real server takes 30 to 60 minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The interval between bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long before its end a watch gets its last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// The size of a chunk of initial events, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// An accepted watch.
#[derive(Debug)]
pub(crate) struct WatchRequest {
    resource: Resource,
    namespace: Option<String>,
    selector: Selector,
    start: WatchStart,
    bookmarks: bool,
    timeout: Duration,
}

/// What a watch begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStart {
    /// The changes after a version.
    After(u64),
    /// All objects.
    Objects,
    /// All objects, and a bookmark after the last one.
    StreamedList,
}

// === impl WatchRequest ===

impl WatchRequest {
    /// Rejects what a real server rejects.
    pub(crate) fn parse(route: &Route, request: &ApiRequest, streaming: bool) -> Result<Self, Answer> {
        let (version, bookmarks) = (request.parameter("resourceVersion"), request.flag("allowWatchBookmarks"));
        let start = match version.as_str() {
            _ if !request.parameter("sendInitialEvents").is_empty() => {
                let match_ = request.parameter("resourceVersionMatch");
                if !streaming {
                    return Err(invalid(
                        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless \
                                        the WatchList feature gate is enabled",
                    ));
                }
                if match_ != "NotOlderThan" {
                    return Err(invalid(
                        "resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
                                        resourceVersionMatch to NotOlderThan",
                    ));
                }
                if bookmarks { WatchStart::StreamedList } else { WatchStart::Objects }
            }
            "" | "0" => WatchStart::Objects,
            number => match number.parse() {
                Ok(version) => WatchStart::After(version),
                Err(_) => return Err(Answer::error(500, &format!("Invalid value: {number:?}: not a number"))),
            },
        };
        let timeout = request.parameter("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0);
        Ok(Self {
            resource: route.resource,
            namespace: route.namespace.clone(),
            selector: Selector::new(&request.parameter("labelSelector"), &request.parameter("fieldSelector")),
            start,
            bookmarks,
            timeout: timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
        })
    }

    /// Sends events until the end of the watch, or until the client disconnects.
    pub(crate) async fn serve(self, server: ApiServer, mut body: BodySender) {
        // Fails when the client has disconnected.
        if let Some(end) = self.send_all(&server, &mut body).await {
            match end {
                WatchEnd::Orderly => {}
                WatchEnd::Cut => body.abort(Cut),
            }
        }
    }

    async fn send_all(&self, server: &ApiServer, body: &mut BodySender) -> Option<WatchEnd> {
        let mut changed = server.changes();
        let cuts = server.cuts();
        let (now, mut sent) = (Instant::now(), 0);
        let (end, mut bookmark) = (now + self.timeout, now + BOOKMARK_INTERVAL);
        let mut last_bookmark = Some(end - LAST_BOOKMARK).filter(|at| *at > now);
        if let WatchStart::After(version) = self.start {
            sent = version;
        } else if server.faults(self.resource).events {
            sent = self.send_objects(server, body).await?;
        }
        loop {
            changed.borrow_and_update();
            if server.cuts() != cuts {
                return Some(WatchEnd::Cut);
            }
            let faults = server.faults(self.resource);
            if faults.events {
                let Ok((events, version)) = server.events_after(self.collection(), &self.selector, sent) else {
                    send(body, line("ERROR", &expired_status(sent).to_string())).await?;
                    return Some(WatchEnd::Orderly);
                };
                for StoredEvent { event, object } in events {
                    send(body, line(event, &object.typed_text(self.resource))).await?;
                }
                // A version that a restore has taken back is reached again later.
                sent = sent.max(version);
            }
            let next_bookmark = last_bookmark.map_or(bookmark, |last| last.min(bookmark));
            select! {
                biased;
                // The server lives as long as its watches.
                _ = changed.changed() => {}
                () = sleep_until(next_bookmark.min(end)) => {
                    if Instant::now() >= end {
                        return Some(WatchEnd::Orderly);
                    }
                    if last_bookmark == Some(next_bookmark) {
                        last_bookmark = None;
                    }
                    bookmark = Instant::now() + BOOKMARK_INTERVAL;
                    if self.bookmarks && faults.bookmarks && faults.events && server.version() >= sent {
                        send(body, self.bookmark(sent, Value::Null)).await?;
                    }
                }
            }
        }
    }

    fn collection(&self) -> Collection<'_> {
        Collection { resource: self.resource, namespace: self.namespace.as_deref() }
    }

    /// Sends all objects, and returns their version.
    async fn send_objects(&self, server: &ApiServer, body: &mut BodySender) -> Option<u64> {
        let (objects, version) = server.objects(self.collection(), &self.selector);
        let mut chunk = String::new();
        for object in objects {
            chunk.push_str(&line("ADDED", &object.typed_text(self.resource)));
            if chunk.len() > CHUNK_BYTES {
                send(body, std::mem::take(&mut chunk)).await?;
            }
        }
        if self.start == WatchStart::StreamedList {
            chunk.push_str(&self.bookmark(version, json!({"k8s.io/initial-events-end": "true"})));
        }
        if !chunk.is_empty() {
            send(body, chunk).await?;
        }
        Some(version)
    }

    fn bookmark(&self, version: u64, annotations: Value) -> String {
        line("BOOKMARK", &bookmark(self.resource, &version.to_string(), annotations).to_string())
    }
}

/// How a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchEnd {
    Orderly,
    Cut,
}

/// The object of a bookmark.
pub(crate) fn bookmark(resource: Resource, version: &str, annotations: Value) -> Value {
    let mut metadata = json!({"resourceVersion": version, "creationTimestamp": null});
    if !annotations.is_null() {
        metadata["annotations"] = annotations;
    }
    json!({"kind": resource.kind(), "apiVersion": resource.api_version(), "metadata": metadata})
}

/// A line of a watch.
pub(crate) fn line(event: &str, object: &str) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")
}

/// `None` when the client has disconnected.
async fn send(body: &mut BodySender, text: String) -> Option<()> {
    body.send_data(Bytes::from(text)).await.ok()
}

fn invalid(message: &str) -> Answer {
    Answer::error(422, &format!("ListOptions.meta.k8s.io \"\" is invalid: {message}"))
}
