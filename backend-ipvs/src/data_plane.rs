//! The IPVS part of the driver: reads what the kernel contains, computes the desired objects, executes the difference.
//! There are no transactions, so each operation is accepted or rejected on its own.

#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
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
    /// When the rules are, which takes a program.
    next_rules_check: Instant,
    /// When a transaction begins with a check, if there was none until then.
    overdue_at: Instant,
    /// How many destinations may drain before a transaction removes those without connections.
    max_draining: usize,
    /// When draining destinations are deleted at the latest, by the time that the kernel stores for each of them. The
    /// wall clock, which that time is of, may jump.
    drain_deadlines: HashMap<(Object, u32), Instant>,
    /// Whether a check has begun to remove destinations, and has not finished: what it has removed is unknown if it has
    /// failed or was cancelled.
    is_removing: bool,
}

/// The most virtual servers that no Service needs any more whose connections a transaction reads. Checks read all.
const MAX_UNNEEDED_SERVERS: usize = 256;

/// What a call of [`IpvsDataPlane::change`] has done.
#[derive(Clone, Copy, Debug, Default)]
struct Executed {
    operations: usize,
    /// Those for service ports.
    touched: usize,
    /// Whether operations for service ports are left.
    is_truncated: bool,
    /// Whether deletions of unneeded objects are left.
    has_leftovers: bool,
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

    /// Makes these objects what they should be, with at most `budget` operations, then deletes those that wait for it,
    /// with at most `total` operations together. An operation that was executed needs none of the later ones.
    async fn change(
        &mut self,
        applied: &mut AppliedState,
        mut touched: BTreeSet<Object>,
        budget: usize,
        total: usize,
    ) -> Result<Executed> {
        let drain = self.settings.drain;
        let until = (!drain.is_zero()).then(|| now() + seconds(drain));
        let mut executed = Executed::default();
        let is_small = touched.len() + applied.idle.len() + applied.leftovers.len() <= total;
        if is_small {
            touched.extend(&applied.idle);
            touched.extend(&applied.leftovers);
        }
        let parts = if is_small { 1 } else { 3 };
        for part in 0..parts {
            let (objects, limit) = match part {
                0 if is_small => (mem::take(&mut touched), total),
                0 => (mem::take(&mut touched), budget),
                1 => (applied.idle.iter().copied().collect(), total.min(executed.operations + total / 2)),
                _ => (applied.leftovers.clone(), total),
            };
            let desired = |object: &Object| applied.desired(object);
            let mut operations = plan(&applied.observed, desired, &objects, Drain { until, idle: &applied.idle });
            let left = limit - executed.operations;
            if operations.len() > left {
                operations.truncate(left);
                if part == 0 { executed.is_truncated = true } else { executed.has_leftovers = true }
            }
            if !operations.is_empty() {
                let rejected = self.kernel.commit(operations.clone()).await.context("change the kernel")?;
                applied.commit(&operations, &rejected)?;
                self.record_drains(&operations);
            }
            executed.operations += operations.len();
            if part == 0 {
                executed.touched = operations.len();
            }
            applied.commit_leftovers(objects);
        }
        Ok(executed)
    }

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
        let id = match entries.is_empty() {
            true => 0,
            false => applied.ids.give(key, &applied.observed).context("there are more service ports than marks")?,
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
        let ports = state.service_ports().values().map(|service_port| &service_port.port);
        let servers = ports.flat_map(|port| {
            let addresses = IpFamily::ALL.into_iter().filter_map(|family| port.cluster_ips[family]);
            addresses
                .map(move |address| VirtualServerKey::Address(port.key.protocol, (address, port.port.get()).into()))
        });
        Ours { desired: servers.collect(), exclude: self.settings.exclude.clone() }
    }

    /// The rules; none of a family that the kernel cannot program.
    fn rules(&self, state: &NodeState) -> PerFamily<Vec<ChainSpec>> {
        PerFamily::from_fn(|family| match self.families.contains(family) {
            true => rules(family, &self.settings.dataplane, state.node(), state.cluster()),
            false => Vec::new(),
        })
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

    /// What waits for its deletion has a share: changes that follow each other without a pause would leave nothing for
    /// it. More destinations begin to drain than are added then, and more idle ones are deleted than begin to drain.
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
        let mut touched = BTreeSet::new();
        let desired = service_ports.iter().map(|key| Ok((key, self.desired(change, key, applied)?)));
        let desired = desired.collect::<Result<Vec<_>>>()?;
        // One service port may take what another one gives up.
        for key in service_ports {
            touched.extend(applied.remove(key));
        }
        for (key, desired) in desired {
            touched.extend(applied.add(key, desired));
        }
        if *is_last && applied.is_reconciling {
            applied.complete();
        }
        let total = MAX_TRANSACTION_WRITES.max(*budget);
        let executed = self.change(applied, touched, *budget, total).await?;
        let Executed { operations, touched, is_truncated, has_leftovers } = executed;
        if is_truncated {
            // The driver concludes from the writes how much of the service ports is left.
            applied.has_leftovers = has_leftovers;
            return Ok(CommitOutcome::Committed { writes: writes + touched, unfinished: service_ports.clone() });
        }
        writes += operations;
        applied.has_leftovers = has_leftovers;
        // Destinations of virtual servers that are no longer needed do not wait for the next check.
        if !applied.is_reconciling && applied.idle.is_empty() && operations < total {
            let unneeded = applied.unneeded_servers().take(MAX_UNNEEDED_SERVERS).collect();
            let idle = self.drained(applied, unneeded).await?;
            if !idle.is_empty() {
                applied.idle = idle;
                let removed = self.change(applied, BTreeSet::new(), 0, total - operations).await?;
                writes += removed.operations;
                applied.has_leftovers = removed.has_leftovers;
            }
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
        let depends = |port: &ServicePort| !port.source_ranges.is_empty() || port.affinity_seconds.is_some();
        (before.addresses != after.addresses).then_some(depends)
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
