//! The part of a Kubernetes API server that a frontend or kube-proxy uses: lists, in pages or streamed, and watches.
//! Hand-written HTTP/1.1, so that it costs little CPU beside the measured processes.
//!
//! ```text
//!   Objects ──▶ ApiServer ──HTTP──▶ fairlead frontend | fairlead local | kube-proxy
//! ```

mod http;

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::{
    net::TcpStream,
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use self::http::{Request, answer, begin_chunks, chunk, end_chunks};
use crate::{
    lab::{DEADLINE, Lab},
    worker::Worker,
};

/// Objects on a page if the request has no limit.
const PAGE: usize = 500;
/// Duration of a watch if the request has no timeout.
const WATCH: Duration = Duration::from_secs(60);

/// The objects of a cluster as JSON.
pub(crate) trait Objects: Send + 'static {
    /// Up to `limit` objects of a kind, from the `from`-th on. `version` is the version of the cluster.
    fn page(&self, kind: Kind, from: usize, limit: usize, version: u64) -> Vec<String>;

    /// The node with this name.
    fn node(&self, name: &str) -> Option<String>;
}

/// The kinds that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Node,
    Service,
    EndpointSlice,
    ServiceCidr,
}

/// Whether the server supports streaming lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    Streamed,
    /// It rejects them, as servers before Kubernetes 1.32 do.
    Pages,
}

/// The server. Clones share the objects.
#[derive(Debug)]
pub(crate) struct ApiServer<O>(Arc<Shared<O>>);

#[derive(Debug)]
struct Shared<O> {
    lists: Lists,
    state: Mutex<State<O>>,
    /// Notified of every change of `state`.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State<O> {
    objects: O,
    version: u64,
    /// Watches from an older version end with 410 Gone.
    oldest: u64,
    /// Changes of EndpointSlices, with the version that each leads to.
    events: Vec<(u64, Arc<str>)>,
    /// The kinds of which a watch has started since versions expired.
    watched: BTreeSet<Kind>,
    /// Bytes of all objects that were sent.
    sent: u64,
}

// === impl Kind ===

impl Kind {
    const ALL: [Self; 4] = [Self::Node, Self::Service, Self::EndpointSlice, Self::ServiceCidr];

    /// `apiVersion`, `kind`, and the path of its lists.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Node => ("v1", "Node", "/api/v1/nodes"),
            Self::Service => ("v1", "Service", "/api/v1/services"),
            Self::EndpointSlice => ("discovery.k8s.io/v1", "EndpointSlice", "/apis/discovery.k8s.io/v1/endpointslices"),
            Self::ServiceCidr => ("networking.k8s.io/v1", "ServiceCIDR", "/apis/networking.k8s.io/v1/servicecidrs"),
        }
    }

    fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.names().2 == path)
    }

    fn bookmark(self, version: u64, annotations: &serde_json::Value) -> String {
        let (api, kind, _) = self.names();
        let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
        let object = json!({"kind": kind, "apiVersion": api, "metadata": metadata});
        event("BOOKMARK", &object.to_string())
    }
}

// === impl ApiServer ===

impl<O> Clone for ApiServer<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O: Objects> ApiServer<O> {
    /// Listens on the lab's loopback, writes the lab's kubeconfig, and serves as long as the worker runs.
    pub(crate) fn start(lab: &Lab, worker: &Worker, objects: O, lists: Lists) -> Result<Self> {
        let listener = lab.run(|| TcpListener::bind("127.0.0.1:0")).context("bind the API server")?;
        listener.set_nonblocking(true)?;
        fs::write(lab.kubeconfig(), kubeconfig(listener.local_addr()?)).context("write a kubeconfig")?;
        let (events, watched) = Default::default();
        let state = Mutex::new(State { objects, version: 1, oldest: 1, events, watched, sent: 0 });
        let server = Self(Arc::new(Shared { lists, state, changed: watch::Sender::new(()) }));
        worker.handle.spawn(server.clone().serve(listener));
        Ok(server)
    }

    /// Reads or changes the objects.
    pub(crate) fn with<T>(&self, access: impl FnOnce(&mut O) -> T) -> T {
        access(&mut self.state().objects)
    }

    /// Sends an EndpointSlice to all its watches. `slice` is given the version of the change.
    pub(crate) fn announce(&self, slice: impl FnOnce(&O, u64) -> String) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let line = event("MODIFIED", &slice(&state.objects, version)).into();
        state.events.push((version, line));
        drop(state);
        self.0.changed.send_replace(());
    }

    /// Expires all versions, which ends all watches with 410 Gone, and waits until every kind has been relisted and is
    /// watched again.
    pub(crate) async fn expire(&self) -> Result<()> {
        let mut changed = self.0.changed.subscribe();
        self.state().expire();
        self.0.changed.send_replace(());
        let relisted = async {
            while self.state().watched.len() < Kind::ALL.len() {
                changed.changed().await.context("the server has ended")?;
            }
            Ok(())
        };
        timeout(DEADLINE, relisted).await.with_context(|| format!("not every kind was relisted within {DEADLINE:?}"))?
    }

    /// Bytes of all objects that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.state().sent
    }

    async fn serve(self, listener: TcpListener) -> Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await.context("accept")?;
            stream.set_nodelay(true)?;
            // A client that disconnects is not a failure of the server.
            tokio::spawn(self.clone().serve_connection(stream));
        }
    }

    async fn serve_connection(self, mut stream: TcpStream) -> Result<()> {
        while let Some(request) = Request::read(&mut stream).await? {
            if let Some(name) = &request.node {
                let node = self.state().objects.node(name).with_context(|| format!("no node {name}"))?;
                answer(&mut stream, "200 OK", &node).await?;
            } else if !request.has("watch") {
                let list = self.page(&request);
                answer(&mut stream, "200 OK", &list).await?;
            } else if request.has("sendInitialEvents") && self.0.lists == Lists::Pages {
                let status = json!({"kind": "Status", "status": "Failure", "message": "no", "code": 422});
                answer(&mut stream, "422 Unprocessable Entity", &status.to_string()).await?;
            } else {
                self.watch(&mut stream, &request).await?;
            }
        }
        Ok(())
    }

    fn page(&self, request: &Request) -> String {
        let limit = request.number("limit").filter(|limit| *limit > 0).unwrap_or(PAGE);
        let from = request.number("continue").unwrap_or_default();
        let (api, kind, _) = request.kind.names();
        let mut state = self.state();
        let (page, version) = (state.page(request, from, limit), state.version);
        let next = if page.len() == limit { (from + limit).to_string() } else { String::new() };
        let items = page.join(",");
        state.sent += items.len() as u64;
        format!(
            r#"{{"kind":"{kind}List","apiVersion":"{api}","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{items}]}}"#
        )
    }

    async fn watch(&self, stream: &mut TcpStream, request: &Request) -> Result<()> {
        let until = Instant::now() + request.number("timeoutSeconds").map_or(WATCH, Duration::from_secs);
        begin_chunks(stream).await?;
        let mut sent = if request.has("sendInitialEvents") {
            self.initial_events(stream, request).await?
        } else {
            request.number("resourceVersion").context("a watch without a version")?
        };
        let mut changed = self.0.changed.subscribe();
        self.watch_started(request.kind, sent);
        loop {
            changed.borrow_and_update();
            let (lines, version, oldest) = self.state().events_after(request.kind, sent);
            if sent < oldest {
                let status = json!({"kind": "Status", "message": "gone", "code": 410});
                chunk(stream, &event("ERROR", &status.to_string())).await?;
                return end_chunks(stream).await;
            }
            sent = version;
            for line in lines {
                chunk(stream, &line).await?;
            }
            if timeout_at(until, changed.changed()).await.is_err() {
                break;
            }
        }
        chunk(stream, &request.kind.bookmark(sent, &json!({}))).await?;
        end_chunks(stream).await
    }

    /// Sends the streaming list that a watch begins with, and returns its version.
    async fn initial_events(&self, stream: &mut TcpStream, request: &Request) -> Result<u64> {
        let version = self.state().version;
        let mut from = 0;
        loop {
            let page = self.state().page(request, from, PAGE);
            let lines: String = page.iter().map(|object| event("ADDED", object)).collect();
            if !lines.is_empty() {
                self.state().sent += lines.len() as u64;
                chunk(stream, &lines).await?;
            }
            from += page.len();
            if page.len() < PAGE {
                break;
            }
        }
        let end = json!({"k8s.io/initial-events-end": "true"});
        chunk(stream, &request.kind.bookmark(version, &end)).await?;
        Ok(version)
    }

    fn watch_started(&self, kind: Kind, version: u64) {
        let mut state = self.state();
        if version >= state.oldest {
            state.watched.insert(kind);
            self.0.changed.send_replace(());
        }
    }

    fn state(&self) -> MutexGuard<'_, State<O>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl<O: Objects> State<O> {
    fn page(&self, request: &Request, from: usize, limit: usize) -> Vec<String> {
        match request.selected_node() {
            Some(name) => self.objects.node(name).into_iter().skip(from).collect(),
            None => self.objects.page(request.kind, from, limit, self.version),
        }
    }

    fn expire(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.events.clear();
        self.watched.clear();
    }

    /// The events of a kind after a version, the current version, and the oldest one.
    fn events_after(&self, kind: Kind, sent: u64) -> (Vec<Arc<str>>, u64, u64) {
        let first = match kind {
            Kind::EndpointSlice => self.events.partition_point(|(version, _)| *version <= sent),
            Kind::Node | Kind::Service | Kind::ServiceCidr => self.events.len(),
        };
        let lines = self.events[first..].iter().map(|(_, line)| Arc::clone(line)).collect();
        (lines, self.version, self.oldest)
    }
}

/// A line of a watch.
fn event(r#type: &str, object: &str) -> String {
    format!("{{\"type\":\"{type}\",\"object\":{object}}}\n")
}

fn kubeconfig(server: SocketAddr) -> String {
    format!(
        "\
apiVersion: v1
kind: Config
clusters: [{{ name: bench, cluster: {{ server: 'http://{server}' }} }}]
contexts: [{{ name: bench, context: {{ cluster: bench, user: bench }} }}]
users: [{{ name: bench, user: {{}} }}]
current-context: bench
"
    )
}
