//! The driver that the nftables, iptables and IPVS backends share: it implements [`Backend`] over a [`DataPlane`],
//! which translates service ports for one part of the kernel.
//!
//! ```text
//!   reconcile ─▶ DataPlane::observe ─▶ those that differ ─┐   (or as `apply`: no other process wrote)
//!   apply ─────▶ the affected service ports ──────────────┴▶ queue ─▶ DataPlane::commit: one transaction ─▶ SyncReport
//!                                                              ▲          │
//!                                                              └──────────┴─ unfinished, or rejected without a name
//!                                                         quarantine ◀───── rejected
//! ```
//!
//! A call commits at most one transaction of limited size. The service ports that remain are in
//! [`SyncReport::unfinished`], and the next [`Backend::apply`] continues, after it has added the changes that have
//! arrived meanwhile.
//!
//! - `data_plane`: the trait;
//! - `applied`: the objects that this backend has programmed into the kernel;
//! - `families`: the IP families that the kernel can program;
//! - `change`: the input of the next transaction, and its outcome;
//! - `queue`: which service ports the next transaction contains;
//! - `quarantine`: the service ports that the kernel rejects;
//! - `nf_tables_watch`: detects changes of our nf_tables objects by other processes;
//! - `worker`: a thread for netlink calls that block.

mod applied;
mod change;
mod data_plane;
mod families;
mod nf_tables_watch;
mod quarantine;
mod queue;
mod rejection;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    collections::{BTreeSet, HashSet},
    mem,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use proto::model::{IpFamily, ServicePortKey};
use runtime::{Rate, TokenBucket};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    Backend, Changes, Drift, InstalledObject, Nat, NodeState, PreviewReport, SyncReport,
    dataplane::{OwnershipChanges, Vip, VipOwnership},
};
pub use applied::{Applied, AppliedServicePorts, ServicePortUpdate};
use change::HeldVips;
pub use change::{Change, CommitOutcome};
pub use data_plane::{DataPlane, DryRunPlane, Synced};
pub use families::UsableFamilies;
pub use nf_tables_watch::{NfTablesWatch, Touched};
use quarantine::Quarantine;
use queue::Queue;
pub use rejection::{Rejection, Unneeded};
pub use worker::WorkerThread;

/// The most elements, rules or operations of one transaction: 50 ms on the machines that were measured. While it is
/// executed, no other change is programmed. One service port with more is programmed in several transactions.
pub const MAX_TRANSACTION_WRITES: usize = 8_000;

/// The most transactions of one call that the kernel rejects. Rejected transactions change nothing.
const MAX_ATTEMPTS: usize = 8;

/// How often rejected service ports are tried again while a change is unfinished: no reconcile comes then.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest interval between two reads of the kernel that follow a rejection. In between, a rejection is taken for
/// one of the service port, not for the result of a change by another process.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// How often rejected service ports are tried again because they have changed: each attempt may have to read the
/// kernel. Beyond it, the next retry tries them.
const ATTEMPT_RATE: Rate = Rate { burst: 2, every: READ_INTERVAL };

/// A reconcile reads the kernel if it was not read for this long, even if no other process can have changed it.
const MAX_READ_AGE: Duration = Duration::from_secs(3_600);

/// [`MAX_READ_AGE`] while the kernel rejects service ports, because the kernel may contain something unknown.
const MAX_READ_AGE_REJECTED: Duration = Duration::from_secs(300);

/// A backend: a data plane, the state that was applied to it, and the service ports that are still to be programmed.
#[derive(Debug)]
pub struct Driver<P: DataPlane> {
    plane: P,
    /// `None`: the content of the kernel is unknown.
    applied: Option<P::Applied>,
    /// The state of the last call.
    state: Option<NodeState>,
    ownership: VipOwnership,
    queue: Queue,
    quarantine: Quarantine,
    held: HeldVips,
    /// Rejected service ports that give up their VIPs, because others own some of them.
    evicted: BTreeSet<ServicePortKey>,
    /// Whether the kernel was read since the last report.
    has_read: bool,
    /// Whether service ports are queued since a reconcile.
    is_reconciling: bool,
    read_at: Instant,
    /// When the kernel may be read again because of a rejection.
    next_read: Instant,
    retried_at: Instant,
    /// For the attempts that follow a change of a rejected service port.
    attempts: TokenBucket,
    /// Whether nothing was committed since the kernel was read.
    is_fresh: bool,
    /// For a preview: one transaction without a limit.
    is_unlimited: bool,
}

// === impl Driver ===

impl<P: DataPlane> Driver<P> {
    /// A driver that has not read or written the kernel yet.
    pub fn new(plane: P) -> Self {
        Self {
            plane,
            applied: None,
            state: None,
            ownership: VipOwnership::default(),
            queue: Queue::default(),
            quarantine: Quarantine::default(),
            held: HeldVips::new(),
            evicted: BTreeSet::new(),
            has_read: false,
            is_reconciling: false,
            read_at: Instant::now(),
            next_read: Instant::now(),
            retried_at: Instant::now(),
            attempts: TokenBucket::full(Instant::now()),
            is_fresh: false,
            is_unlimited: false,
        }
    }

    /// The objects that [`cleanup`](Backend::cleanup) would remove.
    ///
    /// # Errors
    /// When the kernel could not be read.
    pub async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        self.plane.installed_objects().await
    }

    /// Reads the kernel and queues the service ports that differ. Returns the number of writes.
    async fn observe(&mut self, state: &NodeState) -> Result<usize> {
        self.applied = None;
        self.queue = Queue::default();
        self.held = HeldVips::new();
        self.evicted = BTreeSet::new();
        self.ownership = VipOwnership::of(state);
        self.state = Some(state.clone());

        self.is_fresh = true;
        self.is_reconciling = true;
        self.has_read = true;
        self.read_at = Instant::now();
        let Synced { applied, writes } = self.plane.observe(state, &self.ownership).await?;

        for key in state.service_ports().keys() {
            if applied.is_programmed(key) {
                self.quarantine.accept(key);
            } else {
                self.queue.push(key.clone(), state);
            }
        }
        self.applied = Some(applied);
        self.retry_rejected(state);

        Ok(writes)
    }

    /// The changes since the last call; `None`: the kernel has to be read.
    fn changes(&mut self, state: &NodeState) -> Option<Changes> {
        let is_family_due = !self.plane.families().due().is_empty();
        let max_age = if self.quarantine.is_empty() { MAX_READ_AGE } else { MAX_READ_AGE_REJECTED };
        let is_old = self.read_at.elapsed() >= max_age;
        if is_family_due || is_old || !self.queue.is_empty() || !self.plane.is_untouched() {
            return None;
        }

        let changes = Changes::between(self.state.as_ref()?, state);
        if self.is_based(&changes) { Some(changes) } else { None }
    }

    /// Whether changes can be programmed without reading the kernel.
    fn is_based(&self, changes: &Changes) -> bool {
        self.applied.is_some() && !(self.is_fresh && (changes.node || changes.cluster))
    }

    /// Queues the rejected service ports as a batch of their own.
    fn retry_rejected(&mut self, state: &NodeState) {
        self.retried_at = Instant::now();
        let queued: BTreeSet<_> = self.queue.suspects.iter().flatten().collect();
        let mut suspects = self.quarantine.retry(state);
        suspects.retain(|key| !queued.contains(key));
        if suspects.is_empty() {
            return;
        }

        self.is_reconciling = true;
        for key in &suspects {
            self.queue.push(key.clone(), state);
        }
        self.queue.suspects.push(suspects);
    }

    /// Queues the service ports that changes affect.
    fn enqueue(&mut self, state: &NodeState, changes: &Changes) {
        let Some(applied) = &mut self.applied else { return };
        let Some(before) = self.state.replace(state.clone()) else { return };

        let OwnershipChanges { service_ports: mut affected, vips } = self.ownership.update(&before, state, changes);
        applied.owners_changed(&self.ownership, &vips);
        if changes.node
            && let Some(depends_on_node) = self.plane.node_dependents(before.node(), state.node())
        {
            let service_ports = state.service_ports().iter();
            let dependents = service_ports.filter(|(_, service_port)| depends_on_node(&service_port.port));
            affected.extend(dependents.map(|(key, _)| key.clone()));
        }
        affected.extend(self.plane.dependents(applied, &before, state, &affected));

        for key in affected {
            let mut lost = applied.vips(&key);
            lost.retain(|(family, vip)| !self.ownership.owns(&key, *family, vip));
            applied.invalidate(&key);

            let is_rejected = self.quarantine.contains(&key) && state.service_port(&key).is_some();
            if is_rejected && lost.is_empty() && self.attempts.take(ATTEMPT_RATE, Instant::now()).is_err() {
                continue;
            }

            for vip in lost {
                self.held.entry(vip).or_default().insert(key.clone());
            }
            self.evicted.remove(&key);
            self.queue.push(key, state);
        }
        self.queue.facts |= changes.node || changes.cluster;
    }

    fn is_unfinished(&self) -> bool {
        !self.queue.is_empty() || self.applied.as_ref().is_some_and(Applied::has_unneeded)
    }

    /// Commits one transaction; several if the kernel rejects them or they write nothing.
    async fn commit(&mut self, state: &NodeState) -> Result<usize> {
        let mut rejected = 0;
        while self.is_unfinished() {
            let Some(mut applied) = self.applied.take() else { bail!("the content of the kernel is unknown") };
            if self.is_reconciling {
                self.hold_used_vips(&applied);
            }

            let empty = Change {
                is_contested: self.is_contested(),
                state,
                ownership: &self.ownership,
                held: &self.held,
                evicted: &self.evicted,
                releases_first: false,
                service_ports: Vec::new(),
                members: HashSet::new(),
                facts: self.queue.facts,
                is_last: false,
                budget: if self.is_unlimited { usize::MAX } else { self.plane.budget(&applied) },
            };
            let change = with_service_ports(empty, &mut self.queue, &self.plane, &mut applied);

            let outcome = self.plane.commit(&mut applied, &change).await?;
            let waiting = change.waiting();
            let service_ports = change.service_ports;
            self.applied = Some(applied);

            match outcome {
                CommitOutcome::Committed { writes, unfinished } => {
                    self.committed(&service_ports, &unfinished.into_iter().collect(), writes, &waiting);
                    self.is_reconciling &= !self.queue.is_empty();
                    if writes > 0 {
                        return Ok(writes);
                    }
                }
                CommitOutcome::UnusableFamily => {
                    self.observe(state).await?;
                }
                CommitOutcome::Unknown(reason) => {
                    warn!(reason, "the content of the kernel is unknown, reconciling");
                    self.observe(state).await?;
                }
                CommitOutcome::Rejected(rejection) => {
                    if self.is_explained_by_drift(&service_ports, &rejection) {
                        warn!(%rejection, "kernel rejected an incremental change, reconciling");
                        self.next_read = Instant::now() + READ_INTERVAL;
                        self.observe(state).await?;
                    } else {
                        self.rejected(&service_ports, rejection)?;
                    }
                    rejected += 1;
                    if rejected >= MAX_ATTEMPTS {
                        break;
                    }
                }
            }
        }
        Ok(0)
    }

    /// Whether a VIP may wait for its release by another service port.
    fn is_contested(&self) -> bool {
        let has_owner = |(family, vip): &(IpFamily, Vip)| self.ownership.owner(*family, vip).is_some();
        !self.evicted.is_empty() || self.held.keys().any(has_owner)
    }

    /// Holds the VIPs whose objects in the kernel are used by a service port that does not own them, because the kernel
    /// leads packets to their owner until that service port is programmed.
    fn hold_used_vips(&mut self, applied: &P::Applied) {
        for (vip, user) in applied.used_vips(&self.ownership) {
            if self.queue.contains(&user) {
                self.held.entry(vip).or_default().insert(user);
            }
        }
    }

    /// The kernel has accepted a transaction with these service ports, and with this number of writes. The `unfinished`
    /// service ports are programmed in part. The `waiting` service ports own a VIP that another one still has in the
    /// kernel.
    fn committed(
        &mut self,
        service_ports: &[ServicePortKey],
        unfinished: &BTreeSet<ServicePortKey>,
        writes: usize,
        waiting: &BTreeSet<ServicePortKey>,
    ) {
        self.is_fresh = false;
        self.queue.facts = false;
        for key in service_ports {
            if !unfinished.contains(key) && !self.evicted.remove(key) {
                self.quarantine.accept(key);
            }
            if waiting.contains(key) {
                self.queue.changed(key);
            } else if unfinished.contains(key) {
                self.queue.unfinished(key, writes);
            } else {
                self.queue.done(key);
            }
        }

        self.release(&service_ports.iter().filter(|key| !unfinished.contains(*key)).collect());
    }

    /// Whether another process may have changed our objects since they were read.
    fn is_explained_by_drift(&self, service_ports: &[ServicePortKey], rejection: &Rejection) -> bool {
        let mut named = rejection.named.iter().filter_map(|(index, _)| service_ports.get(*index as usize));
        let is_news = rejection.unnamed.is_some() || named.any(|key| !self.quarantine.contains(key));
        is_news && !self.is_reconciling && self.next_read <= Instant::now()
    }

    /// Quarantines the service ports that the kernel named, or bisects the transaction.
    fn rejected(&mut self, service_ports: &[ServicePortKey], rejection: Rejection) -> Result<()> {
        let reason = rejection.to_string();
        if rejection.unnamed.is_none() {
            return self.quarantine_named(service_ports, rejection.named, &reason);
        }

        match service_ports {
            [] => bail!("the kernel rejected the base ruleset: {reason}"),
            [only] if !self.is_fresh && !self.queue.facts => self.quarantine(only, reason),
            _ => self.bisect(service_ports, &reason),
        }
        Ok(())
    }

    /// Quarantines the service ports that the kernel named by their index, each with the reason.
    fn quarantine_named(
        &mut self,
        service_ports: &[ServicePortKey],
        named: Vec<(u32, String)>,
        first_reason: &str,
    ) -> Result<()> {
        let mut is_any_known = false;
        for (index, reason) in named {
            let Some(key) = service_ports.get(index as usize) else { continue };
            is_any_known = true;
            self.quarantine(key, reason);
        }
        ensure!(is_any_known, "the kernel rejected a service port that was not in the transaction: {first_reason}");
        Ok(())
    }

    /// Queues the halves of a transaction; before them the base ruleset, if that is in the transaction.
    fn bisect(&mut self, service_ports: &[ServicePortKey], reason: &str) {
        let is_retry = service_ports.iter().all(|key| self.quarantine.contains(key));
        if is_retry && !self.quarantine.take_retry() {
            return self.postpone_rejected(service_ports);
        }

        let count = service_ports.len();
        debug!(reason, service_ports = count, "kernel did not name the rejected operation, bisecting the batch");
        let (first, second) = service_ports.split_at(service_ports.len() / 2);
        let halves = [second, first].into_iter().filter(|half| !half.is_empty());
        self.queue.suspects.extend(halves.map(<[_]>::to_vec));
        if self.is_fresh || self.queue.facts {
            self.queue.suspects.push(Vec::new());
        }
    }

    /// Leaves the service ports of a rejected transaction, and the suspects that were rejected before, to the next
    /// reconcile. The other suspects stay queued, as one batch.
    fn postpone_rejected(&mut self, service_ports: &[ServicePortKey]) {
        let suspects = mem::take(&mut self.queue.suspects).into_iter().flatten();
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            suspects.chain(service_ports.iter().cloned()).partition(|key| self.quarantine.contains(key));

        self.quarantine.postpone(&old);
        for key in &old {
            self.queue.done(key);
        }
        self.release(&old.iter().collect());
        if !new.is_empty() {
            self.queue.suspects.push(new.into_iter().collect());
        }
    }

    fn quarantine(&mut self, key: &ServicePortKey, reason: String) {
        debug!(service_port = %key, error = reason, "kernel rejected a service port, leaving it out");
        self.quarantine.reject(key, reason);
        let holds_vips = self.held.values().any(|holders| holders.contains(key));
        if holds_vips && self.evicted.insert(key.clone()) {
            // Its VIPs are removed first: others need some of them.
            self.queue.changed(key);
            return;
        }
        self.evicted.remove(key);
        self.queue.done(key);
        self.release(&HashSet::from([key]));
    }

    /// These service ports do not have the VIPs of others in the kernel any more. Visits all VIPs that are held.
    fn release(&mut self, service_ports: &HashSet<&ServicePortKey>) {
        self.held.retain(|_, holders| {
            holders.retain(|holder| !service_ports.contains(holder));
            !holders.is_empty()
        });
    }

    /// The service ports that are not programmed: all of them before packets reach any.
    fn unfinished(&self) -> BTreeSet<ServicePortKey> {
        let is_serving = self.applied.as_ref().is_some_and(Applied::is_serving);
        match &self.state {
            Some(state) if !is_serving => state.service_ports().keys().cloned().collect(),
            _ => self.queue.service_ports(),
        }
    }

    fn report(&mut self, writes: usize) -> SyncReport {
        let of_applied = self.applied.iter().flat_map(Applied::failures);
        let failures = self.ownership.failures().chain(of_applied).chain(self.quarantine.failures()).collect();
        let unfinished = if self.is_unfinished() { Some(self.unfinished()) } else { None };
        let has_read = mem::take(&mut self.has_read) && unfinished.is_some();
        let unusable_families = self.plane.families().unusable();
        SyncReport { writes, failures, unfinished, has_read, unusable_families, lock_wait: self.plane.lock_wait() }
    }
}

/// The change with the service ports of the next transaction.
fn with_service_ports<'a, P: DataPlane>(
    empty: Change<'a>,
    queue: &mut Queue,
    plane: &P,
    applied: &mut P::Applied,
) -> Change<'a> {
    let budget = empty.budget;
    // The writes of a service port are computed before the others of the transaction are known.
    let service_ports = queue.next(budget, |key| plane.writes(applied, &empty, key));
    let members = service_ports.iter().cloned().collect();
    let is_last = queue.has_only(&service_ports);
    let change = Change { service_ports, members, is_last, ..empty };
    if !change.moves_vips() {
        return change;
    }

    let writes = change.service_ports.iter().map(|key| plane.writes(applied, &change, key));
    let releases_first = writes.fold(0, usize::saturating_add) > budget;
    Change { releases_first, is_last: is_last && !releases_first, ..change }
}

impl<P: DataPlane> Backend for Driver<P> {
    const NAME: &'static str = P::NAME;
    const NAT: Nat = P::NAT;

    async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        let prepared = match self.changes(state) {
            Some(changes) => {
                self.enqueue(state, &changes);
                self.retry_rejected(state);
                0
            }
            None => self.observe(state).await?,
        };
        let writes = self.commit(state).await?;
        Ok(self.report(prepared + writes))
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        self.plane.is_programmed().await
    }

    async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        if !self.is_based(changes) {
            return self.reconcile(state).await;
        }

        let is_retry_due = self.is_unfinished() && self.retried_at.elapsed() >= RETRY_INTERVAL;
        self.enqueue(state, changes);
        if is_retry_due {
            self.retry_rejected(state);
        }

        let writes = self.commit(state).await?;
        Ok(self.report(writes))
    }

    async fn drifted(&mut self) -> Drift {
        loop {
            let retry_at = self.plane.families().retry_at();
            tokio::select! {
                drift = self.plane.drifted(&mut self.applied) => return drift,
                () = runtime::sleep_until(retry_at) => {}
            }
            if self.plane.may_be_usable().await {
                // The next reconcile tries the family again.
                return Drift::Outdated;
            }
        }
    }

    async fn cleanup(&mut self) -> Result<()> {
        self.applied = None;
        self.plane.cleanup().await
    }
}

impl<P: DryRunPlane> Driver<P> {
    /// Computes the writes of a reconcile without executing them. This driver writes nothing from then on.
    ///
    /// # Errors
    /// When the kernel could not be read.
    pub async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.plane.begin_dry_run().await?;
        self.applied = None;
        self.is_unlimited = true;
        let mut report = self.reconcile(state).await?;
        while report.unfinished.is_some() {
            report = self.apply(state, &Changes::default()).await?;
        }

        let differences = match self.applied.take() {
            Some(applied) => self.plane.differences(state, &self.ownership, &applied).await?,
            None => Vec::new(),
        };
        Ok(PreviewReport { differences, failures: report.failures })
    }
}
