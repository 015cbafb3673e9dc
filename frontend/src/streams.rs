//! The open streams with the status of each, and the nodes of the cluster that should have one. `Status`, the status
//! page and metrics read it.
//!
//! ```text
//!   session ──StreamGuard──▶ Streams ◀──update_nodes── engine: the nodes of the cluster
//!                              │  └──▶ Fleet: every node, also those without a backend
//!                              └─────▶ programmed: the revision that all nodes have programmed, as it changes
//! ```
//!
//! A node has two backend streams when its old connection is dead and has not timed out yet. The newest one represents
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use proto::{
    model::{Hello, Revision, Role, ServicePortFailure, SyncMode},
    node_set::NodeSet,
};
use runtime::lock;
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use crate::object::{NodeChanges, ObjectName};

/// The most nodes that a log line or the problems list.
pub(crate) const MAX_LISTED: usize = 32;

/// A client that has owed an answer for this long makes no progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// For how long a node counts whose state differed, or that was rolled back.
const INCIDENT_RETENTION: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub(crate) struct StreamStatus {
    pub(crate) node: Arc<str>,
    pub(crate) role: Role,
    pub(crate) backend: String,
    pub(crate) backend_version: String,
    /// When the client's process started, if it sent that.
    pub(crate) started: Option<SystemTime>,
    pub(crate) connected: SystemTime,
    pub(crate) mode: SyncMode,
    /// The last revision that the client has acknowledged.
    pub(crate) acked: Revision,
    /// The revision that is programmed on the node: nothing that concerns the node is missing up to it. 0 when unknown.
    pub(crate) programmed: Revision,
    /// What is programmed beyond that.
    pub(crate) partly: PartlyProgrammed,
    /// Since when the client has had something to acknowledge; `None` when it has acknowledged everything.
    pub(crate) pending_since: Option<Instant>,
    /// Since when the client has owed an answer, without any that helps; `None` when it owes none.
    pub(crate) unanswered_since: Option<Instant>,
    /// How long the client took to apply what it acknowledged last.
    pub(crate) apply_time: Duration,
    /// How often the digest of the client was wrong.
    pub(crate) repairs: u64,
    /// What the client could not program: a few thousand at most. Clones share it, as all streams are copied at once.
    pub(crate) failures: Arc<[ServicePortFailure]>,
    /// The Services of which a port is not in the kernel of the node, and since when.
    pub(crate) failing_services: Arc<BTreeMap<ObjectName, Instant>>,
    /// Which VIPs are not served as a whole on the node.
    pub(crate) degraded: Vec<String>,
}

/// A revision of which everything is programmed on a node, except for Services of a few namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartlyProgrammed {
    pub(crate) revision: Revision,
    /// Empty if they are not known.
    pub(crate) unfinished_namespaces: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
pub(crate) struct Streams {
    fleet: Mutex<Fleet>,
    /// [`Fleet::programmed_on_all_nodes`], as it changes.
    programmed: watch::Sender<Option<Revision>>,
    /// How many streams are open, as it changes.
    open: watch::Sender<usize>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    next_id: u64,
    streams: BTreeMap<u64, StreamStatus>,
    /// The backend streams of each node. The newest one, which has the highest id, represents the node.
    backends: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The newest streams of all nodes with what they have programmed, the oldest revision first. A node whose object
    /// was deleted does not count.
    programmed: BTreeSet<(Revision, u64)>,
    /// Those of backends without a Node object, in the same way.
    unlisted: BTreeSet<(Revision, u64)>,
    /// The streams in `programmed` that report failures. Few.
    failing: BTreeSet<u64>,
    /// Why the frontend ended the last stream of a node, until a later stream succeeds. Few.
    errors: BTreeMap<Arc<str>, String>,
    /// When a node of the cluster that owed no answer for long last lost its backend here, or appeared.
    last_left: Option<Instant>,
    /// The nodes of the cluster with a backend stream.
    pub(crate) connected: NodeSet,
    pub(crate) cluster: NodeSet,
    /// The nodes of the cluster.
    pub(crate) nodes: BTreeMap<Arc<str>, NodeRecord>,
    /// Whether the cluster has, or has had, Node objects. A directory of manifests may have none.
    has_nodes: bool,
}

/// What is kept of a node of the cluster beyond its streams.
#[derive(Clone, Debug)]
pub(crate) struct NodeRecord {
    /// Since when it has no backend; without meaning while it has one.
    disconnected_since: Instant,
    /// If it owed an answer when its last stream ended: since when. A node that connects again and again makes no
    /// progress by that.
    owing: Option<Instant>,
    /// When its state last differed from what was sent, as it says.
    differed: Option<Instant>,
    /// When it was last rolled back from what it says that it had.
    rolled_back: Option<Instant>,
    /// Whether its object has addresses; `None` if that never had any while this process knew it.
    has_addresses: Option<bool>,
}

/// The parts of a stream's status that the sums over all nodes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    programmed: Revision,
    is_failing: bool,
}

/// What changes of Node objects mean for backends. For log lines.
#[derive(Debug, Default)]
struct NodeTransitions {
    /// Nodes whose backend is connected and whose object was deleted.
    lost: Vec<Arc<str>>,
    /// Nodes whose backend is connected and whose object was created.
    returned: Vec<Arc<str>>,
    without_addresses: Vec<Arc<str>>,
}

/// Removes the stream when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    streams: Arc<Streams>,
    id: u64,
    /// The node, if the client is its backend.
    backend: Option<Arc<str>>,
}

// === impl StreamStatus ===

impl StreamStatus {
    /// For how long the client has had something to acknowledge.
    pub(crate) fn lag(&self) -> Duration {
        self.pending_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether a revision is programmed for the Services of these namespaces, although it is not for others.
    pub(crate) fn has_programmed_for(&self, namespaces: &BTreeSet<Arc<str>>, revision: Revision) -> bool {
        let PartlyProgrammed { revision: partly, unfinished_namespaces } = &self.partly;
        *partly >= revision && !unfinished_namespaces.is_empty() && unfinished_namespaces.is_disjoint(namespaces)
    }

    /// For how long the node has not been able to program one of these Services, the shortest time of all. `None`: it
    /// can program them.
    pub(crate) fn failing_for(&self, services: &BTreeSet<ObjectName>) -> Option<Duration> {
        let since = services.iter().filter_map(|service| self.failing_services.get(service));
        since.map(Instant::elapsed).min()
    }

    fn counted(&self) -> Counted {
        Counted { programmed: self.programmed, is_failing: !self.failures.is_empty() }
    }

    /// Whether the client makes no progress: its node is like one that is not connected.
    pub(crate) fn is_stalled(&self) -> bool {
        self.unanswered_since.is_some_and(|since| since.elapsed() >= STALL_TIMEOUT)
    }
}

// === impl Streams ===

impl Streams {
    pub(crate) fn register(self: &Arc<Self>, hello: &Hello, mode: SyncMode) -> StreamGuard {
        let status = StreamStatus {
            node: hello.node.clone(),
            role: hello.role,
            backend: hello.backend.clone(),
            backend_version: hello.backend_version.clone(),
            started: hello.started,
            connected: SystemTime::now(),
            mode,
            acked: Revision(0),
            programmed: Revision(0),
            partly: PartlyProgrammed::default(),
            pending_since: Some(Instant::now()),
            unanswered_since: Some(Instant::now()),
            apply_time: Duration::ZERO,
            repairs: 0,
            failures: Arc::default(),
            failing_services: Arc::default(),
            degraded: Vec::new(),
        };
        let id = self.with(|fleet| fleet.insert(status));
        let backend = (hello.role == Role::Backend).then(|| hello.node.clone());
        StreamGuard { streams: self.clone(), id, backend }
    }

    /// Records that nodes were added to or removed from the cluster.
    pub(crate) fn update_nodes(&self, changes: &NodeChanges) {
        if changes.is_empty() {
            return;
        }
        self.with(|fleet| fleet.update_nodes(changes)).log();
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
    pub(crate) fn set_error(&self, node: &str, error: String) {
        self.with(|fleet| {
            if let Some((name, _)) = fleet.nodes.get_key_value(node) {
                fleet.errors.insert(name.clone(), error);
            }
        });
    }

    /// Records that the backend of a node was rolled back.
    pub(crate) fn rolled_back(&self, node: &str) {
        self.change_record(node, |record| record.rolled_back = Some(Instant::now()));
    }

    /// Changes what is kept of a node, if the cluster has it.
    fn change_record(&self, node: &str, change: impl FnOnce(&mut NodeRecord)) {
        self.with(|fleet| {
            if let Some(record) = fleet.nodes.get_mut(node) {
                change(record);
            }
        });
    }

    pub(crate) fn count(&self) -> usize {
        *self.open.borrow()
    }

    /// The current status of all nodes and streams.
    pub(crate) fn fleet(&self) -> Fleet {
        self.with(|fleet| fleet.clone())
    }

    /// The newest revision that every connected node has programmed, as it changes; `None` when no node is connected.
    pub(crate) fn programmed(&self) -> watch::Receiver<Option<Revision>> {
        self.programmed.subscribe()
    }

    /// Waits until every connected node has programmed a revision.
    pub(crate) async fn wait_programmed(&self, revision: Revision) {
        // Fails only after the streams have been dropped.
        let _ = self.programmed().wait_for(|current| current.is_none_or(|current| current >= revision)).await;
    }

    /// Waits until no stream is open.
    pub(crate) async fn wait_closed(&self) {
        // Fails only after the streams have been dropped.
        let _ = self.open.subscribe().wait_for(|count| *count == 0).await;
    }

    pub(crate) fn read<T>(&self, act: impl FnOnce(&Fleet) -> T) -> T {
        act(&lock(&self.fleet))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Fleet) -> T) -> T {
        let mut fleet = lock(&self.fleet);
        let result = act(&mut fleet);
        self.publish(&fleet);
        result
    }

    /// Notifies the receivers of what has changed. The fleet stays locked, so that the last value is the newest one.
    fn publish(&self, fleet: &Fleet) {
        let programmed = fleet.programmed_on_all_nodes();
        let open = fleet.streams.len();
        self.open.send_if_modified(|current| mem::replace(current, open) != open);
        self.programmed.send_if_modified(|current| mem::replace(current, programmed) != programmed);
    }
}

// === impl NodeTransitions ===

impl NodeTransitions {
    fn log(&self) {
        let Self { lost, returned, without_addresses } = self;
        if !lost.is_empty() {
            warn!(
                count = lost.len(),
                nodes = ?listed(lost),
                "Node objects of connected backends were deleted, these nodes use their last addresses and pod CIDRs"
            );
        }
        if !without_addresses.is_empty() {
            let nodes = listed(without_addresses);
            let count = without_addresses.len();
            warn!(count, ?nodes, "Node objects have no addresses any more, these nodes use their last ones");
        }
        if !returned.is_empty() {
            let nodes = listed(returned);
            info!(count = returned.len(), ?nodes, "Node objects of connected backends were created");
        }
    }
}

// === impl Fleet ===

impl Fleet {
    fn update_nodes(&mut self, changes: &NodeChanges) -> NodeTransitions {
        let mut transitions = NodeTransitions::default();
        for (name, node) in changes {
            let is_connected = self.backends.contains_key(name);
            let Some(node) = node else {
                if self.remove_node(name) && is_connected {
                    transitions.lost.push(name.clone());
                }
                continue;
            };

            if self.add_node(name) && is_connected {
                transitions.returned.push(name.clone());
            }
            if self.set_has_addresses(name, !node.addresses.is_empty()) {
                transitions.without_addresses.push(name.clone());
            }
        }
        transitions
    }

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

    /// The nodes whose Node object has lost its addresses while this process ran.
    pub(crate) fn without_addresses(&self) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.iter().filter(|(_, record)| record.has_addresses == Some(false)).map(|(node, _)| node)
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
        self.without_backend().map(|(node, record)| (node, record.disconnected_since.elapsed()))
    }

    fn without_backend(&self) -> impl Iterator<Item = (&Arc<str>, &NodeRecord)> {
        self.nodes.iter().filter(|(node, _)| !self.backends.contains_key(*node))
    }

    /// Whether a node has left this frontend, or appeared, within this time, and may be about to connect to another
    /// one.
    pub(crate) fn has_left(&self, within: Duration) -> bool {
        self.last_left.is_some_and(|last| last.elapsed() < within)
    }

    /// How many backends without a Node object have not programmed a revision, and have lagged for less than this time.
    pub(crate) fn unlisted_behind(&self, revision: Revision, max_lag: Duration) -> usize {
        let behind = self.unlisted.iter().take_while(|(programmed, _)| *programmed < revision);
        let behind = behind.filter_map(|(_, id)| self.streams.get(id));
        behind.filter(|status| !status.is_stalled() && status.lag() < max_lag).count()
    }

    /// The newest revision that every connected node has programmed; `None` when no node is connected.
    pub(crate) fn programmed_on_all_nodes(&self) -> Option<Revision> {
        self.programmed.first().map(|(revision, _)| *revision)
    }

    /// The newest streams of the nodes that have not programmed a revision.
    pub(crate) fn behind(&self, revision: Revision) -> impl Iterator<Item = &StreamStatus> {
        let behind = self.programmed.iter().take_while(move |(programmed, _)| *programmed < revision);
        behind.filter_map(|(_, id)| self.streams.get(id))
    }

    /// Whether the backend of a node is connected, and has programmed a state since.
    pub(crate) fn has_programmed(&self, node: &str) -> bool {
        self.current(node).is_some_and(|status| status.programmed > Revision(0))
    }

    /// The newest streams of the nodes that report failures.
    pub(crate) fn failing_backends(&self) -> impl Iterator<Item = &StreamStatus> {
        self.failing.iter().filter_map(|id| self.streams.get(id))
    }

    /// Why the node's last stream was ended, until a later stream succeeds.
    pub(crate) fn last_error(&self, node: &str) -> Option<&str> {
        self.errors.get(node).map(String::as_str)
    }

    /// How many nodes have said within [`INCIDENT_RETENTION`] that their state differs from what they were sent.
    pub(crate) fn differed(&self) -> usize {
        self.recent(|record| record.differed)
    }

    /// How many nodes were rolled back within [`INCIDENT_RETENTION`].
    pub(crate) fn rolled_back(&self) -> usize {
        self.recent(|record| record.rolled_back)
    }

    fn recent(&self, last: impl Fn(&NodeRecord) -> Option<Instant>) -> usize {
        self.nodes.values().filter_map(last).filter(|last| last.elapsed() < INCIDENT_RETENTION).count()
    }

    fn insert(&mut self, mut status: StreamStatus) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let node = status.node.clone();
        self.recount(&node, |fleet| {
            if status.role == Role::Backend {
                let owing = fleet.nodes.get_mut(&node).and_then(|record| record.owing.take());
                status.unanswered_since = status.unanswered_since.map(|since| owing.unwrap_or(since));
                fleet.backends.entry(status.node.clone()).or_default().insert(id);
            }
            fleet.streams.insert(id, status);
        });
        id
    }

    /// Changes what a stream counts as. Only the newest stream of a node counts.
    fn update_count(&mut self, id: u64, before: Counted, after: Counted) {
        if self.unlisted.remove(&(before.programmed, id)) {
            self.unlisted.insert((after.programmed, id));
        }
        if self.programmed.remove(&(before.programmed, id)) {
            self.programmed.insert((after.programmed, id));
            if after.is_failing {
                self.failing.insert(id);
            } else {
                self.failing.remove(&id);
            }
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(node) = self.streams.get(&id).map(|status| status.node.clone()) else { return };
        self.recount(&node, |fleet| {
            let owing = fleet.streams.remove(&id).and_then(|status| status.unanswered_since);
            let Some(ids) = fleet.backends.get_mut(&node) else { return };
            if ids.remove(&id) && ids.is_empty() {
                fleet.backends.remove(&node);
                if let Some(record) = fleet.nodes.get_mut(&node) {
                    record.disconnected_since = Instant::now();
                    record.owing = owing;
                    if owing.is_none_or(|since| since.elapsed() < STALL_TIMEOUT) {
                        fleet.last_left = Some(Instant::now());
                    }
                }
            }
        });
    }

    /// Returns whether it is new.
    fn add_node(&mut self, node: &Arc<str>) -> bool {
        let is_first = !mem::replace(&mut self.has_nodes, true);
        let is_new = !self.nodes.contains_key(node);
        if is_new {
            let disconnected_since = Instant::now();
            let new =
                NodeRecord { disconnected_since, owing: None, differed: None, rolled_back: None, has_addresses: None };
            self.recount(node, |fleet| fleet.nodes.insert(node.clone(), new));
            self.cluster.insert(node);
            self.last_left = Some(Instant::now());
        }
        if is_first {
            let Self { nodes, streams, programmed, unlisted, failing, .. } = self;
            let is_unlisted = |id: &u64| streams.get(id).is_none_or(|status| !nodes.contains_key(&status.node));
            unlisted.extend(programmed.extract_if(.., |(_, id)| is_unlisted(id)));
            failing.retain(|id| !is_unlisted(id));
        }
        is_new
    }

    /// Records whether the object of a node has addresses. Returns whether it has lost them.
    fn set_has_addresses(&mut self, node: &str, has_addresses: bool) -> bool {
        let Some(record) = self.nodes.get_mut(node) else { return false };
        let had_addresses = record.has_addresses;
        record.has_addresses = if has_addresses { Some(true) } else { had_addresses.map(|_| false) };
        had_addresses == Some(true) && !has_addresses
    }

    /// Returns whether it existed.
    fn remove_node(&mut self, node: &Arc<str>) -> bool {
        let existed = self.recount(node, |fleet| fleet.nodes.remove(node)).is_some();
        if existed {
            self.cluster.remove(node);
            self.errors.remove(node);
        }
        existed
    }

    /// The newest backend stream of a node.
    fn current(&self, node: &str) -> Option<&StreamStatus> {
        self.streams.get(&self.current_id(node)?)
    }

    fn current_id(&self, node: &str) -> Option<u64> {
        self.backends.get(node)?.last().copied()
    }

    /// Changes what concerns a node, and updates the sums over all nodes.
    fn recount<T>(&mut self, node: &Arc<str>, change: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(id) = self.current_id(node) {
            self.uncount(node, id);
        }
        let result = change(self);
        if let Some(id) = self.current_id(node) {
            self.count(node, id);
        }
        result
    }

    /// Takes a node with its newest stream out of the sums over all nodes.
    fn uncount(&mut self, node: &Arc<str>, id: u64) {
        let Some(status) = self.streams.get(&id) else { return };
        let entry = (status.programmed, id);

        self.programmed.remove(&entry);
        self.unlisted.remove(&entry);
        self.failing.remove(&id);
        if self.nodes.contains_key(node) {
            self.connected.remove(node);
        }
    }

    /// Adds a node with its newest stream to the sums over all nodes.
    fn count(&mut self, node: &Arc<str>, id: u64) {
        let Some(status) = self.streams.get(&id) else { return };
        let Counted { programmed, is_failing } = status.counted();

        if self.lacks_node(node) {
            self.unlisted.insert((programmed, id));
            return;
        }
        self.programmed.insert((programmed, id));
        if is_failing {
            self.failing.insert(id);
        }
        if self.nodes.contains_key(node) {
            self.connected.insert(node);
        }
    }
}

/// The names that a log line has.
fn listed(nodes: &[Arc<str>]) -> &[Arc<str>] {
    &nodes[..nodes.len().min(MAX_LISTED)]
}

// === impl StreamGuard ===

impl StreamGuard {
    /// Changes the status, and returns what `change` returns. Most changes concern nothing that is counted.
    pub(crate) fn update<T: Default>(&self, change: impl FnOnce(&mut StreamStatus) -> T) -> T {
        let mut fleet = lock(&self.streams.fleet);
        let Some(status) = fleet.streams.get_mut(&self.id) else { return T::default() };
        let before = status.counted();

        let result = change(status);

        let after = status.counted();
        if after != before {
            fleet.update_count(self.id, before, after);
            self.streams.publish(&fleet);
        }
        result
    }

    /// Records that the state of the client's node differed from what was sent.
    pub(crate) fn differed(&self) {
        if let Some(node) = &self.backend {
            self.streams.change_record(node, |record| record.differed = Some(Instant::now()));
        }
    }

    /// Clears the error of an earlier stream: the client has acknowledged a revision on this one.
    pub(crate) fn clear_error(&self) {
        if let Some(node) = &self.backend {
            lock(&self.streams.fleet).errors.remove(node);
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.streams.with(|fleet| fleet.remove(self.id));
    }
}
