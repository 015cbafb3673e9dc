//! The IPVS part of the driver: reads the objects in the kernel, computes the desired objects, executes the difference.
//! There are no transactions, so each operation is accepted or rejected on its own.

#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use backend::{
    Difference, Drift, InstalledObject, Nat, NodeState, ServiceName,
    dataplane::{NodePortAddresses, Vip, VipKind, VipOwnership, vips},
    driver::{Change, CommitOutcome, DataPlane, DryRunPlane, MAX_TRANSACTION_WRITES, Synced, UsableFamilies},
};
use iptables::ChainSpec;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, NodeInfo, PerFamily, ServicePort, ServicePortKey};
use tokio::time::Instant;

use crate::{
    applied::AppliedState,
    describe,
    desired::{Context, Desired, Excess, desired, excess, rules},
    ids::count_ids,
    kernel::{
        Kernel, Listing, Netlink, Ours, Prepared, UnusableFamily,
        netlink::{DryRun, Worker},
    },
    object::Object,
    plan::{Drain, plan},
    set::{self, SetContent, SetId},
    settings::Settings,
};

/// IPVS, over any [`Kernel`].
#[derive(Debug)]
pub struct IpvsDataPlane<K> {
    settings: Settings,
    kernel: K,
    families: UsableFamilies,
    /// When the kernel is compared with the applied state next.
    next_check: Instant,
    /// When the rules are compared next, which takes a program.
    next_rules_check: Instant,
    /// When a transaction begins with a check, if there was none until then.
    overdue_at: Instant,
    /// How many destinations may drain before a transaction removes those without connections.
    max_draining: usize,
    /// When draining destinations are deleted at the latest, by the time that the kernel stores for each of them. That
    /// time is of the wall clock, which may jump.
    drain_deadlines: HashMap<(Object, u32), Instant>,
    /// Whether a check has begun to remove destinations, and has not finished. If it has failed or was cancelled, the
    /// destinations that it has removed are unknown.
    is_removing: bool,
}

/// The most virtual servers that no Service needs any more whose connections a transaction reads. Checks read all.
const MAX_UNNEEDED_SERVERS: usize = 256;

/// The operations that a call of [`IpvsDataPlane::change`] has executed.
#[derive(Clone, Copy, Debug)]
struct Executed {
    operations: usize,
    /// The operations for service ports among them.
    touched: usize,
    /// Whether operations for service ports are left.
    is_truncated: bool,
    /// Whether deletions of unneeded objects are left.
    has_leftovers: bool,
}

/// The operations that were executed for some objects.
#[derive(Clone, Copy, Debug)]
struct ExecutedPart {
    operations: usize,
    /// Whether operations are left.
    is_truncated: bool,
}

#[expect(private_bounds, reason = "only this crate calls these methods")]
impl<K: Kernel> IpvsDataPlane<K> {
    pub(crate) fn new(kernel: K, settings: Settings) -> Self {
        let next_check = Instant::now() + watch::MIN_INTERVAL;
        Self {
            settings,
            kernel,
            families: UsableFamilies::default(),
            next_check,
            next_rules_check: next_check,
            overdue_at: Instant::now() + watch::MAX_DELAY,
            max_draining: MAX_TRANSACTION_WRITES,
            drain_deadlines: HashMap::new(),
            is_removing: false,
        }
    }

    /// Prepares the kernel for the families that it can program. Returns their rules, and the number of writes.
    async fn prepare(&mut self, state: &NodeState) -> Result<(PerFamily<Vec<ChainSpec>>, usize)> {
        let mut total = 0;
        loop {
            let rules = self.rules(state);
            let Prepared { writes, unusable } =
                self.kernel.prepare(rules.clone()).await.context("prepare the kernel")?;
            total += writes;
            if unusable.is_empty() {
                self.families.programmed();
                return Ok((rules, total));
            }

            for UnusableFamily { family, reason, is_permanent } in unusable {
                if is_permanent {
                    self.families.unavailable(family, reason)?;
                } else {
                    self.families.failed(family, reason)?;
                }
            }
        }
    }

    /// Programs these objects with at most `budget` operations. Then deletes idle and other unneeded objects, with at
    /// most `total` operations together. A limit may end the operations anywhere, because none needs a later one.
    async fn change(
        &mut self,
        applied: &mut AppliedState,
        mut touched: BTreeSet<Object>,
        budget: usize,
        total: usize,
    ) -> Result<Executed> {
        if touched.len() + applied.idle.len() + applied.leftovers.len() <= total {
            touched.extend(&applied.idle);
            touched.extend(&applied.leftovers);
            let ExecutedPart { operations, is_truncated } = self.change_part(applied, touched, total).await?;
            return Ok(Executed { operations, touched: operations, is_truncated, has_leftovers: false });
        }

        let changed = self.change_part(applied, touched, budget).await?;
        let mut left = total - changed.operations;
        let idle = applied.idle.iter().copied().collect();
        let drained = self.change_part(applied, idle, left.min(total / 2)).await?;
        left -= drained.operations;
        let leftovers = applied.leftovers.clone();
        let deleted = self.change_part(applied, leftovers, left).await?;
        Ok(Executed {
            operations: changed.operations + drained.operations + deleted.operations,
            touched: changed.operations,
            is_truncated: changed.is_truncated,
            has_leftovers: drained.is_truncated || deleted.is_truncated,
        })
    }

    /// Programs or deletes these objects, with at most `limit` operations.
    async fn change_part(
        &mut self,
        applied: &mut AppliedState,
        objects: BTreeSet<Object>,
        limit: usize,
    ) -> Result<ExecutedPart> {
        let drain = self.settings.drain;
        let until = if drain.is_zero() { None } else { Some(now() + seconds(drain)) };
        let desired = |object: &Object| applied.desired(object);
        let mut operations = plan(&applied.observed, desired, &objects, Drain { until, idle: &applied.idle });
        let is_truncated = operations.len() > limit;
        operations.truncate(limit);

        if !operations.is_empty() {
            let rejected = self.kernel.commit(operations.clone()).await.context("change the kernel")?;
            applied.commit(&operations, &rejected)?;
            self.record_drains(&operations);
        }
        applied.commit_leftovers(objects);
        Ok(ExecutedPart { operations: operations.len(), is_truncated })
    }

    /// Deletes the drained destinations of unneeded virtual servers, which do not wait for the next check. Returns the
    /// number of operations, at most `limit`.
    async fn delete_unneeded(&mut self, applied: &mut AppliedState, limit: usize) -> Result<usize> {
        let unneeded = applied.unneeded_servers().take(MAX_UNNEEDED_SERVERS).collect();
        let idle = self.drained(applied, unneeded).await?;
        if idle.is_empty() {
            return Ok(0);
        }

        applied.idle = idle;
        let deleted = self.change(applied, BTreeSet::new(), 0, limit).await?;
        applied.has_leftovers = deleted.has_leftovers;
        Ok(deleted.operations)
    }

    /// The desired objects of a service port. Gives it an id for its marks, or releases the id.
    fn desired(&self, change: &Change<'_>, key: &ServicePortKey, applied: &mut AppliedState) -> Result<Desired> {
        let state = change.state;
        let Some(service_port) = state.service_port(key) else {
            applied.ids.release(key);
            return Ok(Desired::default());
        };

        let owns = |family, vip: &_| self.families.contains(family) && change.owns(key, family, vip);
        let entries = marked_entries(state, owns, key);
        if entries.is_empty() || applied.withdraws(key, &entries) {
            applied.ids.release(key);
        }
        let id = if entries.is_empty() {
            0
        } else {
            let given = applied.ids.give(key, &applied.observed);
            given.with_context(|| format!("no packet mark is left for service port {key}"))?
        };

        let node_ports = self.node_port_addresses(state, &applied.foreign_addresses);
        let context = Context {
            settings: &self.settings,
            node: &state.node().addresses,
            elsewhere: &applied.foreign_addresses,
            node_ports: &node_ports,
            excess: applied.excess.get(&ServiceName::of(key)).copied().unwrap_or_default(),
        };
        Ok(desired(service_port, context, id, owns))
    }

    /// Updates which Services of these service ports, which are sorted, exceed limits. Returns all service ports of a
    /// Service for which that changes.
    fn update_excess<'k>(
        &self,
        state: &NodeState,
        applied: &mut AppliedState,
        keys: impl IntoIterator<Item = &'k ServicePortKey>,
    ) -> BTreeSet<ServicePortKey> {
        let node_ports = self.node_port_addresses(state, &applied.foreign_addresses);
        let mut changed = BTreeSet::new();
        let mut last = None;
        for key in keys {
            let name = ServiceName::of(key);
            if last.as_ref() == Some(&name) {
                continue;
            }

            let ports = state.ports_of(&name).map(|(_, service)| service);
            let new = excess(ports, &state.node().addresses, &node_ports);
            let before = match new {
                Excess { destinations: None, sources: None } => applied.excess.remove(&name),
                _ => applied.excess.insert(name.clone(), new),
            };
            if before.unwrap_or_default().differs(&new) {
                changed.extend(state.ports_of(&name).map(|(key, _)| key.clone()));
            }
            last = Some(name);
        }
        changed
    }

    /// The addresses of the node on which node ports answer.
    fn node_port_addresses(&self, state: &NodeState, addresses: &HashSet<IpAddr>) -> Vec<IpAddr> {
        match &self.settings.dataplane.nodeport_addresses {
            NodePortAddresses::Primary => {
                IpFamily::ALL.into_iter().filter_map(|family| state.node().primary_address(family)).collect()
            }
            ranges @ NodePortAddresses::Cidrs(_) => {
                addresses.iter().copied().filter(|address| ranges.serve(address)).collect()
            }
        }
    }

    /// The virtual servers at cluster IPs that should exist are ours, even if another process created them.
    fn ours(&self, state: &NodeState) -> Ours {
        let mut desired = HashSet::new();
        for service_port in state.service_ports().values() {
            let port = &service_port.port;
            for address in IpFamily::ALL.into_iter().filter_map(|family| port.cluster_ips[family]) {
                desired.insert(VirtualServerKey::Address(port.key.protocol, (address, port.port.get()).into()));
            }
        }
        Ours { desired, exclude: self.settings.exclude.clone() }
    }

    /// The rules; none of a family that the kernel cannot program.
    fn rules(&self, state: &NodeState) -> PerFamily<Vec<ChainSpec>> {
        let mut chains = PerFamily::<Vec<ChainSpec>>::default();
        for family in self.families.iter() {
            chains[family] = rules(family, &self.settings.dataplane, state.node(), state.cluster());
        }
        chains
    }
}

impl<K: Kernel> DataPlane for IpvsDataPlane<K> {
    const NAME: &'static str = "ipvs";
    const NAT: Nat = Nat::Ipvs;

    type Applied = AppliedState;

    async fn observe(&mut self, state: &NodeState, ownership: &VipOwnership) -> Result<Synced<AppliedState>> {
        self.families.retry_due();
        self.is_removing = false;
        self.overdue_at = Instant::now() + watch::MAX_DELAY;
        let (rules, writes) = self.prepare(state).await?;

        let listing = self.kernel.list(self.ours(state)).await.context("list our objects")?;
        let Listing { mut objects, elsewhere } = listing;
        self.forget_other_drains(&objects);
        objects.retain(|object, _| self.families.contains(object.family()));

        let mut applied = AppliedState::new(objects, rules, elsewhere);
        let entries_of_ids = count_ids(applied.observed.values());
        for key in state.service_ports().keys() {
            let entries = marked_entries(state, |family, vip| ownership.owns(key, family, vip), key);
            applied.ids.adopt(key, &applied.observed, &entries, &entries_of_ids);
        }
        self.update_excess(state, &mut applied, state.service_ports().keys());
        Ok(Synced { applied, writes })
    }

    /// Objects that wait for their deletion have a share, because changes that follow each other without a pause would
    /// leave nothing for them. More destinations begin to drain than are added then, and more idle destinations are
    /// deleted than begin to drain.
    fn budget(&self, applied: &AppliedState) -> usize {
        let others = MAX_TRANSACTION_WRITES - applied.idle.len().min(MAX_TRANSACTION_WRITES / 2);
        let leftovers = if applied.has_leftovers { applied.leftovers.len() } else { 0 };
        others - leftovers.min(others / 8 * 5)
    }

    fn writes(&self, applied: &mut AppliedState, change: &Change<'_>, key: &ServicePortKey) -> usize {
        // An error is returned by the commit.
        self.desired(change, key, applied).map_or(0, |desired| applied.differing(key, &desired))
    }

    async fn commit(&mut self, applied: &mut AppliedState, change: &Change<'_>) -> Result<CommitOutcome> {
        let Change { state, service_ports, facts, is_last, budget, .. } = change;
        let is_overdue = self.overdue_at <= Instant::now();
        if is_overdue {
            self.overdue_at = Instant::now() + watch::MAX_DELAY;
            if self.changed(applied).await.context("compare the kernel")?.is_some() {
                return Ok(CommitOutcome::Unknown("another process may have changed our objects".to_owned()));
            }
        }
        if is_overdue || applied.draining.len() >= self.max_draining && applied.idle.is_empty() {
            applied.idle = self.all_drained(applied).await?;
        }

        let mut writes = 0;
        if *facts && self.rules(state) != applied.rules {
            let (rules, prepared) = self.prepare(state).await?;
            writes += prepared;
            applied.rules = rules;
        }

        let mut all_desired = Vec::with_capacity(service_ports.len());
        for key in service_ports {
            all_desired.push((key, self.desired(change, key, applied)?));
        }
        let mut touched = BTreeSet::new();
        // All service ports are removed before the first is added again, because one may take a VIP of another.
        for key in service_ports {
            touched.extend(applied.remove(key));
        }
        for (key, desired) in all_desired {
            touched.extend(applied.add(key, desired));
        }
        if *is_last && applied.is_reconciling {
            applied.complete();
        }

        let total = MAX_TRANSACTION_WRITES.max(*budget);
        let executed = self.change(applied, touched, *budget, total).await?;
        applied.has_leftovers = executed.has_leftovers;
        if executed.is_truncated {
            // The driver concludes from the writes how much of the service ports is left.
            writes += executed.touched;
            return Ok(CommitOutcome::Committed { writes, unfinished: service_ports.clone() });
        }
        writes += executed.operations;
        if !applied.is_reconciling && applied.idle.is_empty() && executed.operations < total {
            writes += self.delete_unneeded(applied, total - executed.operations).await?;
        }
        Ok(CommitOutcome::Committed { writes, unfinished: Vec::new() })
    }

    fn dependents(
        &self,
        applied: &mut AppliedState,
        _: &NodeState,
        state: &NodeState,
        changed: &BTreeSet<ServicePortKey>,
    ) -> BTreeSet<ServicePortKey> {
        self.update_excess(state, applied, changed)
    }

    fn node_dependents(&self, before: &NodeInfo, after: &NodeInfo) -> Option<fn(&ServicePort) -> bool> {
        // Source ranges may contain the addresses, and with session affinity there are virtual servers at them.
        if before.addresses != after.addresses {
            Some(|port| !port.source_ranges.is_empty() || port.affinity_seconds.is_some())
        } else {
            None
        }
    }

    fn families(&self) -> &UsableFamilies {
        &self.families
    }

    async fn drifted(&mut self, applied: &mut Option<AppliedState>) -> Drift {
        self.watch(applied).await
    }

    async fn cleanup(&mut self) -> Result<()> {
        let exclude = self.settings.exclude.clone();
        self.kernel.cleanup(Ours { exclude, ..Ours::default() }).await
    }

    async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        let exclude = self.settings.exclude.clone();
        self.kernel.installed_objects(Ours { exclude, ..Ours::default() }).await
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        self.kernel.is_programmed().await
    }
}

impl DryRunPlane for IpvsDataPlane<Netlink> {
    async fn begin_dry_run(&mut self) -> Result<()> {
        self.kernel.run(Worker::begin_dry_run).await
    }

    async fn differences(
        &mut self,
        state: &NodeState,
        _: &VipOwnership,
        applied: &AppliedState,
    ) -> Result<Vec<Difference>> {
        let DryRun { base: mut differences, operations } = self.kernel.run(Worker::take_dry_run).await?;
        let before = self.kernel.list(self.ours(state)).await.context("list our objects")?.objects;
        let objects = operations.iter().map(|operation| *operation.object()).collect();
        differences.extend(describe::differences(&operations, &before, &applied.owners(&objects)));
        Ok(differences)
    }
}

/// The set entries of a service port's VIPs that lead to marks of its own.
fn marked_entries(state: &NodeState, owns: impl Fn(IpFamily, &Vip) -> bool, key: &ServicePortKey) -> Vec<Object> {
    let Some(service_port) = state.service_port(key) else { return Vec::new() };
    let mut list = Vec::new();
    for family in IpFamily::ALL {
        for (vip, kind) in vips(&service_port.port, family) {
            if kind == VipKind::ClusterIp || !owns(family, &vip) {
                continue;
            }
            let contents = match vip {
                Vip::NodePort { .. } => [SetContent::NodePorts, SetContent::NodePortsInside],
                _ => [SetContent::Vips, SetContent::VipsInside],
            };
            let entries = set::vip_entries(&vip, family);
            for content in contents {
                let set = SetId { content, family };
                list.extend(entries.iter().map(|entry| Object::SetEntry(set, *entry)));
            }
        }
    }
    list
}

/// Seconds since 1970.
fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, seconds)
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX / 2)
}
