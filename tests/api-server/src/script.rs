//! A server whose answers are written by the test: each request waits until the test answers it, correctly, partially,
//! with nonsense, or never.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};

use hyper::{Response, body::Bytes};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    http::{ApiRequest, Body, BodySender, Cut, respond, serve, stream},
    resource::{Resource, Route},
    status::{Answer, status},
    watch::{bookmark, line},
};

/// Long enough for any machine. A test waits for so long only if it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The server. Requests for one kind do not wait for those for another.
#[derive(Debug)]
pub struct ScriptedApiServer {
    address: SocketAddr,
    calls: HashMap<Resource, mpsc::UnboundedReceiver<Call>>,
    current: CurrentVersion,
}

/// The immediate answer to a list of one object: a version, or an error code.
type CurrentVersion = Arc<Mutex<Result<String, u16>>>;

/// A request without a response so far.
#[derive(Debug)]
pub struct Call {
    resource: Resource,
    /// The query string, as it was sent.
    pub query: String,
    /// Whether only the metadata of objects is requested.
    pub metadata_only: bool,
    response: oneshot::Sender<Response<Body>>,
}

/// An open response, mostly of a watch. Dropped, it ends in order.
#[derive(Debug)]
pub struct OpenWatch(BodySender);

// === impl ScriptedApiServer ===

impl ScriptedApiServer {
    /// Starts on a free port of the loopback address, on the current runtime.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (mut senders, mut calls) = (HashMap::new(), HashMap::new());
        for resource in Resource::ALL {
            let (sender, receiver) = mpsc::unbounded_channel();
            senders.insert(resource, sender);
            calls.insert(resource, receiver);
        }
        let current = CurrentVersion::new(Mutex::new(Ok(u64::MAX.to_string())));
        let (senders, version) = (Arc::new(senders), current.clone());
        serve(listener, &Handle::current(), move |request| answer(request, senders.clone(), version.clone())).unwrap();
        Self { address, calls, current }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the current version, or the error code when it is requested.
    pub fn set_current_version(&self, version: Result<&str, u16>) {
        *self.current.lock().unwrap() = version.map(str::to_owned);
    }

    /// The next request for a kind.
    pub async fn call(&mut self, resource: impl Into<Resource>) -> Call {
        let resource = resource.into();
        let call = timeout(PATIENCE, self.calls.get_mut(&resource).unwrap().recv()).await;
        call.unwrap_or_else(|_| panic!("no request for {resource}")).unwrap()
    }

    /// Answers the next request for a kind, which must be a streaming list, and returns the watch that follows.
    pub async fn stream(&mut self, resource: impl Into<Resource>, version: &str, items: &[Value]) -> OpenWatch {
        let resource = resource.into();
        let mut watch = self.call(resource).await.stream();
        for item in items {
            watch.send("ADDED", item).await;
        }
        watch.initial_events_end(resource, version).await;
        watch
    }

    /// Rejects a streaming list, as a server before Kubernetes 1.32 does.
    pub async fn reject_stream(&mut self, resource: impl Into<Resource>) {
        let call = self.call(resource).await;
        call.assert(&["sendInitialEvents=true"]);
        call.reject(422);
    }

    /// Answers the next request for a kind, which must be for the first page of a list, with all objects.
    pub async fn list(&mut self, resource: impl Into<Resource>, version: &str, items: &[Value]) {
        let call = self.call(resource).await;
        assert!(!call.query.contains("continue="), "{}", call.query);
        call.list(version, items, None);
    }

    /// Answers the next request for a kind, which must be a watch from `version`.
    pub async fn watch(&mut self, resource: impl Into<Resource>, version: &str) -> OpenWatch {
        let call = self.call(resource).await;
        call.assert(&["watch=true", &format!("resourceVersion={version}")]);
        call.watch()
    }
}

async fn answer(
    request: ApiRequest,
    calls: Arc<HashMap<Resource, mpsc::UnboundedSender<Call>>>,
    current: CurrentVersion,
) -> Response<Body> {
    let Some(Route { resource, .. }) = Route::parse(&request.path) else {
        return respond(Answer::unknown_path(&request.path));
    };
    let (response, received) = oneshot::channel();
    let ApiRequest { query, metadata_only, .. } = request;
    let call = Call { resource, query, metadata_only, response };
    if call.query.split('&').any(|part| part == "limit=1") {
        match &*current.lock().unwrap() {
            Ok(version) => call.list(version, &[], None),
            Err(code) => call.reject(*code),
        }
    } else {
        calls[&resource].send(call).ok();
    }
    match received.await {
        Ok(response) => response,
        // A call that was dropped never gets a response.
        Err(_) => std::future::pending().await,
    }
}

// === impl Call ===

impl Call {
    /// The query must have all these parameters.
    #[track_caller]
    pub fn assert(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.query.split('&').any(|found| found == *part), "no {part} in {}", self.query);
        }
    }

    /// Answers with a list of objects, or of their metadata.
    #[track_caller]
    pub fn list(self, version: &str, items: &[Value], next_page: Option<&str>) {
        assert!(!self.query.contains("watch="), "{}", self.query);
        let (kind, api_version) = match self.metadata_only {
            true => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            false => (self.resource.kind(), self.resource.api_version()),
        };
        let list = json!({
            "kind": format!("{kind}List"),
            "apiVersion": api_version,
            "metadata": {"resourceVersion": version, "continue": next_page.unwrap_or_default()},
            "items": items,
        });
        self.respond(200, &list);
    }

    /// Accepts a watch after a version.
    #[track_caller]
    pub fn watch(self) -> OpenWatch {
        self.assert(&["watch=true", "allowWatchBookmarks=true"]);
        assert!(!self.query.contains("sendInitialEvents="), "{}", self.query);
        self.start()
    }

    /// Accepts a streaming list.
    #[track_caller]
    pub fn stream(self) -> OpenWatch {
        self.assert(&["watch=true", "allowWatchBookmarks=true", "resourceVersion="]);
        self.assert(&["sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"]);
        self.start()
    }

    /// Starts a successful response.
    pub fn start(self) -> OpenWatch {
        let (sender, response) = stream();
        self.response.send(response).unwrap();
        OpenWatch(sender)
    }

    /// Answers with a `Status`.
    pub fn reject(self, code: u16) {
        self.respond(code, &failure(code));
    }

    /// Never answers.
    pub fn hang(self) {
        drop(self);
    }

    /// Answers with any JSON.
    pub fn respond(self, code: u16, body: &Value) {
        self.response.send(respond(Answer::json(code, body.to_string()))).unwrap();
    }
}

// === impl OpenWatch ===

impl OpenWatch {
    /// Sends an event.
    pub async fn send(&mut self, event: &str, object: &Value) {
        self.bytes(&line(event, &object.to_string())).await;
    }

    /// Sends anything.
    pub async fn bytes(&mut self, bytes: &str) {
        self.0.send_data(Bytes::from(bytes.to_owned())).await.unwrap();
    }

    /// Sends a bookmark.
    pub async fn bookmark(&mut self, resource: impl Into<Resource>, version: &str) {
        self.send("BOOKMARK", &bookmark(resource.into(), version, Value::Null)).await;
    }

    /// Sends the bookmark that ends the list of a streaming list.
    pub async fn initial_events_end(&mut self, resource: impl Into<Resource>, version: &str) {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        self.send("BOOKMARK", &bookmark(resource.into(), version, annotations)).await;
    }

    /// Sends an error event.
    pub async fn error(&mut self, code: u16) {
        self.send("ERROR", &failure(code)).await;
    }

    /// Ends the response in the middle of an event, after everything before has been read.
    pub async fn cut(mut self) {
        self.bytes("{\"type\": \"ADDED\", \"obj").await;
    }

    /// Resets the connection. What was sent may be lost.
    pub fn break_off(self) {
        self.0.abort(Cut);
    }
}

fn failure(code: u16) -> Value {
    status(code, &format!("code {code}"))
}
