//! What must be true at any time, for each node. It follows every stream with a mirror of its own: operations are
//! applied one after the other, without the code of the backend.
//!
//! - The digest of a bookmark is that of the mirrored state.
//! - The kernel contains of each service port only what a frontend has committed for this node.
//! - An Ack without failures means that the kernel is a committed state that is not older than the acknowledged one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backend::ServicePortState;
use proto::{
    digest::{Digest, KeyHash},
    model::{
        Ack, Batch, ClientMessage, ClusterInfo, Epoch, Hello, IpFamily, NodeInfo, Operation, PoolClass, Revision,
        ServerMessage, ServicePort, ServicePortKey, SyncMode,
    },
};

use crate::{kernel::SimulatedKernel, trace::Trace};

/// The service ports of a state.
pub(crate) type ServicePorts = BTreeMap<ServicePortKey, ServicePortState>;

/// A committed state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MirroredState {
    pub(crate) node: NodeInfo,
    pub(crate) cluster: ClusterInfo,
    pub(crate) service_ports: ServicePorts,
}

/// The oracle of a node. Clones share it.
#[derive(Clone)]
pub(crate) struct NodeOracle {
    node: Arc<str>,
    trace: Trace,
    history: Arc<Mutex<NodeHistory>>,
}

#[derive(Default)]
struct NodeHistory {
    /// In the order of their commits by any frontend.
    states: Vec<Arc<MirroredState>>,
    /// The index of the last state of each revision.
    by_revision: BTreeMap<(u64, Revision), usize>,
    /// The node was switched off, and no state of a frontend is in its kernel since: it leaves its former endpoints
    /// out.
    is_unconfirmed: bool,
    /// What each service port was in any of them, by digest; `None`: it did not exist.
    committed: BTreeMap<ServicePortKey, BTreeSet<Option<u64>>>,
}

/// Follows one stream.
pub(crate) struct StreamMirror {
    oracle: NodeOracle,
    resume: Option<(Epoch, Revision)>,
    epoch: Epoch,
    /// `None` if the state that the stream starts from is unknown.
    state: Option<MirroredState>,
    staged: Vec<Operation>,
}

impl MirroredState {
    pub(crate) fn empty(node: &str) -> Self {
        let node = NodeInfo::unknown(node);
        Self { node, cluster: ClusterInfo::default(), service_ports: ServicePorts::new() }
    }

    /// The digest of the whole state, as `docs/protocol.md` defines it.
    pub(crate) fn digest(&self) -> Digest {
        let mut sum = Digest::of_node(&self.node);
        sum.add(Digest::of_cluster(&self.cluster));
        self.service_ports.values().for_each(|service| sum.add(digest_of(service)));
        sum
    }

    /// Applies an operation to a state.
    pub(crate) fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::PutServicePort(port) => {
                let key = port.key.clone();
                let new = ServicePortState::new(port.clone());
                self.service_ports.entry(key).or_insert(new).port = port;
            }
            Operation::RemoveServicePort(key) => drop(self.service_ports.remove(&key)),
            Operation::ChangePool { pool, add, remove } => {
                if let Some(service) = self.service_ports.get_mut(&pool.key) {
                    let endpoints = service.pool_mut(pool.class, pool.family);
                    for endpoint in &remove {
                        endpoints.remove(endpoint);
                    }
                    for endpoint in add {
                        endpoints.remove(&endpoint);
                        endpoints.insert(endpoint);
                    }
                }
            }
            Operation::ReplacePool { pool, endpoints } => {
                if let Some(service) = self.service_ports.get_mut(&pool.key) {
                    *service.pool_mut(pool.class, pool.family) = endpoints;
                }
            }
            Operation::PutNode(node) => self.node = node,
            Operation::PutCluster(cluster) => self.cluster = cluster,
            Operation::ResetBucket(bucket) => self.service_ports.retain(|key, _| KeyHash::of(key).bucket() != bucket),
        }
    }
}

impl NodeOracle {
    pub(crate) fn new(node: &str, trace: Trace) -> Self {
        Self { node: node.into(), trace, history: Arc::default() }
    }

    /// A stream begins.
    pub(crate) fn stream(&self, hello: &Hello) -> StreamMirror {
        StreamMirror {
            oracle: self.clone(),
            resume: hello.resume,
            epoch: Epoch::default(),
            state: None,
            staged: Vec::new(),
        }
    }

    /// A service port is written to the kernel.
    pub(crate) fn written(&self, key: &ServicePortKey, service: Option<&ServicePortState>) {
        let digest = service.map(|service| digest_of(service).0);
        let history = self.lock();
        let known = history.committed.get(key).is_some_and(|known| known.contains(&digest));
        let left_out = |service: &ServicePortState| {
            let states = history.states.iter().filter_map(|state| state.service_ports.get(key));
            history.is_unconfirmed && { states }.any(|state| is_part(service, state))
        };
        // A service port that no state has is always permitted to be absent.
        if !known && service.is_some_and(|service| !left_out(service)) {
            let last = history.states.last().and_then(|state| state.service_ports.get(key)).cloned();
            drop(history);
            let node = &self.node;
            self.trace.violation(format_args!(
                "{node}: the kernel got {key}, which no frontend committed: {service:?}\n  the last commit has {last:?}"
            ));
        }
    }

    /// The node is switched off.
    pub(crate) fn power_lost(&self) {
        self.lock().is_unconfirmed = true;
    }

    /// The number of committed states.
    pub(crate) fn commits(&self) -> usize {
        self.lock().states.len()
    }

    fn committed(&self, epoch: Epoch, revision: Revision, state: MirroredState) {
        let mut history = self.lock();
        for (key, service) in &state.service_ports {
            history.committed.entry(key.clone()).or_default().insert(Some(digest_of(service).0));
        }
        history.states.push(Arc::new(state));
        let index = history.states.len() - 1;
        history.by_revision.insert((epoch.0, revision), index);
    }

    fn lock(&self) -> MutexGuard<'_, NodeHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamMirror {
    /// A message arrives at the node.
    pub(crate) fn received(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::Welcome(welcome) => {
                self.epoch = welcome.epoch;
                self.state = match (welcome.mode, self.resume) {
                    (SyncMode::Snapshot, _) | (_, None) => Some(MirroredState::empty(&self.oracle.node)),
                    (_, Some((epoch, revision))) => {
                        let history = self.oracle.lock();
                        let index = history.by_revision.get(&(epoch.0, revision)).copied();
                        index.map(|index| MirroredState::clone(&history.states[index]))
                    }
                };
            }
            ServerMessage::Batch(batch) => self.batch(batch),
            ServerMessage::Bookmark(revision, digest) => {
                let Some(state) = &self.state else { return };
                if state.digest() != *digest {
                    let Self { oracle: NodeOracle { node, trace, .. }, epoch, .. } = self;
                    let mirrored = state.digest();
                    trace.line(format_args!(
                        "{node}: bookmark {epoch}/{revision} has digest {digest:?}, the mirror {mirrored:?}"
                    ));
                }
                self.oracle.committed(self.epoch, *revision, state.clone());
            }
            ServerMessage::Drain(_) | ServerMessage::DigestRequest => {}
        }
    }

    /// The node sends a message.
    pub(crate) fn sent(&mut self, message: &ClientMessage, kernel: &SimulatedKernel, is_withheld: bool) {
        let ClientMessage::Ack(Ack { revision, failures, unfinished, digest, .. }) = message else { return };
        if *unfinished == 0 {
            self.oracle.lock().is_unconfirmed = false;
        }
        if is_withheld || *unfinished > 0 {
            return;
        }
        let Self { oracle: oracle @ NodeOracle { node, trace, .. }, epoch, .. } = &*self;
        let history = oracle.lock();
        let Some(index) = history.by_revision.get(&(epoch.0, *revision)).copied() else { return };
        let (kernel, tampered) = (kernel.service_ports(), kernel.tampered());
        let failed =
            |key: &ServicePortKey| tampered.contains(key) || failures.iter().any(|failure| failure.key == *key);
        let is = |state: &MirroredState| {
            let all: BTreeSet<_> = kernel.keys().chain(state.service_ports.keys()).collect();
            all.into_iter().all(|key| failed(key) || kernel.get(key) == state.service_ports.get(key))
        };
        // Later commits may be programmed already.
        if !history.states[index..].iter().any(|state| is(state)) {
            let state = history.states[index].clone();
            drop(history);
            let text = differences(&kernel, &state.service_ports);
            trace.violation(format_args!(
                "{node}: ack of {epoch}/{revision} ({digest:?}), but the kernel is different: {text}"
            ));
        }
    }

    fn batch(&mut self, batch: &Batch) {
        self.staged.extend(batch.operations.iter().cloned());
        if !batch.commit {
            return;
        }
        let staged = std::mem::take(&mut self.staged);
        if let Some(state) = &mut self.state {
            staged.into_iter().for_each(|operation| state.apply(operation));
            self.oracle.committed(self.epoch, batch.target, state.clone());
        }
    }
}

/// The content hash of a service port with its pools.
fn digest_of(service: &ServicePortState) -> Digest {
    let hash = KeyHash::of(&service.port.key);
    let mut sum = Digest::of_service_port(&service.port);
    for class in [PoolClass::Cluster, PoolClass::Local] {
        for family in IpFamily::ALL {
            sum.add(hash.pool(class, service.pool(class, family).endpoints()));
        }
    }
    sum
}

/// Whether a service port has only endpoints of another one, and is equal otherwise.
fn is_part(part: &ServicePortState, whole: &ServicePortState) -> bool {
    let any_endpoints = part.port.any_endpoints;
    let pools = [PoolClass::Cluster, PoolClass::Local]
        .into_iter()
        .flat_map(|class| IpFamily::ALL.map(|family| (class, family)));
    let mut pools = pools.map(|(class, family)| (part.pool(class, family), whole.pool(class, family)));
    part.port == ServicePort { any_endpoints, ..whole.port.clone() }
        && pools.all(|(part, whole)| part.endpoints().iter().all(|endpoint| whole.contains(endpoint)))
}

/// The service ports that differ, for people.
pub(crate) fn differences(kernel: &ServicePorts, expected: &ServicePorts) -> String {
    let all: BTreeSet<_> = kernel.keys().chain(expected.keys()).collect();
    let mut text = String::new();
    for key in all {
        let (is, expected) = (kernel.get(key), expected.get(key));
        if is != expected {
            text.push_str(&format!("\n  {key}: is {is:?}\n    expected {expected:?}"));
        }
    }
    text
}
