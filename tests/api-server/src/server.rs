//! The server with a store, and what tests do with it.

mod contents;
mod outage;
mod storage;

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hyper::{Request, Response, body::Body as HttpBody};
use serde_json::Value;
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::AbortHandle,
    time::sleep,
};

use crate::{
    faults::{Fault, Faults},
    http::{ApiRequest, Body, respond, stream},
    kubeconfig,
    list::list,
    resource::{Collection, Resource, Route},
    review::{ReviewedUser, Reviewer, SigningKeys},
    selector::Selector,
    status::Answer,
    store::{Compacted, StoredEvent, StoredObject},
    watch::WatchRequest,
};

pub use storage::Backup;
use storage::Storage;

/// A server. Clones share its content; it runs until its runtime ends.
#[derive(Clone, Debug)]
pub struct ApiServer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    storage: Arc<Storage>,
    state: Mutex<ServerState>,
    /// Ends the listeners and all connections.
    serving: Mutex<Vec<AbortHandle>>,
    /// Notified of every change that concerns watches. The number is that of [`ApiServer::cut_watches`].
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct ServerState {
    faults: BTreeMap<Resource, Faults>,
    reviewer: Reviewer,
    signing_keys: SigningKeys,
    requests: BTreeMap<(Resource, RequestKind), u64>,
    reviews: u64,
    sent_bytes: u64,
    /// Receives each request that writes.
    writes: Option<mpsc::UnboundedSender<(String, Value)>>,
}

/// What requests are counted by, besides the kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// The first page of a list, or a list without pages.
    List,
    /// A further page of a list.
    NextPage,
    /// The first page of a list of metadata.
    MetadataList,
    /// A list of at most one object, which is requested for the version.
    Version,
    /// A watch that begins with a list.
    StreamedList,
    /// A watch.
    Watch,
    /// One object.
    Get,
    /// An object that is created, changed or deleted.
    Write,
}

// === impl ApiServer ===

impl ApiServer {
    /// Starts on a free port of the loopback address, on the current runtime.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start() -> io::Result<Self> {
        Self::serve(TcpListener::bind("127.0.0.1:0")?, &Handle::current())
    }

    /// Starts on a listener and a runtime.
    ///
    /// # Errors
    /// When the listener has no address.
    pub fn serve(listener: TcpListener, runtime: &Handle) -> io::Result<Self> {
        let server = Self::with_address(listener.local_addr()?);
        server.listen(listener, runtime)?;
        Ok(server)
    }

    /// A server without a listener, for [`Self::call`].
    #[must_use]
    pub fn in_process() -> Self {
        Self::with_address(SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn with_address(address: SocketAddr) -> Self {
        Self::new(address, Arc::default())
    }

    /// Answers a request without a connection, so that a test can simulate time.
    pub async fn call(&self, request: Request<impl HttpBody>) -> Response<Body> {
        self.clone().answer(ApiRequest::receive(request).await).await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// A kubeconfig for it.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        kubeconfig(self.0.address)
    }

    /// Creates or replaces an object, whose namespace and name are in its metadata. Returns its version.
    #[must_use = "or use `let _`"]
    pub fn put(&self, resource: Resource, object: Value) -> u64 {
        let version = self.store().put(resource, object);
        self.notify_all();
        version
    }

    /// Deletes an object. Whether there was one.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        let deleted = self.store().delete(&(resource, namespace.to_owned(), name.to_owned()));
        self.notify_all();
        deleted.is_some()
    }

    /// The version of the last write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.store().version()
    }

    /// Resets the connections of all watches.
    pub fn cut_watches(&self) {
        self.0.changed.send_modify(|cuts| *cuts += 1);
    }

    /// Changes what fails for a kind.
    pub fn set_faults(&self, resource: Resource, change: impl FnOnce(&mut Faults)) {
        change(self.state().faults.entry(resource).or_default());
        self.notify();
    }

    /// Adds a token that reviews accept.
    pub fn add_token(&self, token: &str, user: ReviewedUser) {
        self.state().reviewer.tokens.insert(token.to_owned(), user);
    }

    /// Signs tokens with a new key from now on, and publishes it beside earlier ones. A server without keys signs none.
    pub fn rotate_signing_key(&self) {
        self.state().signing_keys.rotate();
    }

    /// A token with these claims. Reviews accept it only after [`Self::add_token`].
    ///
    /// # Panics
    /// Before the first [`Self::rotate_signing_key`].
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        self.state().signing_keys.sign(claims)
    }

    /// Changes what fails of requests for the keys.
    pub fn set_signing_keys_fault(&self, fault: Option<Fault>) {
        self.state().signing_keys.fault = fault;
    }

    /// The number of requests for the keys so far.
    #[must_use]
    pub fn signing_keys_requests(&self) -> u64 {
        self.state().signing_keys.requests
    }

    /// Changes what fails of reviews.
    pub fn set_review_fault(&self, fault: Option<Fault>) {
        self.state().reviewer.fault = fault;
    }

    /// Denies a verb on a resource in reviews; everything else is allowed.
    pub fn deny(&self, verb: &str, resource: &str) {
        self.state().reviewer.denied.insert(format!("{verb} {resource}"));
    }

    /// The number of requests so far.
    #[must_use]
    pub fn requests(&self, resource: Resource, kind: RequestKind) -> u64 {
        self.state().requests.get(&(resource, kind)).copied().unwrap_or_default()
    }

    /// Each request from now on that creates, changes or deletes an object, also one that fails: its method and path,
    /// and its body.
    #[must_use]
    pub fn writes(&self) -> mpsc::UnboundedReceiver<(String, Value)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state().writes = Some(sender);
        receiver
    }

    /// The number of reviews so far.
    #[must_use]
    pub fn reviews(&self) -> u64 {
        self.state().reviews
    }

    /// The size of all lists so far, streamed or not, in bytes.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.state().sent_bytes
    }

    /// Waits until a condition holds, which is checked after each request and change.
    pub async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        let mut changed = self.changes();
        while !condition(self) {
            changed.borrow_and_update();
            if condition(self) {
                break;
            }
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }

    fn notify(&self) {
        self.0.changed.send_modify(|_| {});
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For watches.
impl ApiServer {
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    pub(crate) fn cuts(&self) -> u64 {
        *self.0.changed.borrow()
    }

    pub(crate) fn faults(&self, resource: Resource) -> Faults {
        self.state().faults.get(&resource).copied().unwrap_or_default()
    }

    /// The events after a version, and the current version.
    pub(crate) fn events_after(
        &self,
        collection: Collection<'_>,
        selector: &Selector,
        version: u64,
    ) -> Result<(Vec<StoredEvent>, u64), Compacted> {
        let last = self.faults(collection.resource).frozen_at.unwrap_or(u64::MAX);
        let store = self.store();
        let last = last.min(store.version());
        Ok((store.events_between(collection, selector, version, last)?, last))
    }

    /// All selected objects, and their version.
    pub(crate) fn objects(&self, collection: Collection<'_>, selector: &Selector) -> (Vec<Arc<StoredObject>>, u64) {
        let last = self.faults(collection.resource).frozen_at.unwrap_or(u64::MAX);
        let (page, version) = {
            let store = self.store();
            let version = last.min(store.version());
            (store.page(collection, selector, version, None, usize::MAX), version)
        };
        let objects: Vec<_> =
            page.map(|(page, _)| page.into_iter().map(|(_, object)| object).collect()).unwrap_or_default();
        self.state().sent_bytes += objects.iter().map(|object| object.text().len() as u64).sum::<u64>();
        (objects, version)
    }
}

/// Requests.
impl ApiServer {
    async fn answer(self, request: ApiRequest) -> Response<Body> {
        if let Some((answer, fault)) = self.review(&request) {
            return match fail(fault).await {
                Some(failure) => respond(failure),
                None => respond(answer),
            };
        }
        let Some(route) = Route::parse(&request.path) else { return respond(Answer::unknown_path(&request.path)) };
        let kind = RequestKind::of(&request, &route);
        self.record(&request, route.resource, kind);
        self.notify();
        let faults = self.faults(route.resource);
        let fault = match kind {
            RequestKind::Watch | RequestKind::StreamedList => faults.watches,
            RequestKind::Write => faults.writes,
            _ => faults.lists,
        };
        let cuts = self.cuts();
        if let Some(failure) = fail(fault).await {
            return respond(failure);
        }
        if self.cuts() != cuts {
            return respond(Answer::error(503, "the server has restarted"));
        }
        match kind {
            RequestKind::Watch | RequestKind::StreamedList => {
                match WatchRequest::parse(&route, &request, faults.streaming) {
                    Err(answer) => respond(answer),
                    Ok(watch) => {
                        let (sender, response) = stream();
                        tokio::spawn(watch.serve(self, sender));
                        response
                    }
                }
            }
            RequestKind::Get => respond(self.get(&route)),
            RequestKind::Write => respond(self.write(&route, &request)),
            _ => {
                let answer = list(&self.store(), &route, &request, faults.frozen_at);
                if let crate::status::AnswerBody::Json(text) = &answer.body {
                    self.state().sent_bytes += text.len() as u64;
                }
                respond(answer)
            }
        }
    }

    /// The answer to a review or to a request for the keys, and its fault.
    fn review(&self, request: &ApiRequest) -> Option<(Answer, Option<Fault>)> {
        let mut state = self.state();
        match &*request.method {
            "GET" => {
                let answer = state.signing_keys.answer(&request.path)?;
                Some((answer, state.signing_keys.fault))
            }
            "POST" => {
                let answer = state.reviewer.answer(&request.path, &request.body)?;
                state.reviews += 1;
                Some((answer, state.reviewer.fault))
            }
            _ => None,
        }
    }

    fn record(&self, request: &ApiRequest, resource: Resource, kind: RequestKind) {
        let mut state = self.state();
        *state.requests.entry((resource, kind)).or_default() += 1;
        if let (RequestKind::Write, Some(writes)) = (kind, &state.writes) {
            let body = serde_json::from_slice(&request.body).unwrap_or_default();
            // Fails when the test does not receive any more.
            let _ = writes.send((format!("{} {}", request.method, request.path), body));
        }
    }

    fn get(&self, route: &Route) -> Answer {
        let (namespace, name) = (route.namespace.clone().unwrap_or_default(), route.name.clone().unwrap_or_default());
        match self.store().get(&(route.resource, namespace, name)) {
            Some(object) => Answer::json(200, object.typed_text(route.resource)),
            None => not_found(route),
        }
    }

    /// Creates an object (POST), merges into one (PATCH), or deletes it.
    fn write(&self, route: &Route, request: &ApiRequest) -> Answer {
        if request.method == "DELETE" {
            let (namespace, name) =
                (route.namespace.as_deref().unwrap_or_default(), route.name.as_deref().unwrap_or_default());
            return match self.delete(route.resource, namespace, name) {
                true => Answer::json(
                    200,
                    r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#.to_owned(),
                ),
                false => not_found(route),
            };
        }
        let Ok(mut object) = serde_json::from_slice::<Value>(&request.body) else {
            return Answer::error(400, "the body of the request is not JSON");
        };
        if request.method == "POST" {
            let namespace = route.namespace.clone().unwrap_or_default();
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if name.is_empty() {
                return Answer::error(422, "metadata.name: Required value: name or generateName is required");
            }
            let key = (route.resource, namespace, name);
            if self.store().get(&key).is_some() {
                let (resource, group) = (route.resource.plural(), route.resource.group());
                let dot = if group.is_empty() { "" } else { "." };
                return Answer::error(409, &format!("{resource}{dot}{group} {:?} already exists", key.2));
            }
            if !key.1.is_empty() {
                object["metadata"]["namespace"] = key.1.into();
            }
        } else {
            return self.patch(route, &object);
        }
        let key_of = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = (route.resource, key_of("namespace"), key_of("name"));
        let _version = self.put(route.resource, object);
        let stored = self.store().get(&key).expect("an object that was just stored");
        Answer::json(201, stored.typed_text(route.resource))
    }

    /// Merges into an object, unless the patch has the version of another state of it.
    fn patch(&self, route: &Route, patch: &Value) -> Answer {
        let (namespace, name) = (route.namespace.clone().unwrap_or_default(), route.name.clone().unwrap_or_default());
        let key = (route.resource, namespace, name);
        let mut store = self.store();
        let Some(before) = store.get(&key) else { return not_found(route) };
        let mut object: Value = serde_json::from_str(before.text()).expect("a stored object");
        let expected = &patch["metadata"]["resourceVersion"];
        if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
            return Answer::conflict(route.resource.plural(), &key.2);
        }
        merge(&mut object, patch);
        let _version = store.put(route.resource, object);
        let stored = store.get(&key).expect("an object that was just stored");
        drop(store);
        self.notify_all();
        Answer::json(200, stored.typed_text(route.resource))
    }
}

/// The answer to a request with a fault. `None`: after a delay, the correct one.
async fn fail(fault: Option<Fault>) -> Option<Answer> {
    match fault? {
        Fault::Refuse(code) => Some(Answer::error(code, &format!("code {code}"))),
        Fault::Throttle(seconds) => Some(Answer::throttled(seconds)),
        Fault::Delay(delay) => {
            sleep(delay).await;
            None
        }
        Fault::Hang => std::future::pending().await,
    }
}

fn not_found(route: &Route) -> Answer {
    let (resource, group) = (route.resource.plural(), route.resource.group());
    let dot = if group.is_empty() { "" } else { "." };
    let name = route.name.as_deref().unwrap_or_default();
    let mut status = crate::status::status(404, &format!("{resource}{dot}{group} {name:?} not found"));
    status["details"] = serde_json::json!({"name": name, "kind": resource});
    if !group.is_empty() {
        status["details"]["group"] = group.into();
    }
    Answer::json(404, status.to_string())
}

/// A JSON merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let (Some(fields), Some(changes)) = (object.as_object_mut(), patch.as_object()) else {
        *object = patch.clone();
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), change);
        }
    }
}

// === impl RequestKind ===

impl RequestKind {
    fn of(request: &ApiRequest, route: &Route) -> Self {
        if request.method != "GET" {
            Self::Write
        } else if route.name.is_some() {
            Self::Get
        } else if request.flag("watch") && request.flag("sendInitialEvents") {
            Self::StreamedList
        } else if request.flag("watch") {
            Self::Watch
        } else if !request.parameter("continue").is_empty() {
            Self::NextPage
        } else if request.parameter("limit") == "1" {
            Self::Version
        } else if request.metadata_only {
            Self::MetadataList
        } else {
            Self::List
        }
    }
}
