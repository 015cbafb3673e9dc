//! The part of a Kubernetes API server that a frontend or kube-proxy uses: lists in pages, and watches. Hand-written
//! HTTP/1.1, so that it costs little CPU beside the measured processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::cluster::{Cluster, SliceId};

/// Limit of a request in bytes. Requests have no body.
const MAX_REQUEST: usize = 16 << 10;
/// How many objects are on a page when the request does not say.
const PAGE: usize = 500;
/// When a watch ends that does not say when.
const WATCH: Duration = Duration::from_secs(60);

/// The cluster behind the API, and its events. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Api(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    cluster: Cluster,
    /// The events of slices: the n-th one leads to version n + 2.
    events: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Service,
    Slice,
    ServiceCidr,
}

#[derive(Debug)]
struct Request {
    kind: Kind,
    /// One node, asked for by its name.
    node: Option<u32>,
    query: HashMap<String, String>,
}

impl Api {
    pub(crate) fn new(cluster: Cluster) -> Self {
        let state = Mutex::new(State { cluster, events: Vec::new() });
        Self(Arc::new(Shared { state, version: watch::Sender::new(1) }))
    }

    /// Reads or changes the cluster.
    pub(crate) fn with<T>(&self, access: impl FnOnce(&mut Cluster) -> T) -> T {
        access(&mut self.state().cluster)
    }

    /// Sends the current state of a slice to all watches.
    pub(crate) fn announce(&self, id: SliceId, trigger: u64) {
        let mut state = self.state();
        let version = state.events.len() as u64 + 2;
        let object = state.cluster.slice_json(id, version, trigger);
        state.events.push(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into());
        drop(state);
        self.0.version.send_replace(version);
    }

    /// Answers for as long as it is polled.
    pub(crate) async fn serve(self, listener: std::net::TcpListener) -> Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await.context("accept")?;
            stream.set_nodelay(true)?;
            // A client that disconnects is not a failure of the server.
            tokio::spawn(self.clone().converse(stream));
        }
    }

    async fn converse(self, mut stream: TcpStream) -> Result<()> {
        while let Some(request) = request(&mut stream).await? {
            if let Some(node) = request.node {
                let body = self.state().cluster.node_json(node);
                answer(&mut stream, &body).await?;
            } else if request.query.contains_key("watch") {
                self.watch(&mut stream, &request).await?;
            } else {
                let body = self.list(&request);
                answer(&mut stream, &body).await?;
            }
        }
        Ok(())
    }

    /// One page.
    fn list(&self, Request { kind, query, .. }: &Request) -> String {
        let number = |name: &str| query.get(name).and_then(|value| value.parse::<usize>().ok());
        let limit = number("limit").filter(|limit| *limit > 0).unwrap_or(PAGE);
        let from = number("continue").unwrap_or_default();
        let (api, kind_name) = kind.api();
        let state = self.state();
        let (page, version) = (state.objects(*kind, only_node(query), from, limit), state.events.len() + 1);
        let next = if page.len() == limit { (from + limit).to_string() } else { String::new() };
        format!(
            r#"{{"kind":"{kind_name}List","apiVersion":"{api}","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{}]}}"#,
            page.join(",")
        )
    }

    async fn watch(&self, stream: &mut TcpStream, Request { kind, query, .. }: &Request) -> Result<()> {
        let number = |name: &str| query.get(name).and_then(|value| value.parse::<u64>().ok());
        let until = Instant::now() + number("timeoutSeconds").map_or(WATCH, Duration::from_secs);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await?;
        let mut sent = if query.contains_key("sendInitialEvents") {
            self.everything(stream, *kind, only_node(query)).await?
        } else {
            usize::try_from(number("resourceVersion").context("a watch without a version")?)?.saturating_sub(1)
        };
        let mut versions = self.0.version.subscribe();
        loop {
            versions.borrow_and_update();
            let lines = match kind {
                Kind::Slice => self.state().events[sent..].to_vec(),
                _ => Vec::new(),
            };
            sent += lines.len();
            for line in lines {
                chunk(stream, &line).await?;
            }
            if timeout_at(until, versions.changed()).await.is_err() {
                break;
            }
        }
        chunk(stream, &kind.bookmark(sent as u64 + 1, "")).await?;
        stream.write_all(b"0\r\n\r\n").await.context("end a watch")
    }

    /// The streaming list that a watch begins with. Gives the number of events that are in it.
    async fn everything(&self, stream: &mut TcpStream, kind: Kind, node: Option<u32>) -> Result<usize> {
        let sent = self.state().events.len();
        let mut from = 0;
        loop {
            let page = self.state().objects(kind, node, from, PAGE);
            let objects = page.iter().map(|object| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n"));
            let lines: String = objects.collect();
            if !lines.is_empty() {
                chunk(stream, &lines).await?;
            }
            from += page.len();
            if page.len() < PAGE {
                break;
            }
        }
        let end = r#","annotations":{"k8s.io/initial-events-end":"true"}"#;
        chunk(stream, &kind.bookmark(sent as u64 + 1, end)).await?;
        Ok(sent)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Some objects of a kind, as they are now. `node`: of all nodes, only this one.
    fn objects(&self, kind: Kind, node: Option<u32>, from: usize, limit: usize) -> Vec<String> {
        let (cluster, version) = (&self.cluster, self.events.len() as u64 + 1);
        match kind {
            Kind::Node if node.is_some() => node.into_iter().skip(from).map(|node| cluster.node_json(node)).collect(),
            Kind::Node => (0..cluster.nodes()).skip(from).take(limit).map(|node| cluster.node_json(node)).collect(),
            Kind::Service => {
                let services = (0..cluster.services()).skip(from).take(limit);
                services.map(|service| cluster.service_json(service)).collect()
            }
            Kind::Slice => {
                let slices = cluster.slices().skip(from).take(limit);
                slices.map(|id| cluster.slice_json(id, version, 1)).collect()
            }
            Kind::ServiceCidr => Vec::new(),
        }
    }
}

impl Kind {
    /// `apiVersion` and `kind`.
    fn api(self) -> (&'static str, &'static str) {
        match self {
            Self::Node => ("v1", "Node"),
            Self::Service => ("v1", "Service"),
            Self::Slice => ("discovery.k8s.io/v1", "EndpointSlice"),
            Self::ServiceCidr => ("networking.k8s.io/v1", "ServiceCIDR"),
        }
    }

    /// A bookmark event.
    fn bookmark(self, version: u64, annotations: &str) -> String {
        let (api, kind) = self.api();
        format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"{kind}\",\"apiVersion\":\"{api}\",\"metadata\":{{\"resourceVersion\":\"{version}\"{annotations}}}}}}}\n"
        )
    }
}

async fn answer(stream: &mut TcpStream, body: &str) -> Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await.context("answer")
}

/// The number of the node that a field selector names.
fn only_node(query: &HashMap<String, String>) -> Option<u32> {
    query.get("fieldSelector")?.strip_prefix("metadata.name%3Dnode-")?.parse().ok()
}

/// A part of an answer whose length is not known beforehand.
async fn chunk(stream: &mut TcpStream, text: &str) -> Result<()> {
    let chunk = format!("{:x}\r\n{text}\r\n", text.len());
    stream.write_all(chunk.as_bytes()).await.context("answer")
}

/// The next request of a connection; `None` when it has ended.
async fn request(stream: &mut TcpStream) -> Result<Option<Request>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if bytes.len() > MAX_REQUEST {
            bail!("a request of more than {MAX_REQUEST} bytes");
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let target = text.split(' ').nth(1).context("a request without a target")?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let node = path.strip_prefix("/api/v1/nodes/node-").and_then(|number| number.parse().ok());
    let kind = match path {
        "/api/v1/nodes" => Kind::Node,
        _ if node.is_some() => Kind::Node,
        "/api/v1/services" => Kind::Service,
        "/apis/discovery.k8s.io/v1/endpointslices" => Kind::Slice,
        "/apis/networking.k8s.io/v1/servicecidrs" => Kind::ServiceCidr,
        other => bail!("this server has nothing at {other}"),
    };
    let query = query.split('&').filter_map(|part| part.split_once('='));
    Ok(Some(Request { kind, node, query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }))
}
