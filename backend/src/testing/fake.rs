//! A backend whose kernel is a map. It can fail, reject single service ports, be slow, program a large change in
//! several calls, and write half of a service port.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Result, bail};
use proto::{
    model::{ClusterInfo, IpFamily, NodeInfo, ServicePortFailure, ServicePortKey},
    state::ServicePorts,
};
use tokio::sync::{Notify, watch};

use crate::{Backend, Changes, Drift, NodeState, ServicePortState, SyncReport};

/// Programs a [`FakeKernel`]. A second backend may program the same kernel, as after a restart.
#[derive(Debug)]
pub struct FakeBackend {
    kernel: FakeKernel,
    knowledge: Knowledge,
    /// The service ports that are not programmed yet.
    queue: BTreeSet<ServicePortKey>,
}

/// The content of a kernel. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    inner: Arc<Mutex<FakeContent>>,
    /// The number of finished calls.
    ended: watch::Sender<usize>,
    drift: Arc<Notify>,
}

/// A finished call of a [`FakeBackend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `reconcile`, with its writes.
    Reconcile(usize),
    /// `apply`, with its writes.
    Apply(usize),
    /// `cleanup`.
    Cleanup,
    /// Any call, after [`FakeKernel::fail`].
    Failed,
}

/// How a call ends that has written half of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TornWrite {
    /// It reports the service port as unfinished.
    Unfinished,
    /// It fails.
    Failed,
}

/// Whether the kernel is known to contain the last state: the precondition of `apply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    Unknown,
    Known,
}

#[derive(Debug, Default)]
struct FakeContent {
    facts: Option<(NodeInfo, ClusterInfo)>,
    service_ports: ServicePorts,
    rejected: BTreeMap<ServicePortKey, ServicePortFailure>,
    unusable_families: Vec<(IpFamily, String)>,
    failing: Option<String>,
    torn: Option<TornWrite>,
    delay: Duration,
    report_delay: Duration,
    /// The most service ports that a call programs.
    limit: Option<usize>,
    calls: Vec<Call>,
}

impl FakeKernel {
    /// A new backend on this kernel.
    #[must_use]
    pub fn backend(&self) -> FakeBackend {
        FakeBackend { kernel: self.clone(), knowledge: Knowledge::Unknown, queue: BTreeSet::new() }
    }

    /// The programmed service ports.
    #[must_use]
    pub fn service_ports(&self) -> ServicePorts {
        self.lock().service_ports.clone()
    }

    /// The finished calls, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// Waits until this many calls have finished.
    pub async fn calls_reach(&self, count: usize) {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|ended| *ended >= count).await.expect("the kernel owns the sender");
    }

    /// Makes all further calls fail with this reason.
    pub fn fail(&self, reason: &str) {
        self.lock().failing = Some(reason.to_owned());
    }

    /// Makes calls succeed again.
    pub fn recover(&self) {
        self.lock().failing = None;
    }

    /// Rejects a service port from now on.
    pub fn reject(&self, failure: ServicePortFailure) {
        self.lock().rejected.insert(failure.key.clone(), failure);
    }

    /// Accepts a service port again.
    pub fn accept(&self, key: &ServicePortKey) {
        self.lock().rejected.remove(key);
    }

    /// Makes further calls leave out a family, for this reason.
    pub fn leave_out(&self, family: IpFamily, reason: &str) {
        self.lock().unusable_families = vec![(family, reason.to_owned())];
    }

    /// Makes the next call write half of the first service port that it has to program, and then end.
    pub fn tear(&self, torn: TornWrite) {
        self.lock().torn = Some(torn);
    }

    /// Makes each call take this long after it has written, until it reports.
    pub fn slow_reports(&self, delay: Duration) {
        self.lock().report_delay = delay;
    }

    /// Makes each call take this long.
    pub fn slow(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    /// Lets each call program at most this many service ports.
    pub fn limit(&self, service_ports: usize) {
        self.lock().limit = Some(service_ports);
    }

    /// Removes a service port as another process would, and notifies the backend of drift.
    pub fn lose(&self, key: &ServicePortKey) {
        self.lock().service_ports.remove(key);
        self.drift.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, FakeContent> {
        self.inner.lock().expect("no panic while locked")
    }

    fn end(&self, call: Call) {
        let mut inner = self.lock();
        inner.calls.push(call);
        self.ended.send_replace(inner.calls.len());
    }

    async fn wait(&self) {
        let delay = self.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// Waits, or fails, as configured.
    async fn begin(&self) -> Result<()> {
        self.wait().await;
        let failing = self.lock().failing.clone();
        if let Some(reason) = failing {
            self.end(Call::Failed);
            bail!("{reason}");
        }
        Ok(())
    }

    /// Lets the kernel take a part of the queue, and waits or fails after that, as configured.
    async fn program(
        &self,
        state: &NodeState,
        queue: &mut BTreeSet<ServicePortKey>,
        has_facts: bool,
    ) -> Result<SyncReport> {
        let (result, delay) = {
            let mut inner = self.lock();
            let mut result = inner.set(state, queue);
            if has_facts && let Ok(writes) = &mut result {
                *writes += inner.set_facts(state);
            }
            (result.map(|writes| inner.report(state, writes, queue)), inner.report_delay)
        };
        if result.is_err() {
            self.end(Call::Failed);
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        result
    }
}

impl FakeContent {
    /// Makes the first service ports of a queue equal to those of the state. Returns how many differed.
    fn set(&mut self, state: &NodeState, queue: &mut BTreeSet<ServicePortKey>) -> Result<usize> {
        if let Some(key) = queue.first()
            && let Some(torn) = self.torn.take()
        {
            let whole = state.service_port(key).or(self.service_ports.get(key)).cloned();
            whole.map(half).into_iter().for_each(|half| drop(self.service_ports.insert(half)));
            return match torn {
                TornWrite::Unfinished => Ok(1),
                TornWrite::Failed => bail!("failed halfway"),
            };
        }

        let mut writes = 0;
        let limit = self.limit.unwrap_or(usize::MAX);
        for key in std::iter::from_fn(|| queue.pop_first()).take(limit) {
            let desired = state.service_port(&key).filter(|_| !self.rejected.contains_key(&key));
            if self.service_ports.get(&key) != desired {
                writes += 1;
                match desired {
                    Some(service) => drop(self.service_ports.insert(service.clone())),
                    None => drop(self.service_ports.remove(&key)),
                }
            }
        }
        Ok(writes)
    }

    fn set_facts(&mut self, state: &NodeState) -> usize {
        let facts = Some((state.node().clone(), state.cluster().clone()));
        usize::from(std::mem::replace(&mut self.facts, facts.clone()) != facts)
    }

    fn report(&self, state: &NodeState, writes: usize, queue: &BTreeSet<ServicePortKey>) -> SyncReport {
        let failures = self.rejected.values().filter(|failure| state.service_port(&failure.key).is_some());
        let unfinished = (!queue.is_empty()).then(|| queue.clone());
        let (failures, unusable_families) = (failures.cloned().collect(), self.unusable_families.clone());
        SyncReport { writes, failures, unfinished, unusable_families, ..SyncReport::default() }
    }
}

/// The service port with half of its endpoints, as a transaction leaves it that is followed by another one.
fn half(mut service: ServicePortState) -> ServicePortState {
    let pools: Vec<_> = service.pools().map(|(class, family, pool)| (class, family, pool.clone())).collect();
    for (class, family, pool) in pools {
        for endpoint in pool.iter().step_by(2) {
            service.pool_mut(class, family).remove(endpoint);
        }
    }
    service
}

impl Backend for FakeBackend {
    const NAME: &'static str = "fake";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.knowledge = Knowledge::Unknown;
        self.kernel.begin().await?;
        self.queue = self.kernel.service_ports().keys().chain(state.service_ports().keys()).cloned().collect();
        let report = self.kernel.program(state, &mut self.queue, true).await?;
        self.kernel.end(Call::Reconcile(report.writes));
        self.knowledge = Knowledge::Known;
        Ok(report)
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        self.kernel.wait().await;
        Ok(self.kernel.lock().facts.is_some())
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        assert_eq!(self.knowledge, Knowledge::Known, "apply must follow a success");
        self.knowledge = Knowledge::Unknown;
        self.kernel.begin().await?;
        self.queue.extend(changes.service_ports.iter().cloned());
        let report = self.kernel.program(state, &mut self.queue, changes.node || changes.cluster).await?;
        self.kernel.end(Call::Apply(report.writes));
        self.knowledge = Knowledge::Known;
        Ok(report)
    }

    async fn drifted(&mut self) -> Drift {
        self.kernel.drift.notified().await;
        Drift::Changed { object: "service".into(), process: "test".into(), pid: 1 }
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.knowledge = Knowledge::Unknown;
        self.kernel.begin().await?;
        {
            let mut inner = self.kernel.lock();
            inner.service_ports = ServicePorts::default();
            inner.facts = None;
        }
        self.kernel.end(Call::Cleanup);
        Ok(())
    }
}
