//! Who is connected, and what each has said last, for `Status` and the metrics; and which nodes should be connected.
//!
//! ```text
//!   session ──StreamGuard──▶ Streams ◀──expect── engine: which nodes the cluster has
//!                              │  └──▶ fleet: the nodes one by one, those without an agent too
//!                              └─────▶ until: somebody waits for a revision to be in every kernel
//! ```
//!
//! Two agents of one node are there when a connection has died and nobody knows yet: the newest one speaks for the node.

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

pub(crate) use self::fleet::{Absent, Fleet};

/// Those who wait for a revision look again no sooner than this after the last time: with thousands of nodes there are
/// thousands of acks, and each look is one at all nodes.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How many characters are kept of what a client calls its backend and its version.
const WORDS: usize = 64;

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// Whose view it follows.
    pub node: Arc<str>,
    /// What the client is.
    pub role: Role,
    /// The client's backend.
    pub backend: String,
    /// Its version.
    pub backend_version: String,
    /// Since when its run lasts, if it says that.
    pub started: Option<SystemTime>,
    /// Since when it is connected.
    pub connected: SystemTime,
    /// How it started.
    pub mode: SyncMode,
    /// The last revision that the client has acknowledged.
    pub acked: Revision,
    /// What is right for the node at this revision is what the client holds; 0 when that is not known.
    pub held: Revision,
    /// When the oldest thing was due that the client has not acknowledged; `None` when it has everything.
    pub behind: Option<Instant>,
    /// How long the client took to apply what it acknowledged last.
    pub apply_time: Duration,
    /// How often what the client held was not what it should have held.
    pub repairs: u64,
    /// What the client could not program.
    pub failures: Vec<ServicePortFailure>,
}

/// All streams. Clones are the same registry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    registry: Mutex<Registry>,
    /// Something has changed that those may wait for who wait for a revision.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    streams: BTreeMap<u64, StreamStatus>,
    /// The streams of each node's agents; the last one speaks for the node.
    agents: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The nodes of the cluster, which should have an agent, and since when each has none, if it has none.
    nodes: BTreeMap<Arc<str>, Instant>,
    /// Of such nodes, why the last stream was ended, where that is not over. Nearly always empty, and then every Ack is cheap.
    errors: BTreeMap<Arc<str>, String>,
}

/// Keeps a stream listed until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    streams: Streams,
    id: u64,
}

// === impl StreamStatus ===

impl StreamStatus {
    /// How long ago the oldest thing was due that the client has not acknowledged.
    pub(crate) fn lag(&self) -> Duration {
        self.behind.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

// === impl Streams ===

impl Streams {
    /// Lists a stream from now on.
    pub(crate) fn register(&self, hello: &Hello, mode: SyncMode) -> StreamGuard {
        let status = StreamStatus {
            node: hello.node.clone(),
            role: hello.role,
            backend: hello.backend.chars().take(WORDS).collect(),
            backend_version: hello.backend_version.chars().take(WORDS).collect(),
            started: hello.started,
            connected: SystemTime::now(),
            mode,
            acked: Revision(0),
            held: Revision(0),
            behind: Some(Instant::now()),
            apply_time: Duration::ZERO,
            repairs: 0,
            failures: Vec::new(),
        };
        let id = self.with(|registry| {
            registry.next += 1;
            let id = registry.next;
            if status.role == Role::Backend {
                registry.agents.entry(status.node.clone()).or_default().insert(id);
            }
            registry.streams.insert(id, status);
            id
        });
        StreamGuard { streams: self.clone(), id }
    }

    /// The cluster has other nodes than before.
    pub(crate) fn expect(&self, changes: &NodeChanges) {
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
    pub(crate) fn expects(&self, node: &str) -> bool {
        self.with(|registry| registry.nodes.contains_key(node))
    }

    /// The frontend has ended the stream of this node's agent, because of an error.
    pub(crate) fn broke(&self, node: &str, error: &impl ToString) {
        self.with(|registry| {
            if let Some((name, _)) = registry.nodes.get_key_value(node) {
                registry.errors.insert(name.clone(), error.to_string());
            }
        });
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.with(|registry| registry.streams.len())
    }

    /// Everything about the nodes, as of now.
    pub(crate) fn fleet(&self) -> Fleet {
        self.with(|registry| Fleet::of(registry))
    }

    /// The newest revision that every agent holds; `None` when there is no agent.
    pub(crate) fn in_every_kernel(&self) -> Option<Revision> {
        self.with(|registry| registry.speakers().map(|status| status.held).min())
    }

    /// Waits until every agent holds a revision.
    pub(crate) async fn until(&self, revision: Revision) {
        loop {
            let changed = self.0.changed.notified();
            if self.in_every_kernel().is_none_or(|held| held >= revision) {
                return;
            }
            changed.await;
            sleep(LOOK_INTERVAL).await;
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Registry) -> T) -> T {
        act(&mut self.0.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Registry {
    /// For each node with an agent its newest stream.
    fn speakers(&self) -> impl Iterator<Item = &StreamStatus> {
        self.agents.values().filter_map(|ids| self.streams.get(ids.last()?))
    }

    fn remove(&mut self, id: u64) {
        let Some(status) = self.streams.remove(&id) else { return };
        let Some(ids) = self.agents.get_mut(&status.node) else { return };
        if ids.remove(&id) && ids.is_empty() {
            self.agents.remove(&status.node);
            if let Some(alone_since) = self.nodes.get_mut(&status.node) {
                *alone_since = Instant::now();
            }
        }
    }
}

impl StreamGuard {
    pub(crate) fn update(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.streams.with(|registry| registry.streams.get_mut(&self.id).map(change));
        self.streams.0.changed.notify_waiters();
    }

    /// The client has acknowledged something, so whatever was wrong before is over.
    pub(crate) fn recovered(&self) {
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
