//! The driver that the nftables, iptables and IPVS backends share: it implements [`Backend`] and [`Preview`] over a
//! [`DataPlane`], which translates service ports for one part of the kernel.
//!
//! ```text
//!   reconcile ─▶ VIP ownership ─▶ DataPlane::reconcile: observed, desired, plan, commit ─┐
//!   apply ─┬─ nothing applied, or a rejected service port changed ─▶ reconcile           ├─▶ applied ─▶ SyncReport
//!          └─ affected service ports ─▶ DataPlane::update: desired, plan, commit ────────┘
//!                                         └─ the kernel rejected it ─▶ reconcile
//! ```
//!
//! - `applied`: what the last successful sync left in the kernel, and which service ports the kernel rejected;
//! - `transactions`: commits many service ports in batches and isolates the ones that the kernel rejects;
//! - `nf_tables_watch`: detects changes of our nf_tables objects by other processes;
//! - `worker`: a thread for netlink calls that block.

mod applied;
mod nf_tables_watch;
mod transactions;
mod worker;

use std::{collections::BTreeSet, future::Future, time::Duration};

use anyhow::Result;
use proto::model::{NodeInfo, ServicePort, ServicePortKey};
use tracing::{debug, warn};

use crate::{
    Backend, Changes, Difference, Drift, InstalledObject, NodeState, Preview, PreviewReport, SyncReport,
    dataplane::VipOwnership,
};
pub use applied::{Applied, AppliedServicePorts, Rejections, ServicePortUpdate};
pub use nf_tables_watch::{NfTablesWatch, Touched};
pub use transactions::{Answer, CommitError, Rejection, Transactions, Unneeded, commit_all};
pub use worker::WorkerThread;

/// A part of the kernel that service ports are programmed into.
///
/// The driver calls one method at a time and keeps the applied state between the calls.
pub trait DataPlane: Send + 'static {
    /// See [`Backend::NAME`].
    const NAME: &'static str;

    /// What a successful sync leaves in the kernel.
    type Applied: Applied;

    /// Makes the kernel equal to `state`, starting from what it contains now.
    ///
    /// # Errors
    /// See [`Backend::reconcile`].
    fn reconcile(
        &mut self,
        state: &NodeState,
        ownership: &VipOwnership,
    ) -> impl Future<Output = Result<Synced<Self::Applied>>> + Send;

    /// Programs a change on top of what was applied last.
    ///
    /// # Errors
    /// See [`Backend::apply`].
    fn update(
        &mut self,
        applied: Self::Applied,
        change: Change<'_>,
    ) -> impl Future<Output = Result<UpdateOutcome<Self::Applied>>> + Send;

    /// Which service ports have to be programmed again because the node's facts changed; `None`: none of them.
    fn node_dependents(&self, applied: &Self::Applied, node: &NodeInfo) -> Option<fn(&ServicePort) -> bool>;

    /// See [`Backend::drifted`]. `applied` is `None` when the content of the kernel is unknown.
    fn drifted(&mut self, applied: &mut Option<Self::Applied>) -> impl Future<Output = Drift> + Send;

    /// See [`Backend::cleanup`].
    ///
    /// # Errors
    /// When an object of ours could not be removed.
    fn cleanup(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// The objects that [`Self::cleanup`] would remove.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn installed_objects(&mut self) -> impl Future<Output = Result<Vec<InstalledObject>>> + Send;

    /// How long locks of other processes were waited for since the last call.
    fn lock_wait(&mut self) -> Duration {
        Duration::ZERO
    }
}

/// A [`DataPlane`] whose kernel is only read, and records what would be written.
pub trait DryRunPlane: DataPlane {
    /// Discards what was recorded.
    fn discard(&mut self);

    /// Describes what the last [`reconcile`](DataPlane::reconcile) recorded, and discards it.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn differences(
        &mut self,
        state: &NodeState,
        ownership: &VipOwnership,
        applied: &Self::Applied,
    ) -> impl Future<Output = Result<Vec<Difference>>> + Send;
}

/// A commit, to be programmed on top of the applied state.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// The state to reach.
    pub state: &'a NodeState,
    /// Which service port each VIP belongs to.
    pub ownership: &'a VipOwnership,
    /// The service ports to program: those that changed, gained or lost a contested VIP, or depend on a changed fact of
    /// the node.
    pub service_ports: BTreeSet<ServicePortKey>,
    /// Whether the facts of the node or the cluster changed, from which the base ruleset follows.
    pub facts: bool,
}

/// The result of a successful sync.
#[derive(Clone, Debug)]
pub struct Synced<A> {
    /// What the kernel contains now.
    pub applied: A,
    /// How many objects were written.
    pub writes: usize,
}

/// The result of [`DataPlane::update`].
#[derive(Clone, Debug)]
pub enum UpdateOutcome<A> {
    /// The kernel accepted everything.
    Applied(Synced<A>),
    /// The kernel rejected a transaction. Another process may have changed our objects, or a service port is invalid: a
    /// reconcile finds out.
    Rejected(String),
    /// The change is so large that it should be made by a reconcile, in transactions of limited size.
    TooLarge,
}

/// A backend: a data plane and what was applied to it last.
#[derive(Debug)]
pub struct Driver<P: DataPlane> {
    plane: P,
    /// `None`: the content of the kernel is unknown.
    applied: Option<P::Applied>,
    ownership: VipOwnership,
}

impl<P: DataPlane> Driver<P> {
    /// A driver that has not read or written the kernel yet.
    pub fn new(plane: P) -> Self {
        Self { plane, applied: None, ownership: VipOwnership::default() }
    }

    /// The objects that [`cleanup`](Backend::cleanup) would remove.
    ///
    /// # Errors
    /// When the kernel could not be read.
    pub async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        self.plane.installed_objects().await
    }

    fn finish(&mut self, Synced { applied, writes }: Synced<P::Applied>) -> SyncReport {
        let failures = self.ownership.failures().chain(applied.failures()).chain(applied.rejections().failures());
        let failures = failures.collect();
        self.applied = Some(applied);
        SyncReport { writes, failures, lock_wait: self.plane.lock_wait() }
    }
}

impl<P: DataPlane> Backend for Driver<P> {
    const NAME: &'static str = P::NAME;

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.applied = None;
        self.ownership = VipOwnership::of(state);
        let synced = self.plane.reconcile(state, &self.ownership).await?;
        Ok(self.finish(synced))
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        // The kernel may still contain an earlier form of a rejected service port, and node facts affect all of them.
        let applied = self.applied.take().filter(|applied| !applied.rejections().are_affected(changes));
        let Some(applied) = applied else { return self.reconcile(state).await };
        let mut service_ports = self.ownership.update(state, changes, |key| applied.vips(key));
        if changes.node
            && let Some(depends_on_node) = self.plane.node_dependents(&applied, state.node())
        {
            let dependents =
                state.service_ports().iter().filter(|(_, service_port)| depends_on_node(&service_port.port));
            service_ports.extend(dependents.map(|(key, _)| key.clone()));
        }
        let facts = changes.node || changes.cluster;
        let change = Change { state, ownership: &self.ownership, service_ports, facts };
        match self.plane.update(applied, change).await? {
            UpdateOutcome::Applied(synced) => return Ok(self.finish(synced)),
            UpdateOutcome::Rejected(error) => warn!(error, "kernel rejected an incremental change, reconciling"),
            UpdateOutcome::TooLarge => debug!("the change is too large for one transaction, reconciling"),
        }
        self.reconcile(state).await
    }

    async fn drifted(&mut self) -> Drift {
        self.plane.drifted(&mut self.applied).await
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.applied = None;
        self.plane.cleanup().await
    }
}

impl<P: DryRunPlane> Preview for Driver<P> {
    const NAME: &'static str = P::NAME;

    async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.plane.discard();
        let SyncReport { failures, .. } = self.reconcile(state).await?;
        let differences = match self.applied.take() {
            Some(applied) => self.plane.differences(state, &self.ownership, &applied).await?,
            None => Vec::new(),
        };
        Ok(PreviewReport { differences, failures })
    }

    async fn drifted(&mut self) -> Drift {
        self.plane.drifted(&mut self.applied).await
    }
}

/// The service ports in the order in which a node that has none programs them: first those that the others need, see
/// [`is_urgent`].
#[must_use]
pub fn urgent_first(state: &NodeState) -> (Vec<&ServicePortKey>, Vec<&ServicePortKey>) {
    let (mut urgent, mut others) = (Vec::new(), Vec::new());
    for (key, service_port) in state.service_ports() {
        let list = if is_urgent(&service_port.port) { &mut urgent } else { &mut others };
        list.push(key);
    }
    (urgent, others)
}

/// The port of DNS.
const DNS: u16 = 53;

/// Whether this is the API server's Service (`default/kubernetes`) or cluster DNS: any Service with port 53 in
/// `kube-system`.
fn is_urgent(port: &ServicePort) -> bool {
    match (&*port.key.namespace, &*port.key.name) {
        ("default", "kubernetes") => true,
        ("kube-system", _) => port.port.get() == DNS,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mk_state;

    #[test]
    fn api_server_and_cluster_dns_are_urgent() {
        let state = mk_state()
            .service("default/kubernetes", |api| api.port(443))
            .service("kube-system/kube-dns/udp", |dns| dns.port(53))
            .service("kube-system/coredns", |dns| dns.port(53))
            .service("kube-system/kube-dns-metrics", |metrics| metrics.port(9153))
            .service("default/dns", |dns| dns.port(53))
            .service("shop/kubernetes", |other| other.port(443))
            .build();
        let urgent = state.service_ports().values().filter(|service| is_urgent(&service.port));
        let urgent: Vec<String> = urgent.map(|service| service.port.key.to_string()).collect();
        assert_eq!(urgent, ["default/kubernetes/tcp", "kube-system/coredns/tcp", "kube-system/kube-dns/udp"]);
    }
}
