//! The open streams with the status of each, and the nodes of the cluster that should have one. `Status`, the status
//! page and metrics read it.
//!
//! ```text
//!   session ──StreamGuard──▶ Streams ◀──update_nodes── engine: the nodes of the cluster
//!                              │  └──▶ Fleet: every node, also those without a backend
//!                              └─────▶ wait_programmed: waits until a revision is programmed on all nodes
//! ```
//!
//! A node has two backend streams when its old connection is dead and has not timed out yet. The newest one represents
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use proto::model::{Hello, Revision, Role, ServicePortFailure, SyncMode};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use crate::index::NodeChanges;

/// The minimum time between two checks of [`Streams::wait_programmed`] and [`Streams::wait_closed`]: the first reads
/// all nodes, and thousands of nodes send thousands of Acks.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How many nodes a log line or the problems list.
pub(crate) const MAX_LISTED: usize = 32;

/// How many characters are kept of the backend name and version that a client sends.
const MAX_LABEL_CHARS: usize = 64;

/// The status of one stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamStatus {
    /// The node whose state is streamed.
    pub(crate) node: Arc<str>,
    /// The role of the client.
    pub(crate) role: Role,
    /// The name of the client's backend.
    pub(crate) backend: String,
    /// Its version.
    pub(crate) backend_version: String,
    /// When the client's process started, if it sent that.
    pub(crate) started: Option<SystemTime>,
    /// When the stream was opened.
    pub(crate) connected: SystemTime,
    /// How the stream started.
    pub(crate) mode: SyncMode,
    /// The last revision that the client has acknowledged.
    pub(crate) acked: Revision,
    /// The revision that is programmed on the node: nothing that concerns the node is missing up to it. 0 when unknown.
    pub(crate) programmed: Revision,
    /// Since when the client has had something to acknowledge; `None` when it has acknowledged everything.
    pub(crate) pending_since: Option<Instant>,
    /// How long the client took to apply what it acknowledged last.
    pub(crate) apply_time: Duration,
    /// How often the digest of the client was wrong.
    pub(crate) repairs: u64,
    /// What the client could not program.
    pub(crate) failures: Vec<ServicePortFailure>,
    /// What does not work on the node.
    pub(crate) degraded: Vec<String>,
}

/// All streams. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<SharedFleet>);

#[derive(Debug, Default)]
struct SharedFleet {
    fleet: Mutex<Fleet>,
    /// Wakes [`Streams::wait_programmed`] and [`Streams::wait_closed`].
    changed: Notify,
}

/// The nodes of the cluster and their streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    next_id: u64,
    streams: BTreeMap<u64, StreamStatus>,
    /// The backend streams of each node. The newest one, which has the highest id, represents the node.
    backends: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The nodes of the cluster. For those without a backend: since when.
    pub(crate) nodes: BTreeMap<Arc<str>, Instant>,
    /// Whether the cluster has, or has had, Node objects. A directory of manifests may have none.
    has_nodes: bool,
    /// Why the frontend ended the last stream of a node, until a later stream succeeds. Nearly always empty, so that an
    /// Ack costs nothing here.
    errors: BTreeMap<Arc<str>, String>,
}

/// Removes the stream when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    streams: Streams,
    id: u64,
}

// === impl StreamStatus ===

impl StreamStatus {
    /// For how long the client has had something to acknowledge.
    pub(crate) fn lag(&self) -> Duration {
        self.pending_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

// === impl Streams ===

impl Streams {
    /// Adds a stream.
    pub(crate) fn register(&self, hello: &Hello, mode: SyncMode) -> StreamGuard {
        let status = StreamStatus {
            node: hello.node.clone(),
            role: hello.role,
            backend: hello.backend.chars().take(MAX_LABEL_CHARS).collect(),
            backend_version: hello.backend_version.chars().take(MAX_LABEL_CHARS).collect(),
            started: hello.started,
            connected: SystemTime::now(),
            mode,
            acked: Revision(0),
            programmed: Revision(0),
            pending_since: Some(Instant::now()),
            apply_time: Duration::ZERO,
            repairs: 0,
            failures: Vec::new(),
            degraded: Vec::new(),
        };
        let id = self.with(|fleet| {
            fleet.next_id += 1;
            let id = fleet.next_id;
            if status.role == Role::Backend {
                fleet.backends.entry(status.node.clone()).or_default().insert(id);
            }
            fleet.streams.insert(id, status);
            id
        });
        StreamGuard { streams: self.clone(), id }
    }

    /// Records that nodes were added to or removed from the cluster.
    pub(crate) fn update_nodes(&self, changes: &NodeChanges) {
        if changes.is_empty() {
            return;
        }
        let (mut lost, mut returned) = (Vec::new(), Vec::new());
        self.with(|fleet| {
            for (name, node) in changes {
                let is_connected = fleet.backends.contains_key(name);
                if node.is_none() {
                    let existed = fleet.nodes.remove(name).is_some();
                    fleet.errors.remove(name);
                    lost.extend((existed && is_connected).then(|| name.clone()));
                } else {
                    let is_new = !fleet.nodes.contains_key(name);
                    fleet.nodes.entry(name.clone()).or_insert_with(Instant::now);
                    fleet.has_nodes = true;
                    returned.extend((is_new && is_connected).then(|| name.clone()));
                }
            }
        });
        if !lost.is_empty() {
            let (count, nodes) = (lost.len(), &lost[..lost.len().min(MAX_LISTED)]);
            let text = "Node objects of connected backends were deleted, these nodes use their last addresses and pod \
                        CIDRs";
            warn!(count, ?nodes, "{text}");
        }
        if !returned.is_empty() {
            let (count, nodes) = (returned.len(), &returned[..returned.len().min(MAX_LISTED)]);
            info!(count, ?nodes, "Node objects of connected backends were created");
        }
    }

    /// Whether the cluster has this node.
    pub(crate) fn has_node(&self, node: &str) -> bool {
        self.with(|fleet| fleet.nodes.contains_key(node))
    }

    /// Whether the cluster has Node objects, but not this one.
    pub(crate) fn lacks_node(&self, node: &str) -> bool {
        self.with(|fleet| fleet.lacks_node(node))
    }

    /// Records why the frontend ended the stream of a node's backend.
    pub(crate) fn set_error(&self, node: &str, error: &impl ToString) {
        self.with(|fleet| {
            if let Some((name, _)) = fleet.nodes.get_key_value(node) {
                fleet.errors.insert(name.clone(), error.to_string());
            }
        });
    }

    /// How many streams are open.
    pub(crate) fn count(&self) -> usize {
        self.with(|fleet| fleet.streams.len())
    }

    /// The current status of all nodes and streams.
    pub(crate) fn fleet(&self) -> Fleet {
        self.with(|fleet| fleet.clone())
    }

    /// The newest revision that every connected node has programmed; `None` when no node is connected.
    pub(crate) fn programmed_on_all_nodes(&self) -> Option<Revision> {
        self.with(|fleet| fleet.programmed_on_all_nodes())
    }

    /// Waits until every connected node has programmed a revision.
    pub(crate) async fn wait_programmed(&self, revision: Revision) {
        loop {
            let changed = self.0.changed.notified();
            if self.programmed_on_all_nodes().is_none_or(|programmed| programmed >= revision) {
                return;
            }
            changed.await;
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Waits until no stream is open.
    pub(crate) async fn wait_closed(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.count() == 0 {
                return;
            }
            changed.await;
            sleep(CHECK_INTERVAL).await;
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Fleet) -> T) -> T {
        act(&mut self.0.fleet.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Fleet ===

impl Fleet {
    /// Backend streams, by node. The last one of a node represents it.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &StreamStatus> {
        self.backends.values().flatten().filter_map(|id| self.streams.get(id))
    }

    /// The newest backend stream of each connected node.
    pub(crate) fn current_backends(&self) -> impl Iterator<Item = &StreamStatus> {
        self.backends.values().filter_map(|ids| self.streams.get(ids.last()?))
    }

    /// The nodes whose backend is connected and whose Node object does not exist.
    pub(crate) fn backends_without_node(&self) -> impl Iterator<Item = &Arc<str>> {
        self.backends.keys().filter(|node| self.lacks_node(node))
    }

    fn lacks_node(&self, node: &str) -> bool {
        self.has_nodes && !self.nodes.contains_key(node)
    }

    /// Streams of observers and shadows, by node.
    pub(crate) fn observers(&self) -> Vec<&StreamStatus> {
        let mut observers: Vec<_> = self.streams.values().filter(|status| status.role != Role::Backend).collect();
        observers.sort_by_key(|status| &status.node);
        observers
    }

    /// The nodes of the cluster without a backend stream here, and for how long, by name.
    pub(crate) fn disconnected(&self) -> impl Iterator<Item = (&Arc<str>, Duration)> {
        let disconnected = self.nodes.iter().filter(|(node, _)| !self.backends.contains_key(*node));
        disconnected.map(|(node, since)| (node, since.elapsed()))
    }

    /// The newest revision that every connected node has programmed; `None` when no node is connected.
    pub(crate) fn programmed_on_all_nodes(&self) -> Option<Revision> {
        self.current_backends().map(|status| status.programmed).min()
    }

    /// Why the node's last stream was ended, until a later stream succeeds.
    pub(crate) fn last_error(&self, node: &str) -> Option<&str> {
        self.errors.get(node).map(String::as_str)
    }

    fn remove(&mut self, id: u64) {
        let Some(status) = self.streams.remove(&id) else { return };
        let Some(ids) = self.backends.get_mut(&status.node) else { return };
        if ids.remove(&id) && ids.is_empty() {
            self.backends.remove(&status.node);
            if let Some(disconnected_since) = self.nodes.get_mut(&status.node) {
                *disconnected_since = Instant::now();
            }
        }
    }
}

// === impl StreamGuard ===

impl StreamGuard {
    pub(crate) fn update(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.streams.with(|fleet| fleet.streams.get_mut(&self.id).map(change));
        self.streams.0.changed.notify_waiters();
    }

    /// Clears the error of an earlier stream: the client has acknowledged a revision on this one.
    pub(crate) fn clear_error(&self) {
        self.streams.with(|fleet| {
            if fleet.errors.is_empty() {
                return;
            }
            let status = fleet.streams.get(&self.id).filter(|status| status.role == Role::Backend);
            if let Some(status) = status {
                fleet.errors.remove(&status.node);
            }
        });
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.streams.with(|fleet| fleet.remove(self.id));
        self.streams.0.changed.notify_waiters();
    }
}
