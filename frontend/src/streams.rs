//! The open streams with the status of each, and the nodes of the cluster that should have one. `Status`, the status
//! page and metrics read it.
//!
//! ```text
//!   session ──StreamGuard──▶ Streams ◀──update_nodes── engine: the nodes of the cluster
//!                              │  └──▶ fleet: every node, also those without a backend
//!                              └─────▶ wait_programmed: waits until a revision is programmed on all nodes
//! ```
//!
//! A node has two backend streams when its old connection is dead and has not timed out yet. The newest one represents
//! it.

mod fleet;

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

use crate::index::NodeChanges;

pub(crate) use self::fleet::{DisconnectedNode, Fleet};

/// The minimum time between two checks of [`Streams::wait_programmed`]: each reads all nodes, and thousands of nodes
/// send thousands of Acks.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How many characters are kept of the backend name and version that a client sends.
const MAX_LABEL_CHARS: usize = 64;

/// The status of one stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// The node whose state is streamed.
    pub node: Arc<str>,
    /// The role of the client.
    pub role: Role,
    /// The name of the client's backend.
    pub backend: String,
    /// Its version.
    pub backend_version: String,
    /// When the client's process started, if it sent that.
    pub started: Option<SystemTime>,
    /// When the stream was opened.
    pub connected: SystemTime,
    /// How the stream started.
    pub mode: SyncMode,
    /// The last revision that the client has acknowledged.
    pub acked: Revision,
    /// The revision that is programmed on the node: nothing that concerns the node is missing up to it. 0 when unknown.
    pub programmed: Revision,
    /// Since when the client has had something to acknowledge; `None` when it has acknowledged everything.
    pub pending_since: Option<Instant>,
    /// How long the client took to apply what it acknowledged last.
    pub apply_time: Duration,
    /// How often the digest of the client was wrong.
    pub repairs: u64,
    /// What the client could not program.
    pub failures: Vec<ServicePortFailure>,
}

/// All streams. Clones share the same registry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<SharedRegistry>);

#[derive(Debug, Default)]
struct SharedRegistry {
    registry: Mutex<Registry>,
    /// Wakes [`Streams::wait_programmed`].
    changed: Notify,
}

#[derive(Debug, Default)]
struct Registry {
    next_id: u64,
    streams: BTreeMap<u64, StreamStatus>,
    /// The backend streams of each node. The newest one, which has the highest id, represents the node.
    backends: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The nodes of the cluster. For those without a backend: since when.
    nodes: BTreeMap<Arc<str>, Instant>,
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
        };
        let id = self.with(|registry| {
            registry.next_id += 1;
            let id = registry.next_id;
            if status.role == Role::Backend {
                registry.backends.entry(status.node.clone()).or_default().insert(id);
            }
            registry.streams.insert(id, status);
            id
        });
        StreamGuard { streams: self.clone(), id }
    }

    /// Records that nodes were added to or removed from the cluster.
    pub(crate) fn update_nodes(&self, changes: &NodeChanges) {
        if changes.is_empty() {
            return;
        }
        self.with(|registry| {
            for (name, node) in changes {
                if node.is_none() {
                    registry.nodes.remove(name);
                    registry.errors.remove(name);
                } else {
                    registry.nodes.entry(name.clone()).or_insert_with(Instant::now);
                }
            }
        });
    }

    /// Whether the cluster has this node.
    pub(crate) fn has_node(&self, node: &str) -> bool {
        self.with(|registry| registry.nodes.contains_key(node))
    }

    /// Records why the frontend ended the stream of a node's backend.
    pub(crate) fn set_error(&self, node: &str, error: &impl ToString) {
        self.with(|registry| {
            if let Some((name, _)) = registry.nodes.get_key_value(node) {
                registry.errors.insert(name.clone(), error.to_string());
            }
        });
    }

    /// How many streams are open.
    pub(crate) fn count(&self) -> usize {
        self.with(|registry| registry.streams.len())
    }

    /// The current status of all nodes and streams.
    pub(crate) fn fleet(&self) -> Fleet {
        self.with(|registry| Fleet::of(registry))
    }

    /// The newest revision that every connected node has programmed; `None` when no node is connected.
    pub(crate) fn programmed_on_all_nodes(&self) -> Option<Revision> {
        self.with(|registry| registry.current_backends().map(|status| status.programmed).min())
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

    fn with<T>(&self, act: impl FnOnce(&mut Registry) -> T) -> T {
        act(&mut self.0.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Registry {
    /// The newest backend stream of each connected node.
    fn current_backends(&self) -> impl Iterator<Item = &StreamStatus> {
        self.backends.values().filter_map(|ids| self.streams.get(ids.last()?))
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

impl StreamGuard {
    pub(crate) fn update(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.streams.with(|registry| registry.streams.get_mut(&self.id).map(change));
        self.streams.0.changed.notify_waiters();
    }

    /// Clears the error of an earlier stream: the client has acknowledged a revision on this one.
    pub(crate) fn clear_error(&self) {
        self.streams.with(|registry| {
            if registry.errors.is_empty() {
                return;
            }
            let status = registry.streams.get(&self.id).filter(|status| status.role == Role::Backend);
            if let Some(status) = status {
                registry.errors.remove(&status.node);
            }
        });
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.streams.with(|registry| registry.remove(self.id));
        self.streams.0.changed.notify_waiters();
    }
}
