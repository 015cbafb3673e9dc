//! The kernel of a node: a map, with a backend that programs it one service port at a time; or that of a real backend
//! in memory ([`real`]). Between two writes time passes, so that the process can be killed there. Each write must be a
//! state that a frontend has committed for this node.

mod real;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, bail};
use backend::{Backend, Changes, Drift, NodeState, ServicePortState, SyncReport, testing::ErrorDetail};
use fastrand::Rng;
use proto::model::{IpFamily, ServicePortFailure, ServicePortKey};
use tokio::{sync::Notify, time::sleep};

use crate::{objects, oracle::NodeOracle};
pub(crate) use real::NodeBackend;
use real::{Memory, RealBackend};

/// A service port as rules show it: none depends on established and gone pools.
pub(crate) fn without_established(service: &ServicePortState) -> ServicePortState {
    ServicePortState { established: Default::default(), gone: Default::default(), ..service.clone() }
}

/// The kernel of a node. Clones share it.
#[derive(Clone)]
pub(crate) struct SimulatedKernel {
    state: Arc<Mutex<KernelState>>,
    drift: Arc<Notify>,
    oracle: NodeOracle,
}

struct KernelState {
    rng: Rng,
    service_ports: BTreeMap<ServicePortKey, ServicePortState>,
    memory: Memory,
    /// Whether the backend has reported that it cannot program an IP family.
    is_degraded: bool,
    /// What another program has removed since the last write.
    tampered: BTreeSet<ServicePortKey>,
    writes: u64,
    /// How often another program has changed `memory`.
    memory_changes: u64,
    /// How many of these have been repaired.
    repaired_changes: u64,
    faults: KernelFaults,
    /// How much longer its next write takes.
    stall: Duration,
    /// The Services that were ever rejected, by name.
    rejected: BTreeSet<String>,
    /// Whether it ever lacked an IP family, which may reject any service port.
    has_lacked_family: bool,
}

/// What a kernel does wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelFaults {
    /// The probability that a call fails, in percent.
    pub(crate) fails: u8,
    /// The Service with this number is rejected.
    pub(crate) rejects: Option<usize>,
    /// An IP family that kernels of real backends cannot program.
    pub(crate) unsupported: Option<IpFamily>,
    /// The longest time of a write, in microseconds.
    pub(crate) slow: u64,
}

/// Programs a [`SimulatedKernel`].
pub(crate) struct SimulatedBackend {
    kernel: SimulatedKernel,
    queue: BTreeSet<ServicePortKey>,
    /// The service ports that the kernel has rejected.
    failed: BTreeSet<ServicePortKey>,
}

impl SimulatedKernel {
    pub(crate) fn new(mut rng: Rng, oracle: NodeOracle) -> Self {
        let state = KernelState {
            memory: Memory::choose(&mut rng),
            rng,
            service_ports: BTreeMap::new(),
            is_degraded: false,
            tampered: BTreeSet::new(),
            writes: 0,
            memory_changes: 0,
            repaired_changes: 0,
            faults: KernelFaults { slow: 1_000, ..KernelFaults::default() },
            stall: Duration::ZERO,
            rejected: BTreeSet::new(),
            has_lacked_family: false,
        };
        Self { state: Arc::new(Mutex::new(state)), drift: Arc::new(Notify::new()), oracle }
    }

    /// A backend as a new process has it.
    pub(crate) fn backend(&self) -> NodeBackend {
        let memory = self.lock().memory.clone();
        match memory {
            Memory::Map => NodeBackend::Map(SimulatedBackend {
                kernel: self.clone(),
                queue: BTreeSet::new(),
                failed: BTreeSet::new(),
            }),
            Memory::Nft(memory) => NodeBackend::Nft(Box::new(RealBackend::new(self.clone(), memory))),
            Memory::Iptables(memory) => NodeBackend::Iptables(Box::new(RealBackend::new(self.clone(), memory))),
            Memory::Ipvs(memory) => NodeBackend::Ipvs(Box::new(RealBackend::new(self.clone(), memory))),
        }
    }

    /// What programs it, for people.
    pub(crate) fn name(&self) -> &'static str {
        self.lock().memory.name()
    }

    /// Whether everything is repaired that another program has changed in the memory of a real backend.
    pub(crate) fn is_repaired(&self) -> bool {
        let state = self.lock();
        state.repaired_changes == state.memory_changes
    }

    /// Whether a new process finds something programmed, also if another program removes something before it looks.
    pub(crate) fn is_certainly_programmed(&self) -> bool {
        let state = self.lock();
        matches!(state.memory, Memory::Map) && state.service_ports.len() > 1
    }

    /// Whether the backend has reported that it cannot program an IP family.
    pub(crate) fn is_degraded(&self) -> bool {
        self.lock().is_degraded
    }

    pub(crate) fn service_ports(&self) -> BTreeMap<ServicePortKey, ServicePortState> {
        self.lock().service_ports.clone()
    }

    /// What another program has removed, and the backend has not restored yet.
    pub(crate) fn tampered(&self) -> BTreeSet<ServicePortKey> {
        self.lock().tampered.clone()
    }

    /// The number of writes so far.
    pub(crate) fn writes(&self) -> u64 {
        self.lock().writes
    }

    pub(crate) fn set_faults(&self, faults: KernelFaults) {
        let mut state = self.lock();
        state.faults = faults;
        state.reach_memory();
    }

    /// The next write takes this much longer.
    pub(crate) fn stall(&self, time: Duration) {
        self.lock().stall = time;
    }

    pub(crate) fn set_unsupported(&self, family: Option<IpFamily>) {
        let mut state = self.lock();
        state.faults.unsupported = family;
        state.has_lacked_family |= family.is_some();
        state.reach_memory();
    }

    pub(crate) fn set_rejects(&self, rejects: Option<usize>) {
        let mut state = self.lock();
        state.faults.rejects = rejects;
        state.rejected.extend(rejects.map(objects::service_name));
        state.reach_memory();
    }

    /// Whether it may have caused this failure. It rejects any service port whose objects are missing, too, and what a
    /// rejected Service shares with another one, such as a line for the cluster IP that one of them had before.
    fn may_cause(&self, ServicePortFailure { key, reason, .. }: &ServicePortFailure) -> bool {
        let state = self.lock();
        let is_tampered = state.repaired_changes < state.memory_changes;
        let is_rejected = |name: &String| **name == *key.name || reason.contains(name.as_str());
        is_tampered || state.has_lacked_family || state.rejected.iter().any(is_rejected)
    }

    /// The machine boots: nothing is programmed.
    pub(crate) fn reboot(&self) {
        let mut state = self.lock();
        state.service_ports.clear();
        state.tampered.clear();
        state.memory.reboot();
        state.reach_memory();
    }

    /// Another program removes a service port.
    pub(crate) fn tamper(&self) {
        let mut state = self.lock();
        let KernelState { rng, service_ports, memory, .. } = &mut *state;
        if memory.remove_any(rng.usize(..)) {
            state.memory_changes += 1;
            drop(state);
            return self.drift.notify_one();
        }
        if let Some(key) = rng.choice(service_ports.keys()).cloned() {
            service_ports.remove(&key);
            state.tampered.insert(key);
            drop(state);
            self.drift.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, KernelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KernelState {
    /// How long the next write takes.
    fn pause(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(0..=self.faults.slow)) + mem::take(&mut self.stall)
    }

    /// The memory of a real backend gets the faults.
    fn reach_memory(&mut self) {
        let Self { memory, faults, rng, .. } = self;
        memory.set_unsupported(faults.unsupported);
        let vips = faults.rejects.map(objects::vips).unwrap_or_default();
        let is_named = !vips.is_empty() && rng.bool();
        memory.reject(&vips, if is_named { ErrorDetail::Named } else { ErrorDetail::Unnamed });
    }
}

impl SimulatedBackend {
    async fn pause(&self) {
        let pause = self.kernel.lock().pause();
        sleep(pause).await;
    }

    /// Programs some service ports of the queue.
    async fn program(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.pause().await;
        let limit = {
            let KernelState { rng, faults, .. } = &mut *self.kernel.lock();
            if rng.u8(0..100) < faults.fails {
                bail!("ENOBUFS");
            }
            rng.usize(1..=8)
        };
        let mut report = SyncReport::default();
        for _ in 0..limit {
            let Some(key) = self.queue.first().cloned() else { break };
            self.pause().await;
            self.queue.pop_first();
            let mut kernel = self.kernel.lock();
            let is_rejected = kernel.faults.rejects.is_some_and(|service| *key.name == *objects::service_name(service));
            let desired = state.service_port(&key).filter(|_| !is_rejected);
            match is_rejected && state.service_port(&key).is_some() {
                true => drop(self.failed.insert(key.clone())),
                false => drop(self.failed.remove(&key)),
            }
            if kernel.service_ports.get(&key) != desired {
                let is_write =
                    kernel.service_ports.get(&key).map(without_established) != desired.map(without_established);
                report.writes += usize::from(is_write);
                kernel.writes += u64::from(is_write);
                kernel.tampered.remove(&key);
                match desired {
                    Some(desired) => drop(kernel.service_ports.insert(key.clone(), desired.clone())),
                    None => drop(kernel.service_ports.remove(&key)),
                }
                if !is_rejected {
                    self.kernel.oracle.written(&key, desired);
                }
            }
        }
        report.failures = self.failed.iter().map(failure).collect();
        report.unfinished = (!self.queue.is_empty()).then(|| self.queue.clone());
        Ok(report)
    }
}

impl Backend for SimulatedBackend {
    const NAME: &'static str = "simulated";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.queue = self.kernel.lock().service_ports.keys().chain(state.service_ports().keys()).cloned().collect();
        self.program(state).await
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        Ok(!self.kernel.lock().service_ports.is_empty())
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        self.queue.extend(changes.service_ports.iter().cloned());
        self.program(state).await
    }

    async fn drifted(&mut self) -> Drift {
        self.kernel.drift.notified().await;
        Drift::Possible
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.kernel.lock().service_ports.clear();
        Ok(())
    }
}

fn failure(key: &ServicePortKey) -> ServicePortFailure {
    ServicePortFailure::rejected(key.clone(), "EINVAL")
}
