//! Who is connected, and what each has said last: for `Status`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use proto::model::{Failure, Hello, Mode, Revision, Role};

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
    /// Since when.
    pub connected: SystemTime,
    /// How it started.
    pub mode: Mode,
    /// The last revision that the client has acknowledged.
    pub acked: Revision,
    /// How long the client took to apply that.
    pub apply_time: Duration,
    /// How often what the client held was not what it should have held.
    pub repairs: u64,
    /// What the client could not program.
    pub failures: Vec<Failure>,
}

/// All streams. Clones are the same registry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    streams: BTreeMap<u64, StreamStatus>,
}

/// Keeps a stream listed until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    streams: Streams,
    id: u64,
}

impl Streams {
    /// Lists a stream from now on.
    pub(crate) fn register(&self, hello: &Hello, mode: Mode) -> StreamGuard {
        let status = StreamStatus {
            node: hello.node.clone(),
            role: hello.role,
            backend: hello.backend.clone(),
            backend_version: hello.backend_version.clone(),
            connected: SystemTime::now(),
            mode,
            acked: Revision(0),
            apply_time: Duration::ZERO,
            repairs: 0,
            failures: Vec::new(),
        };
        let id = self.with(|registry| {
            registry.next += 1;
            registry.streams.insert(registry.next, status);
            registry.next
        });
        StreamGuard { streams: self.clone(), id }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.with(|registry| registry.streams.len())
    }

    /// All streams: agents, then observers, each in the order of their nodes.
    pub(crate) fn list(&self) -> Vec<StreamStatus> {
        let mut list: Vec<_> = self.with(|registry| registry.streams.values().cloned().collect());
        list.sort_by(|left, right| {
            let place = |status: &StreamStatus| (status.role == Role::Observer, status.node.clone());
            place(left).cmp(&place(right))
        });
        list
    }

    fn with<T>(&self, act: impl FnOnce(&mut Registry) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StreamGuard {
    pub(crate) fn update(&self, change: impl FnOnce(&mut StreamStatus)) {
        self.streams.with(|registry| registry.streams.get_mut(&self.id).map(change));
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.streams.with(|registry| registry.streams.remove(&self.id));
    }
}
