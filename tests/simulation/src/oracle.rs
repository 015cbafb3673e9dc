//! What must be true at any time, for each node. It follows every stream with a mirror of its own: operations are
//! applied one after the other, without the code of the backend.
//!
//! - The digest of a bookmark, and that of an Ack, is that of the mirrored state.
//! - A process begins with the last complete commit in the state file, and a call of its backend programs exactly the
//!   state that it had committed last by then. Two cases are excepted, and reported by the process: service ports whose
//!   loss is withheld keep an earlier state of the same process; after a restart of the node, its former endpoints are
//!   left out until a frontend has confirmed the state.
//! - A process on a kernel that is programmed writes nothing until a frontend has answered, or for ten seconds.
//! - An Ack means that each service port in the kernel, except for its failures, is that of the programmed state or of
//!   a later one.
//! - No state has a VIP twice, or an endpoint that its Service never had.
//! - A commit with older objects than the one before is counted, and follows only after the frontend has waited.

mod mirror;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZeroU16,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backend::{Progress, ServicePortState};
use proto::{
    digest::Digest,
    model::{Ack, Epoch, Hello, Revision, ServicePort, ServicePortKey},
};
use tokio::sync::watch;

use crate::{kernel::SimulatedKernel, objects, trace::Trace};
pub(crate) use mirror::{MirroredState, ServicePorts, StreamMirror};

/// For how long after a loss was withheld the kernel may still contain what it was.
const AFTER_WITHHELD: Duration = Duration::from_secs(5);

/// How long a process leaves a kernel that is programmed as it is, unless a frontend answers.
const ADOPTION: Duration = Duration::from_secs(10);

/// What a process starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessStart {
    /// The position of the state file.
    pub(crate) stored: Option<Position>,
    /// Whether the node has restarted since a frontend confirmed the state, as far as the process can tell.
    pub(crate) is_unconfirmed: bool,
    /// Whether the kernel is programmed.
    pub(crate) adopts: bool,
}

/// The oracle of a node. Clones share it.
#[derive(Clone)]
pub(crate) struct NodeOracle {
    node: Arc<str>,
    trace: Trace,
    history: Arc<Mutex<NodeHistory>>,
}

/// The position in a stream.
pub(crate) type Position = (Epoch, Revision);

#[derive(Default)]
struct NodeHistory {
    /// In the order of their commits by any frontend; consecutive ones differ.
    states: Vec<Arc<KnownState>>,
    /// The indexes of the states of each revision. There are several only after lost operations.
    by_revision: BTreeMap<(u64, Revision), Vec<usize>>,
    process: Option<ProcessHistory>,
    /// How often a process has started.
    starts: u64,
    /// Whether operations have been lost on the way to the node, so that digests differ.
    is_corrupted: bool,
}

/// A state with its digest.
struct KnownState {
    state: MirroredState,
    digest: Digest,
}

/// The process that runs on the node.
struct ProcessHistory {
    progress: watch::Receiver<Progress>,
    /// What it was when the backend was last called.
    called: Progress,
    /// What it must begin with.
    start: Option<Position>,
    /// The index of that state.
    begin: usize,
    /// Whether the node has restarted since a frontend confirmed the state, as far as the process can tell.
    is_unconfirmed: bool,
    /// Before this time, in that of the simulation, nothing is written unless a frontend has answered.
    may_write_at: Duration,
    /// Whether a frontend has committed or confirmed anything.
    has_received: bool,
    /// When it last started, or received a change, in the time of the simulation.
    changed_at: Duration,
    /// The acknowledged commits with older objects than the one before.
    rollbacks: u64,
    /// When a loss was last withheld, in the time of the simulation.
    withheld_at: Option<Duration>,
}

impl ProcessHistory {
    /// Whether service ports keep endpoints that are not committed, or do not have some that are.
    fn is_withholding(&self) -> bool {
        is_withholding(&self.progress.borrow())
    }
}

fn is_withholding(progress: &Progress) -> bool {
    progress.losses.withheld_service_ports > 0 || progress.losses.unconfirmed_service_ports > 0
}

impl NodeOracle {
    pub(crate) fn new(node: &str, trace: Trace) -> Self {
        Self { node: node.into(), trace, history: Arc::default() }
    }

    /// A process starts.
    pub(crate) fn process_started(&self, progress: watch::Receiver<Progress>, start: ProcessStart) {
        let ProcessStart { stored: start, is_unconfirmed, adopts } = start;
        let mut history = self.lock();
        // After a lost operation the file may contain the earlier of two states.
        let begin = start.and_then(|start| history.indexes(start)?.first().copied()).unwrap_or_default();
        history.starts += 1;
        history.process = Some(ProcessHistory {
            progress,
            called: Progress::default(),
            start,
            begin,
            is_unconfirmed,
            may_write_at: self.trace.elapsed() + if adopts { ADOPTION } else { Duration::ZERO },
            has_received: false,
            changed_at: self.trace.elapsed(),
            rollbacks: 0,
            withheld_at: None,
        });
    }

    /// The progress has changed: a loss is withheld.
    pub(crate) fn withholding(&self) {
        if let Some(process) = &mut self.lock().process {
            process.withheld_at = Some(self.trace.elapsed());
        }
    }

    /// A stream begins.
    pub(crate) fn stream(&self, hello: &Hello, kernel: &SimulatedKernel) -> StreamMirror {
        let history = self.lock();
        if let Some(process) = history.process.as_ref().filter(|process| !process.has_received)
            && !history.is_corrupted
            && hello.resume != process.start
        {
            let start = process.start;
            drop(history);
            self.violation(format_args!("the process resumes {:?}, but the file contains {start:?}", hello.resume));
        }
        StreamMirror::new(self.clone(), hello, kernel.clone(), self.trace.elapsed())
    }

    /// An operation was lost on its way to the node.
    pub(crate) fn operation_lost(&self) {
        self.lock().is_corrupted = true;
    }

    /// The backend is called with the newest state.
    pub(crate) fn called(&self) {
        if let Some(process) = &mut self.lock().process {
            process.called = process.progress.borrow().clone();
        }
    }

    /// A service port is written to the kernel.
    pub(crate) fn written(&self, key: &ServicePortKey, service: Option<&ServicePortState>) {
        if let Err(reason) = self.lock().check_write(key, service, self.trace.elapsed()) {
            self.violation(format_args!("the kernel got {key}, {reason}: {service:?}"));
        }
    }

    /// What must be true between two steps.
    pub(crate) fn check(&self) {
        let history = self.lock();
        let Some(process) = history.process.as_ref().filter(|_| !history.is_corrupted) else { return };
        let protocol = process.progress.borrow().protocol;
        drop(history);
        if protocol.digest_mismatches > 0 || protocol.rejected_operations > 0 {
            self.violation(format_args!("nothing was lost, but the node reports {protocol:?}"));
        }
    }

    /// The process ends, whose disk is healthy: what it committed longer than `lag` ago is in the file.
    pub(crate) fn ended(&self, stored: Option<Position>, lag: Duration) {
        let history = self.lock();
        let Some(process) = &history.process else { return };
        let progress = process.progress.borrow().clone();
        let was_withholding = process.withheld_at.is_some_and(|at| self.trace.elapsed() < at + 4 * lag);
        let Some(committed) = progress.committed.filter(|_| !process.is_withholding() && !was_withholding) else {
            return;
        };
        let states =
            |position| history.indexes(position).into_iter().flatten().map(|index| &history.states[*index].state);
        let Some(expected) = states(committed).next() else { return };
        let (now, committed_at) = (self.trace.elapsed(), expected.committed_at);
        // What was committed long ago must be in the file, perhaps as an equal state at another position.
        if committed_at.max(process.changed_at) + lag < now
            && !stored.is_some_and(|stored| states(stored).any(|state| state == expected))
            && stored != Some(committed)
        {
            drop(history);
            self.violation(format_args!(
                "{committed:?} was committed at {committed_at:?}, but the file has {stored:?}"
            ));
        }
    }

    /// How often a process has started.
    pub(crate) fn starts(&self) -> u64 {
        self.lock().starts
    }

    /// Whether some service ports may be of another state than the rest, so that two may have the same VIP.
    pub(crate) fn is_mixed(&self) -> bool {
        let history = self.lock();
        let is_mixed = |process: &ProcessHistory| process.is_withholding() || is_withholding(&process.called);
        history.is_corrupted || history.process.as_ref().is_some_and(is_mixed)
    }

    /// The number of committed states.
    pub(crate) fn commits(&self) -> usize {
        self.lock().states.len()
    }

    /// An invariant is violated on this node.
    pub(crate) fn violation(&self, text: std::fmt::Arguments<'_>) {
        self.trace.violation(format_args!("{}: {text}", self.node));
    }

    /// The node sends an Ack of this commit or bookmark, of which everything up to `programmed` is in its kernel.
    fn acked(&self, received: Position, programmed: Revision, ack: &Ack, kernel: &SimulatedKernel) {
        let Ack { failures, digest, .. } = ack;
        let (epoch, received) = received;
        let history = self.lock();
        let Some(indexes) = history.indexes((epoch, received)) else {
            drop(history);
            return self.violation(format_args!("ack of {epoch}/{received}, which is not committed"));
        };
        let digests: Vec<_> = indexes.iter().map(|index| history.states[*index].digest).collect();
        if digest.is_none_or(|digest| !digests.contains(&digest)) {
            drop(history);
            return self
                .violation(format_args!("ack of {epoch}/{received} with {digest:?}, the state has {digests:?}"));
        }
        let Some(process) = &history.process else { return };
        {
            let progress = process.progress.borrow();
            let was_withheld = process.withheld_at.is_some_and(|at| self.trace.elapsed() < at + AFTER_WITHHELD);
            let is_partial =
                progress.losses.withheld_service_ports > 0 || progress.losses.unconfirmed_service_ports > 0;
            if was_withheld || is_partial || kernel.is_degraded() {
                return;
            }
        }
        let known = history.by_revision.range((epoch.0, Revision(0))..=(epoch.0, programmed)).next_back();
        let Some(first) = known.and_then(|(_, indexes)| indexes.first()) else { return };
        let later = &history.states[*first..];
        let (kernel, tampered) = (kernel.service_ports(), kernel.tampered());
        let failed: BTreeSet<_> = failures.iter().map(|failure| &failure.key).chain(&tampered).collect();
        let keys = kernel.keys().chain(later.iter().flat_map(|known| known.state.service_ports.keys()));
        let keys: BTreeSet<_> = keys.filter(|key| !failed.contains(key)).collect();
        // Later commits may be programmed already, as a whole or in part.
        let differs = |key: &&&ServicePortKey| {
            !later.iter().any(|known| known.state.service_ports.get(**key) == kernel.get(**key))
        };
        if let Some(key) = keys.iter().find(differs) {
            let text =
                format!("{key} is {:?}\n  expected {:?}", kernel.get(key), later[0].state.service_ports.get(key));
            drop(history);
            self.violation(format_args!(
                "ack of {epoch}/{received}, programmed {programmed}, but in the kernel {text}"
            ));
        }
    }

    /// A frontend has committed a state.
    fn committed(&self, position: Position, state: &MirroredState, digest: Digest) {
        let mut history = self.lock();
        let mut invalid = None;
        if history.states.last().is_none_or(|last| last.digest != digest || last.state != *state) {
            // An operation that was lost may have been the one that removes a VIP.
            invalid = objects::invalid(&self.node, &state.service_ports).filter(|_| !history.is_corrupted);
            history.states.push(Arc::new(KnownState { state: state.clone(), digest }));
        }
        let index = history.states.len() - 1;
        let indexes = history.by_revision.entry((position.0.0, position.1)).or_default();
        if indexes.last() != Some(&index) {
            indexes.push(index);
        }
        drop(history);
        if let Some(invalid) = invalid {
            self.violation(format_args!("a frontend committed {invalid}"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, NodeHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeHistory {
    fn indexes(&self, (epoch, revision): Position) -> Option<&[usize]> {
        self.by_revision.get(&(epoch.0, revision)).map(Vec::as_slice)
    }

    fn check_write(
        &self,
        key: &ServicePortKey,
        service: Option<&ServicePortState>,
        now: Duration,
    ) -> Result<(), String> {
        let process = self.process.as_ref().ok_or("of no process")?;
        let progress = &process.called;
        let position = progress.committed.ok_or("before anything was committed")?;
        if !process.has_received && Some(position) != process.start {
            return Err(format!("of {position:?}, but the file contained {:?}", process.start));
        }
        if !process.has_received && now < process.may_write_at {
            return Err("before a frontend has answered, although it was programmed".to_owned());
        }
        let indexes = self.indexes(position).ok_or("of an unknown state")?;
        let states = || indexes.iter().map(|index| &self.states[*index].state);
        let is_exact = states().any(|state| state.service_ports.get(key) == service);
        if let Some(service) = service.filter(|_| process.is_unconfirmed && !process.has_received)
            && states().all(|state| has_former_endpoint(service, state, key))
        {
            return Err("with an endpoint from before the restart of the node".to_owned());
        }
        if is_exact {
            return Ok(());
        }
        let Some(service) = service else { return Err("removed, although it is committed".to_owned()) };
        let is_part_of = |state: &MirroredState| {
            state.service_ports.get(key).is_some_and(|whole| service == whole || is_part(service, whole))
        };
        if progress.losses.unconfirmed_service_ports > 0 && states().any(is_part_of) {
            return Ok(());
        }
        let has_lost = |state: &MirroredState| {
            let same = |other: &ServicePortKey| other.namespace == key.namespace && other.name == key.name;
            let mut ports = state.service_ports.iter().filter(|(other, _)| same(other));
            ports
                .all(|(_, service)| service.cluster.iter().chain(service.local.iter()).all(|(_, pool)| pool.is_empty()))
        };
        if progress.losses.withheld_service_ports > 0
            && states().any(has_lost)
            && self.states[process.begin..].iter().any(|known| {
                let whole = known.state.service_ports.get(key);
                whole.is_some_and(|whole| states().any(|state| is_part(service, &without_taken(whole, service, state))))
            })
        {
            return Ok(());
        }
        let committed = states().next_back().and_then(|state| state.service_ports.get(key));
        Err(format!("which is not what {position:?} has, {committed:?}"))
    }
}

/// Whether a service port has an endpoint that a state has on its node, and that is not an address of the node.
fn has_former_endpoint(service: &ServicePortState, state: &MirroredState, key: &ServicePortKey) -> bool {
    let Some(committed) = state.service_ports.get(key) else { return false };
    let former = committed.local.iter().flat_map(|(_, pool)| pool.iter());
    let former: BTreeSet<_> =
        former.filter(|endpoint| objects::is_pod(endpoint.address)).map(|it| (it.address, it.port)).collect();
    let mut used = service.cluster.iter().chain(service.local.iter()).flat_map(|(_, pool)| pool.iter());
    used.any(|endpoint| former.contains(&(endpoint.address, endpoint.port)))
}

/// Whether a service port has only endpoints of another one, and is equal otherwise.
fn is_part(part: &ServicePortState, whole: &ServicePortState) -> bool {
    let any_endpoints = part.port.any_endpoints;
    let mut pools = part.cluster.iter().zip(whole.cluster.iter()).chain(part.local.iter().zip(whole.local.iter()));
    part.port == ServicePort { any_endpoints, ..whole.port.clone() }
        && pools.all(|((_, part), (_, whole))| part.iter().all(|endpoint| whole.contains(endpoint)))
}

/// A withheld service port without what it lacks because another one has that in the committed state.
fn without_taken(whole: &ServicePortState, part: &ServicePortState, committed: &MirroredState) -> ServicePortState {
    let mut without = whole.clone();
    let ServicePort { key, port, .. } = &whole.port;
    let others = || committed.service_ports.values().map(|other| &other.port).filter(|other| other.key != *key);
    let is_free = |ip: &IpAddr| {
        let mut same = others().filter(|other| (other.port, other.key.protocol) == (*port, key.protocol));
        !same.any(|other| vips(other).any(|vip| vip == *ip))
    };
    let is_free_cluster_ip = |ip: &IpAddr| {
        let is_other = |other: &ServicePortKey| (&other.namespace, &other.name) != (&key.namespace, &key.name);
        let mut ports = others().filter(|other| is_other(&other.key));
        is_free(ip) && !ports.any(|other| other.cluster_ips.iter().any(|(_, other)| *other == Some(*ip)))
    };
    let is_free_number = |number: &NonZeroU16| {
        !others().any(|other| other.node_port == Some(*number) || other.health_check_node_port == Some(*number))
    };
    let (had, has) = (&mut without.port, &part.port);
    had.external_ips.retain(|ip| has.external_ips.contains(ip) || is_free(ip));
    had.load_balancer_ips.retain(|ip| has.load_balancer_ips.contains(ip) || is_free(ip));
    for (had, has) in [(&mut had.cluster_ips.v4, has.cluster_ips.v4), (&mut had.cluster_ips.v6, has.cluster_ips.v6)] {
        *had = had.filter(|ip| has.is_some() || is_free_cluster_ip(ip));
    }
    had.node_port = had.node_port.filter(|number| has.node_port.is_some() || is_free_number(number));
    let health_check = had.health_check_node_port;
    had.health_check_node_port =
        health_check.filter(|number| has.health_check_node_port.is_some() || is_free_number(number));
    without
}

fn vips(service_port: &ServicePort) -> impl Iterator<Item = IpAddr> {
    let ServicePort { cluster_ips, external_ips, load_balancer_ips, .. } = service_port;
    let others = external_ips.iter().chain(load_balancer_ips).copied();
    [cluster_ips.v4, cluster_ips.v6].into_iter().flatten().chain(others)
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
