//! The real backends over kernels in memory. After each call that programs everything, the kernel must contain what a
//! new backend would write into an empty one; what the service ports in it are, follows from that.

use std::{collections::BTreeSet, mem};

use anyhow::{Result, bail};
use backend::{
    Backend, Changes, Drift, NodeState, SyncReport,
    dataplane::Vip,
    testing::{ErrorDetail, Gate, MemoryKernel, ProgramAll as _},
};
use fastrand::Rng;
use proto::model::{IpFamily, ServicePortFailure, ServicePortKey};
use tokio::time::sleep;

use super::{SimulatedBackend, SimulatedKernel};
use crate::oracle::NodeOracle;

/// What a node's kernel consists of.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    /// A map of service ports.
    Map,
    Nft(backend_nft::Memory),
    Iptables(backend_iptables::Memory),
    Ipvs(backend_ipvs::Memory),
}

/// The backend of a node.
pub(crate) enum NodeBackend {
    Map(SimulatedBackend),
    Nft(Box<RealBackend<backend_nft::Memory>>),
    Iptables(Box<RealBackend<backend_iptables::Memory>>),
    Ipvs(Box<RealBackend<backend_ipvs::Memory>>),
}

/// A real backend, with what it has reported.
pub(crate) struct RealBackend<M: MemoryKernel> {
    kernel: SimulatedKernel,
    memory: M,
    backend: M::Backend,
    /// The service ports that may not be programmed.
    queue: BTreeSet<ServicePortKey>,
    /// How often another program had changed the kernel before it was read.
    read_at: u64,
}

impl Memory {
    /// Most nodes have a map, which is fast.
    pub(super) fn choose(rng: &mut Rng) -> Self {
        match rng.u8(0..16) {
            0..3 => Self::Nft(Default::default()),
            3..5 => Self::Iptables(Default::default()),
            5 => Self::Ipvs(Default::default()),
            _ => Self::Map,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Map => SimulatedBackend::NAME,
            Self::Nft(_) => <backend_nft::Memory as MemoryKernel>::Backend::NAME,
            Self::Iptables(_) => <backend_iptables::Memory as MemoryKernel>::Backend::NAME,
            Self::Ipvs(_) => <backend_ipvs::Memory as MemoryKernel>::Backend::NAME,
        }
    }

    /// The machine boots.
    pub(super) fn reboot(&self) {
        match self {
            Self::Map => {}
            Self::Nft(memory) => memory.reboot(),
            Self::Iptables(memory) => memory.reboot(),
            Self::Ipvs(memory) => memory.reboot(),
        }
    }

    /// It cannot program this IP family from now on.
    pub(super) fn set_unsupported(&self, family: Option<IpFamily>) {
        match self {
            Self::Map => {}
            Self::Nft(memory) => memory.set_unsupported(family),
            Self::Iptables(memory) => memory.set_unsupported(family),
            Self::Ipvs(memory) => memory.set_unsupported(family),
        }
    }

    /// It rejects new objects of these VIPs from now on.
    pub(super) fn reject(&self, vips: &BTreeSet<Vip>, detail: ErrorDetail) {
        match self {
            Self::Map => {}
            Self::Nft(memory) => memory.reject(vips, detail),
            Self::Iptables(memory) => memory.reject(vips, detail),
            Self::Ipvs(memory) => memory.reject(vips, detail),
        }
    }

    /// Another program removes an object. Whether there is one.
    pub(super) fn remove_any(&self, number: usize) -> bool {
        match self {
            Self::Map => false,
            Self::Nft(memory) => memory.remove_any(number),
            Self::Iptables(memory) => memory.remove_any(number),
            Self::Ipvs(memory) => memory.remove_any(number),
        }
    }
}

impl NodeBackend {
    fn oracle(&self) -> &NodeOracle {
        match self {
            Self::Map(backend) => &backend.kernel.oracle,
            Self::Nft(backend) => &backend.kernel.oracle,
            Self::Iptables(backend) => &backend.kernel.oracle,
            Self::Ipvs(backend) => &backend.kernel.oracle,
        }
    }
}

impl Backend for NodeBackend {
    const NAME: &'static str = SimulatedBackend::NAME;

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.oracle().called();
        match self {
            Self::Map(backend) => backend.reconcile(state).await,
            Self::Nft(backend) => backend.reconcile(state).await,
            Self::Iptables(backend) => backend.reconcile(state).await,
            Self::Ipvs(backend) => backend.reconcile(state).await,
        }
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        match self {
            Self::Map(backend) => backend.is_programmed().await,
            Self::Nft(backend) => backend.backend.is_programmed().await,
            Self::Iptables(backend) => backend.backend.is_programmed().await,
            Self::Ipvs(backend) => backend.backend.is_programmed().await,
        }
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        self.oracle().called();
        match self {
            Self::Map(backend) => backend.apply(state, changes).await,
            Self::Nft(backend) => backend.apply(state, changes).await,
            Self::Iptables(backend) => backend.apply(state, changes).await,
            Self::Ipvs(backend) => backend.apply(state, changes).await,
        }
    }

    async fn drifted(&mut self) -> Drift {
        match self {
            Self::Map(backend) => backend.drifted().await,
            Self::Nft(backend) => backend.backend.drifted().await,
            Self::Iptables(backend) => backend.backend.drifted().await,
            Self::Ipvs(backend) => backend.backend.drifted().await,
        }
    }

    async fn cleanup(&mut self) -> Result<()> {
        bail!("no simulation cleans up")
    }
}

impl<M: MemoryKernel> RealBackend<M> {
    pub(super) fn new(kernel: SimulatedKernel, memory: M) -> Self {
        let gate = {
            let (kernel, drift) = (kernel.clone(), kernel.drift.clone());
            Gate::new(move || Box::pin(pass(kernel.clone())), drift)
        };
        let backend = memory.backend(gate);
        Self { kernel, memory, backend, queue: BTreeSet::new(), read_at: 0 }
    }

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        {
            let kernel = self.kernel.lock();
            self.queue = kernel.service_ports.keys().chain(state.service_ports().keys()).cloned().collect();
            self.read_at = kernel.memory_changes;
        }
        let report = self.backend.reconcile(state).await?;
        self.programmed(state, report).await
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        self.queue.extend(changes.service_ports.iter().cloned());
        let report = self.backend.apply(state, changes).await?;
        self.programmed(state, report).await
    }

    /// Records what a report says, and checks whether that is true.
    async fn programmed(&mut self, state: &NodeState, report: SyncReport) -> Result<SyncReport> {
        let is_mixed = self.kernel.oracle.is_mixed();
        let has_reason = |failure: &&ServicePortFailure| {
            if failure.retryable { self.kernel.may_cause(failure) } else { is_mixed }
        };
        if let Some(failure) = report.failures.iter().find(|failure| !has_reason(failure)) {
            self.kernel.oracle.violation(format_args!("the kernel has not caused {failure:?}"));
        }
        let failed = report.failures.iter().map(|failure| &failure.key);
        let missing: BTreeSet<_> = report.unfinished.iter().flatten().chain(failed).cloned().collect();
        let is_degraded = !report.unusable_families.is_empty();
        let done = mem::take(&mut self.queue);
        {
            let mut kernel = self.kernel.lock();
            kernel.is_degraded = is_degraded;
            kernel.writes += report.writes as u64;
            for key in done {
                let desired = state.service_port(&key);
                if is_degraded || missing.contains(&key) {
                    self.queue.insert(key);
                } else if kernel.service_ports.get(&key) != desired {
                    match desired {
                        Some(desired) => drop(kernel.service_ports.insert(key.clone(), desired.clone())),
                        None => drop(kernel.service_ports.remove(&key)),
                    }
                    self.kernel.oracle.written(&key, desired);
                }
            }
        }
        if report.unfinished.is_none() && !is_degraded {
            let is_repaired = {
                let mut kernel = self.kernel.lock();
                kernel.repaired_changes = self.read_at;
                kernel.memory_changes == self.read_at
            };
            if is_repaired && report.failures.is_empty() {
                self.compare(state).await?;
            }
        }
        Ok(report)
    }

    /// Compares the kernel with one into which a new backend has written this state.
    async fn compare(&self, state: &NodeState) -> Result<()> {
        let expected = M::default();
        let report = expected.backend(Gate::open()).reconcile_all(state).await?;
        if !report.failures.is_empty() {
            return Ok(());
        }
        let (is, expected) = (self.memory.content(), expected.content());
        if is != expected {
            let surplus: Vec<_> = is.iter().filter(|object| !expected.contains(object)).collect();
            let missing: Vec<_> = expected.iter().filter(|object| !is.contains(object)).collect();
            let name = M::Backend::NAME;
            self.kernel.oracle.violation(format_args!(
                "{name} reported success, but the kernel\n  contains {surplus:#?}\n  lacks {missing:#?}"
            ));
        }
        Ok(())
    }
}

/// Time passes around a call, which may fail.
async fn pass(kernel: SimulatedKernel) -> Result<()> {
    let (pause, fails) = {
        let mut kernel = kernel.lock();
        let (pause, fails) = (kernel.pause(), kernel.faults.fails);
        (pause, kernel.rng.u8(0..100) < fails)
    };
    sleep(pause).await;
    if fails {
        bail!("ENOBUFS");
    }
    Ok(())
}
