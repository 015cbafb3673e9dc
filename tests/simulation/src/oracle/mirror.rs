//! What the messages of a stream mean: operations are applied one after the other.

use std::{collections::BTreeMap, time::Duration};

use backend::ServicePortState;
use proto::{
    digest::{Digest, KeyHash},
    model::{
        Batch, Bookmark, ClientMessage, ClusterInfo, Epoch, Hello, IpFamily, KindVersions, NodeInfo, Operation,
        PoolClass, Revision, ServerMessage, ServicePortKey, SourceVersion, SyncMode, Welcome,
    },
};

use super::{NodeOracle, Position};
use crate::{kernel::SimulatedKernel, trace::trace};

/// How long a frontend waits until it has what a node has from another one.
const CATCH_UP: Duration = Duration::from_secs(5);

/// The service ports of a state.
pub(crate) type ServicePorts = BTreeMap<ServicePortKey, ServicePortState>;

/// A committed state.
#[derive(Clone, Debug)]
pub(crate) struct MirroredState {
    pub(crate) node: NodeInfo,
    pub(crate) cluster: ClusterInfo,
    pub(crate) service_ports: ServicePorts,
    /// When it was committed, in the time of the simulation.
    pub(super) committed_at: Duration,
}

/// Follows one stream.
pub(crate) struct StreamMirror {
    oracle: NodeOracle,
    kernel: SimulatedKernel,
    begun: Duration,
    resume: Option<Position>,
    /// The digest of the node's state.
    claimed: Option<Digest>,
    /// The versions of the node's state.
    versions: (SourceVersion, KindVersions),
    epoch: Epoch,
    /// `None` before the Welcome.
    state: Option<MirroredState>,
    /// Its digest, once that is computed.
    digest: Option<Digest>,
    staged: Vec<Operation>,
    /// Those of the commits and bookmarks, in order.
    revisions: Vec<Revision>,
    /// The commit with older objects that is not acknowledged yet.
    rollback: Option<Revision>,
}

impl PartialEq for MirroredState {
    fn eq(&self, Self { node, cluster, service_ports, committed_at: _ }: &Self) -> bool {
        self.node == *node && self.cluster == *cluster && self.service_ports == *service_ports
    }
}

impl MirroredState {
    pub(crate) fn empty(node: &str) -> Self {
        let (node, committed_at) = (NodeInfo::unknown(node), Duration::ZERO);
        Self { node, cluster: ClusterInfo::default(), service_ports: ServicePorts::new(), committed_at }
    }

    /// The digest of the whole state, as `docs/protocol.md` defines it.
    fn digest(&self) -> Digest {
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

impl StreamMirror {
    pub(super) fn new(oracle: NodeOracle, hello: &Hello, kernel: SimulatedKernel, begun: Duration) -> Self {
        Self {
            oracle,
            kernel,
            begun,
            resume: hello.resume,
            claimed: hello.digests.as_ref().map(|digests| digests.total()),
            versions: (hello.source_version, hello.kind_versions),
            epoch: Epoch::default(),
            state: None,
            digest: None,
            staged: Vec::new(),
            revisions: Vec::new(),
            rollback: None,
        }
    }

    /// A message arrives at the node.
    pub(crate) fn received(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::Welcome(welcome) => self.welcome(welcome),
            ServerMessage::Batch(batch) => self.batch(batch),
            ServerMessage::Bookmark(Bookmark { revision, digest, .. }) if self.staged.is_empty() => {
                self.revisions.push(*revision);
                self.bookmark(*revision, *digest)
            }
            ServerMessage::Bookmark(..) | ServerMessage::Drain(_) | ServerMessage::DigestRequest => {}
        }
    }

    /// The node sends a message.
    pub(crate) fn sent(&mut self, message: &ClientMessage) {
        let ClientMessage::Ack(ack) = message else { return };
        let Some(received) = self.revision(ack.received_number) else {
            let (number, count) = (ack.received_number, self.revisions.len());
            return self.oracle.violation(format_args!("ack of number {number}, but {count} were received"));
        };
        let programmed = self.revision(ack.programmed_number).unwrap_or_default();
        self.oracle.acked((self.epoch, received), programmed, ack, &self.kernel);
        if self.rollback.is_some_and(|revision| revision <= received) {
            self.rollback = None;
            let mut history = self.oracle.lock();
            let Some(process) = &mut history.process else { return };
            process.rollbacks += 1;
            let (expected, counted) = (process.rollbacks, process.progress.borrow().protocol.rollbacks);
            drop(history);
            if counted < expected {
                self.oracle.violation(format_args!("went back {expected} times, but counted {counted}"));
            }
        }
    }

    /// The revision of the commit or bookmark with this number.
    fn revision(&self, number: u64) -> Option<Revision> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.revisions.get(index).copied()
    }

    fn welcome(&mut self, welcome: &Welcome) {
        self.epoch = welcome.epoch;
        let (version, kinds) = self.versions;
        let is_older = welcome.source_version < version || welcome.kind_versions.older_kinds(kinds).next().is_some();
        let waited = self.oracle.trace.elapsed() - self.begun;
        let is_known = welcome.source_version != SourceVersion::default();
        let is_same = self.resume.is_some_and(|(epoch, _)| epoch == welcome.epoch);
        if is_known && is_older && !is_same && waited < CATCH_UP {
            self.oracle.violation(format_args!(
                "frontend {} has older objects than the node, but waited only {waited:?}: {:?} {:?}, not {version:?} \
                 {kinds:?}",
                welcome.epoch, welcome.source_version, welcome.kind_versions
            ));
        }
        let known = match (welcome.mode, self.resume) {
            (SyncMode::Snapshot, _) => Some((MirroredState::empty(&self.oracle.node), None)),
            (_, None) => None,
            (_, Some(position)) => {
                let history = self.oracle.lock();
                let mut known = history.indexes(position).into_iter().flatten().map(|index| &history.states[*index]);
                let known = known.find(|known| Some(known.digest) == self.claimed);
                known.map(|known| (known.state.clone(), Some(known.digest)))
            }
        };
        match known {
            Some((state, digest)) => (self.state, self.digest) = (Some(state), digest),
            None => self.oracle.violation(format_args!("resumes {:?}, whose state it does not have", self.resume)),
        }
    }

    fn bookmark(&mut self, revision: Revision, digest: Digest) {
        let Some(state) = &self.state else { return };
        let mirrored = *self.digest.get_or_insert_with(|| state.digest());
        let mut history = self.oracle.lock();
        if mirrored == digest
            && let Some(process) = &mut history.process
        {
            process.has_received = true;
        }
        let is_corrupted = history.is_corrupted;
        drop(history);
        if mirrored != digest && !is_corrupted {
            let epoch = self.epoch;
            self.oracle
                .violation(format_args!("bookmark {epoch}/{revision} has digest {digest:?}, the mirror {mirrored:?}"));
        }
        self.oracle.committed((self.epoch, revision), state, mirrored);
    }

    fn batch(&mut self, batch: &Batch) {
        self.staged.extend(batch.operations.iter().cloned());
        if !batch.commit {
            return;
        }
        let staged = std::mem::take(&mut self.staged);
        self.revisions.push(batch.target);
        let Some(state) = &mut self.state else { return };
        if !staged.is_empty() {
            staged.into_iter().for_each(|operation| state.apply(operation));
            (self.digest, state.committed_at) = (None, self.oracle.trace.elapsed());
        }
        let digest = *self.digest.get_or_insert_with(|| state.digest());
        let (version, kinds) = self.versions;
        let is_known = batch.source_version != SourceVersion::default();
        if (is_known && batch.source_version < version) || batch.kind_versions.older_kinds(kinds).next().is_some() {
            trace!(
                self.oracle.trace,
                "{}: back to {:?} {:?}", self.oracle.node, batch.source_version, batch.kind_versions
            );
            self.rollback = Some(batch.target);
        }
        if is_known {
            self.versions = (batch.source_version, kinds.updated(batch.kind_versions));
        }
        if let Some(process) = &mut self.oracle.lock().process {
            process.has_received = true;
            process.changed_at = self.oracle.trace.elapsed();
        }
        self.oracle.committed((self.epoch, batch.target), state, digest);
    }
}

/// The content hash of a service port with its pools.
fn digest_of(service: &ServicePortState) -> Digest {
    let hash = KeyHash::of(&service.port.key);
    let mut sum = Digest::of_service_port(&service.port);
    for class in PoolClass::ALL {
        for family in IpFamily::ALL {
            sum.add(hash.pool(class, service.pool(class, family)));
        }
    }
    sum
}
