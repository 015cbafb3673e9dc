//! A fake API server over HTTP: each request waits for the test, which responds correctly, partially, with nonsense, or
//! never.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http_body_util::channel::{Channel, Sender};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::object::ObjectKind;

/// Long enough for any machine; nothing waits for it unless it fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The error of a response body that is cut off.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
pub(super) struct Cut;

type Body = Channel<Bytes, Cut>;

/// The server. Requests for one kind do not wait for those for another.
pub(super) struct ApiServer {
    /// Where it listens.
    pub(super) address: std::net::SocketAddr,
    calls: HashMap<ObjectKind, mpsc::UnboundedReceiver<Call>>,
    current: CurrentVersion,
}

/// The immediate response to a list of one object: a version, or an error code.
type CurrentVersion = Arc<Mutex<Result<String, u16>>>;

/// A request without a response so far.
pub(super) struct Call {
    kind: ObjectKind,
    /// The query string, as it was sent.
    pub(super) query: String,
    response: oneshot::Sender<Response<Body>>,
}

/// An open response, mostly of a watch. Dropped, it ends in order.
pub(super) struct Watch(Sender<Bytes, Cut>);

impl ApiServer {
    /// Starts on a free port of the loopback address.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let paths = [
            (ObjectKind::Node, "/api/v1/nodes"),
            (ObjectKind::Service, "/api/v1/services"),
            (ObjectKind::EndpointSlice, "/apis/discovery.k8s.io/v1/endpointslices"),
            (ObjectKind::ServiceCidr, "/apis/networking.k8s.io/v1/servicecidrs"),
        ];
        let (mut senders, mut calls) = (HashMap::new(), HashMap::new());
        for (kind, path) in paths {
            let (sender, receiver) = mpsc::unbounded_channel();
            senders.insert(path, (kind, sender));
            calls.insert(kind, receiver);
        }
        let current = CurrentVersion::new(Mutex::new(Ok(u64::MAX.to_string())));
        tokio::spawn(serve(listener, senders, current.clone()));
        Self { address, calls, current }
    }

    /// Sets the current version, or the error code when it is requested.
    pub(super) fn set_current_version(&self, version: Result<&str, u16>) {
        *self.current.lock().unwrap() = version.map(str::to_owned);
    }

    /// The next request for a kind.
    pub(super) async fn call(&mut self, kind: ObjectKind) -> Call {
        let call = timeout(PATIENCE, self.calls.get_mut(&kind).unwrap().recv()).await;
        call.unwrap_or_else(|_| panic!("no request for {kind}")).unwrap()
    }

    /// Responds to the next request for a kind, which must be a streaming list, and returns the watch that follows.
    pub(super) async fn stream(&mut self, kind: ObjectKind, version: &str, items: &[Value]) -> Watch {
        let mut watch = self.call(kind).await.stream();
        for item in items {
            watch.send("ADDED", item).await;
        }
        watch.initial_events_end(kind, version).await;
        watch
    }

    /// Rejects a streaming list, as a server before Kubernetes 1.32 does.
    pub(super) async fn reject_stream(&mut self, kind: ObjectKind) {
        let call = self.call(kind).await;
        call.assert(&["sendInitialEvents=true"]);
        call.reject(422);
    }

    /// Responds to the next request for a kind, which must be for the first page of a list, with all objects.
    pub(super) async fn list(&mut self, kind: ObjectKind, version: &str, items: &[Value]) {
        let call = self.call(kind).await;
        assert!(!call.query.contains("continue="), "{}", call.query);
        call.list(version, items, None);
    }

    /// Responds to the next request for a kind, which must be a watch from `version`.
    pub(super) async fn watch(&mut self, kind: ObjectKind, version: &str) -> Watch {
        let call = self.call(kind).await;
        call.assert(&["watch=true", &format!("resourceVersion={version}")]);
        call.watch()
    }
}

async fn serve(
    listener: TcpListener,
    calls: HashMap<&'static str, (ObjectKind, mpsc::UnboundedSender<Call>)>,
    current: CurrentVersion,
) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (calls, current) = (calls.clone(), current.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (response, received) = oneshot::channel();
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (kind, calls) = &calls[request.uri().path()];
            let call = Call { kind: *kind, query, response };
            if call.query.split('&').any(|part| part == "limit=1") {
                match &*current.lock().unwrap() {
                    Ok(version) => call.list(version, &[], None),
                    Err(code) => call.reject(*code),
                }
            } else {
                calls.send(call).ok();
            }
            async move {
                match received.await {
                    Ok(response) => Ok::<_, Infallible>(response),
                    // A call that was dropped never gets a response.
                    Err(_) => std::future::pending().await,
                }
            }
        });
        tokio::spawn(async move {
            // Fails with every body that is cut off.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Call {
    /// The query must have all these parameters.
    #[track_caller]
    pub(super) fn assert(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.query.split('&').any(|found| found == *part), "no {part} in {}", self.query);
        }
    }

    #[track_caller]
    pub(super) fn list(self, version: &str, items: &[Value], next_page: Option<&str>) {
        assert!(!self.query.contains("watch="), "{}", self.query);
        let kind = self.kind;
        self.respond(
            200,
            &json!({
                "kind": format!("{kind}List"),
                "apiVersion": api_version(kind),
                "metadata": {"resourceVersion": version, "continue": next_page.unwrap_or_default()},
                "items": items,
            }),
        );
    }

    /// Accepts a watch after a version.
    #[track_caller]
    pub(super) fn watch(self) -> Watch {
        self.assert(&["watch=true", "allowWatchBookmarks=true"]);
        assert!(!self.query.contains("sendInitialEvents="), "{}", self.query);
        self.start()
    }

    /// Accepts a streaming list.
    #[track_caller]
    pub(super) fn stream(self) -> Watch {
        self.assert(&["watch=true", "allowWatchBookmarks=true", "resourceVersion="]);
        self.assert(&["sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"]);
        self.start()
    }

    /// Starts a successful response.
    pub(super) fn start(self) -> Watch {
        let (sender, body) = Channel::new(16);
        self.response.send(Response::new(body)).unwrap();
        Watch(sender)
    }

    pub(super) fn reject(self, code: u16) {
        self.respond(code, &status(code));
    }

    /// Never responds.
    pub(super) fn hang(self) {
        drop(self);
    }

    pub(super) fn respond(self, code: u16, body: &Value) {
        let (mut sender, channel) = Channel::new(1);
        sender.try_send(hyper::body::Frame::data(body.to_string().into())).unwrap();
        let response = Response::builder().status(code).header("content-type", "application/json");
        self.response.send(response.body(channel).unwrap()).unwrap();
    }
}

impl Watch {
    pub(super) async fn send(&mut self, event: &str, object: &Value) {
        let line = json!({"type": event, "object": object}).to_string() + "\n";
        self.0.send_data(line.into()).await.unwrap();
    }

    pub(super) async fn bytes(&mut self, bytes: &str) {
        self.0.send_data(bytes.to_owned().into()).await.unwrap();
    }

    pub(super) async fn bookmark(&mut self, kind: ObjectKind, version: &str) {
        self.mark(kind, json!({"resourceVersion": version, "creationTimestamp": null})).await;
    }

    pub(super) async fn initial_events_end(&mut self, kind: ObjectKind, version: &str) {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        self.mark(kind, json!({"resourceVersion": version, "annotations": annotations})).await;
    }

    async fn mark(&mut self, kind: ObjectKind, metadata: Value) {
        let object = json!({"kind": kind.to_string(), "apiVersion": api_version(kind), "metadata": metadata});
        self.send("BOOKMARK", &object).await;
    }

    pub(super) async fn error(&mut self, code: u16) {
        self.send("ERROR", &status(code)).await;
    }

    /// Ends the response in the middle of an event, after everything before has been read.
    pub(super) async fn cut(mut self) {
        self.bytes("{\"type\": \"ADDED\", \"obj").await;
    }

    /// Resets the connection. What was sent may be lost.
    pub(super) fn break_off(self) {
        self.0.abort(Cut);
    }
}

fn api_version(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Service | ObjectKind::Node => "v1",
        ObjectKind::EndpointSlice => "discovery.k8s.io/v1",
        ObjectKind::ServiceCidr => "networking.k8s.io/v1",
    }
}

fn status(code: u16) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("code {code}"),
        "reason": "Test",
        "code": code,
    })
}
