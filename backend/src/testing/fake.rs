//! A backend whose kernel is a map, which can be told to fail, to refuse single service ports, and to be slow.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Result, bail};
use proto::model::{ClusterInfo, NodeInfo, ServicePortFailure, ServicePortKey};
use tokio::sync::{Notify, watch};

use crate::{Backend, Changes, Drift, NodeState, ServicePortState, SyncReport};

/// Programs a [`FakeKernel`]. Several in a row may program the same one, as after restarts.
#[derive(Debug)]
pub struct FakeBackend {
    kernel: FakeKernel,
    trusts: Trust,
}

/// What there would be in a kernel. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    inner: Arc<Mutex<Inner>>,
    /// Counts the calls that have ended.
    ended: watch::Sender<usize>,
    lost: Arc<Notify>,
}

/// One call of a [`FakeBackend`] that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `reconcile`, with its writes.
    Reconcile(usize),
    /// `apply`, with its writes.
    Apply(usize),
    /// `cleanup`.
    Cleanup,
    /// Any of them, as told by [`FakeKernel::fail`].
    Failed,
}

/// Whether the kernel is known to hold the last state that was passed in: the condition for `apply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Unknown,
    Known,
}

#[derive(Debug, Default)]
struct Inner {
    facts: Option<(NodeInfo, ClusterInfo)>,
    services: BTreeMap<ServicePortKey, ServicePortState>,
    poison: BTreeMap<ServicePortKey, ServicePortFailure>,
    failing: Option<String>,
    delay: Duration,
    calls: Vec<Call>,
}

// === impl FakeKernel ===

impl FakeKernel {
    /// A new backend on this kernel.
    #[must_use]
    pub fn backend(&self) -> FakeBackend {
        FakeBackend { kernel: self.clone(), trusts: Trust::Unknown }
    }

    /// The service ports that are programmed.
    #[must_use]
    pub fn services(&self) -> BTreeMap<ServicePortKey, ServicePortState> {
        self.lock().services.clone()
    }

    /// Every call that has ended, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// Waits until so many calls have ended.
    pub async fn calls_reach(&self, count: usize) {
        let mut ended = self.ended.subscribe();
        ended.wait_for(|ended| *ended >= count).await.expect("the kernel holds the sender");
    }

    /// Lets all further calls fail, with this reason.
    pub fn fail(&self, reason: &str) {
        self.lock().failing = Some(reason.to_owned());
    }

    /// Lets calls succeed again.
    pub fn heal(&self) {
        self.lock().failing = None;
    }

    /// Refuses a service port from now on.
    pub fn poison(&self, failure: ServicePortFailure) {
        self.lock().poison.insert(failure.key.clone(), failure);
    }

    /// Accepts it again.
    pub fn cure(&self, key: &ServicePortKey) {
        self.lock().poison.remove(key);
    }

    /// Lets each call take so long.
    pub fn slow(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    /// Loses a service port behind the backend's back, which gets to know that something happened.
    pub fn lose(&self, key: &ServicePortKey) {
        self.lock().services.remove(key);
        self.lost.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics while holding it")
    }

    fn end(&self, call: Call) {
        let mut inner = self.lock();
        inner.calls.push(call);
        self.ended.send_replace(inner.calls.len());
    }

    /// Waits as told, then fails as told.
    async fn begin(&self) -> Result<()> {
        let delay = self.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let failing = self.lock().failing.clone();
        if let Some(reason) = failing {
            self.end(Call::Failed);
            bail!("{reason}");
        }
        Ok(())
    }
}

// === impl Inner ===

impl Inner {
    /// Makes some service ports as they should be. Says how many differed.
    fn set<'a>(&mut self, state: &NodeState, keys: impl Iterator<Item = &'a ServicePortKey>) -> usize {
        let mut writes = 0;
        for key in keys {
            let wanted = state.service_port(key).filter(|_| !self.poison.contains_key(key));
            if self.services.get(key) != wanted {
                writes += 1;
                match wanted {
                    Some(service) => drop(self.services.insert(key.clone(), service.clone())),
                    None => drop(self.services.remove(key)),
                }
            }
        }
        writes
    }

    fn set_facts(&mut self, state: &NodeState) -> usize {
        let facts = Some((state.node().clone(), state.cluster().clone()));
        usize::from(std::mem::replace(&mut self.facts, facts.clone()) != facts)
    }

    fn applied(&self, state: &NodeState, writes: usize) -> SyncReport {
        let failures = self.poison.values().filter(|failure| state.service_port(&failure.key).is_some());
        SyncReport { writes, failures: failures.cloned().collect(), ..SyncReport::default() }
    }
}

// === impl FakeBackend ===

impl Backend for FakeBackend {
    const NAME: &'static str = "fake";

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.trusts = Trust::Unknown;
        self.kernel.begin().await?;
        let applied = {
            let mut inner = self.kernel.lock();
            let held: Vec<_> = inner.services.keys().cloned().collect();
            let mut writes = inner.set(state, held.iter().chain(state.service_ports().keys()));
            writes += inner.set_facts(state);
            inner.applied(state, writes)
        };
        self.kernel.end(Call::Reconcile(applied.writes));
        self.trusts = Trust::Known;
        Ok(applied)
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        assert_eq!(self.trusts, Trust::Known, "apply must follow a success");
        self.trusts = Trust::Unknown;
        self.kernel.begin().await?;
        let applied = {
            let mut inner = self.kernel.lock();
            let mut writes = inner.set(state, changes.service_ports.iter());
            if changes.node || changes.cluster {
                writes += inner.set_facts(state);
            }
            inner.applied(state, writes)
        };
        self.kernel.end(Call::Apply(applied.writes));
        self.trusts = Trust::Known;
        Ok(applied)
    }

    async fn drifted(&mut self) -> Drift {
        self.kernel.lost.notified().await;
        Drift::Changed { object: "service".into(), process: "test".into(), pid: 1 }
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.trusts = Trust::Unknown;
        self.kernel.begin().await?;
        {
            let mut inner = self.kernel.lock();
            inner.services.clear();
            inner.facts = None;
        }
        self.kernel.end(Call::Cleanup);
        Ok(())
    }
}
