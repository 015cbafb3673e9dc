//! Keeps a kernel equal to a state: from whatever is found there, or from what was programmed last.

mod programmed;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use backend::{
    Changes, Drift, InstalledObject, NodeState, PreviewReport, SyncReport,
    dataplane::{NodePortAddresses, Vip, VipOwnership, is_urgent},
};
use proto::model::{FailureKind, IpFamily, PerFamily, ServicePortFailure, ServicePortKey};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    describe,
    desired::{Context, Desired, Rules, desired, rules},
    kernel::{Base, DryRun, Kernel, Listing, Ours, Refused},
    object::Object,
    plan::{Drain, Operation, plan},
    set::{self, SetContent, SetId},
    settings::Settings,
};
use programmed::Programmed;

/// The backend, over any [`Kernel`].
#[derive(Debug)]
pub(crate) struct Driver<K> {
    settings: Settings,
    kernel: K,
    /// `None`: unknown, the kernel must be asked.
    programmed: Option<Programmed>,
    claims: VipOwnership,
    /// Why the kernel refused a service port. It may hold some of it.
    refused: BTreeMap<ServicePortKey, String>,
    /// What the kernel has in place of what a service port wants, and why. It is tried again when that is looked at again.
    degraded: BTreeMap<ServicePortKey, String>,
    /// When the kernel is looked at next.
    look: Instant,
    /// The same of the rules, which takes a program.
    look_at_rules: Instant,
}

impl<K: Kernel> Driver<K> {
    pub(crate) fn new(kernel: K, settings: Settings) -> Self {
        Self {
            settings,
            kernel,
            programmed: None,
            claims: VipOwnership::default(),
            refused: BTreeMap::new(),
            degraded: BTreeMap::new(),
            look: Instant::now() + watch::INTERVAL,
            look_at_rules: Instant::now() + watch::INTERVAL,
        }
    }

    /// See [`backend::Backend::reconcile`].
    pub(crate) async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.programmed = None;
        self.claims = VipOwnership::of(state);
        let rules = self.rules(state);
        let mut writes = self.prepare(rules.clone()).await?;

        let Listing { objects, elsewhere } = self.kernel.list(self.ours(state)).await.context("list what is there")?;
        let node = state.node().addresses.clone();
        let mut programmed = Programmed::new(objects, rules, node, elsewhere);
        for key in state.service_ports().keys() {
            programmed.adopt_id(key, &self.marked_fronts(state, key));
        }
        let (urgent, others): (Vec<_>, Vec<_>) =
            state.service_ports().iter().partition(|(_, service)| is_urgent(&service.port));
        let mut operations = Vec::new();
        self.refused.clear();
        self.degraded.clear();
        for services in [urgent, others] {
            let mut touched = BTreeSet::new();
            for (key, _) in services {
                let desired = self.desired(state, key, &mut programmed)?;
                touched.extend(programmed.want(key, desired));
            }
            operations.push(touched);
        }
        // With the last ones goes what nobody wants.
        if let Some(last) = operations.last_mut() {
            last.extend(programmed.observed.keys().copied());
        }
        for touched in operations {
            writes += self.change(&mut programmed, touched, &HashSet::new()).await?;
        }
        self.programmed = Some(programmed);
        Ok(self.applied(writes))
    }

    /// See [`backend::Backend::apply`].
    pub(crate) async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        // Of a refused service port the kernel may hold anything; the node's facts may touch any of them.
        let unknown = changes.service_ports.iter().any(|key| self.refused.contains_key(key))
            || (changes.node && !self.refused.is_empty());
        let Some(mut programmed) = self.programmed.take().filter(|_| !unknown) else {
            return self.reconcile(state).await;
        };
        let mut writes = 0;
        let services = self.touched(state, changes, &programmed);
        if changes.node || changes.cluster {
            let rules = self.rules(state);
            if rules != programmed.rules {
                writes += self.prepare(rules.clone()).await?;
                programmed.rules = rules;
            }
            programmed.node.clone_from(&state.node().addresses);
        }
        let mut touched = BTreeSet::new();
        // What one gives up another may take.
        for key in &services {
            touched.extend(programmed.forget(key));
            self.degraded.remove(key);
        }
        for key in &services {
            let desired = self.desired(state, key, &mut programmed)?;
            touched.extend(programmed.want(key, desired));
        }
        writes += self.change(&mut programmed, touched, &HashSet::new()).await?;
        // What leads nowhere any more need not wait for the next look.
        let unwanted = programmed.draining().map(|(server, ..)| server);
        let unwanted = unwanted.filter(|server| programmed.wanted(&Object::Server(*server)).is_none()).collect();
        writes += self.release(&mut programmed, unwanted).await?;
        debug!(services = services.len(), writes, "applied");
        self.programmed = Some(programmed);
        Ok(self.applied(writes))
    }

    /// See [`backend::Backend::cleanup`].
    pub(crate) async fn cleanup(&mut self) -> Result<()> {
        self.programmed = None;
        self.kernel.cleanup(self.settings.exclude.clone()).await
    }

    /// See [`backend::Backend::drifted`].
    pub(crate) async fn drifted(&mut self) -> Drift {
        loop {
            tokio::time::sleep_until(self.look).await;
            let begun = Instant::now();
            let looked = self.watch().await;
            self.look = Instant::now() + watch::pause(begun.elapsed());
            match looked {
                Ok(None) => {}
                Ok(Some(drift)) => return drift,
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot look at what is there");
                    return Drift::Possible;
                }
            }
        }
    }

    async fn prepare(&mut self, rules: PerFamily<Rules>) -> Result<usize> {
        let base = Base { rules, timeouts: self.settings.timeouts, arp: self.settings.arp };
        self.kernel.prepare(base).await.context("prepare the kernel")
    }

    /// Makes these objects what they should be. Says how many it had to write.
    async fn change(
        &mut self,
        programmed: &mut Programmed,
        mut touched: BTreeSet<Object>,
        idle: &HashSet<Object>,
    ) -> Result<usize> {
        touched.extend(programmed.leftovers());
        let until = Some(self.settings.drain).filter(|drain| !drain.is_zero()).map(|drain| now() + seconds(drain));
        let wanted = |object: &Object| programmed.wanted(object);
        let operations = plan(&programmed.observed, wanted, touched.iter().copied(), Drain { until, idle });
        if operations.is_empty() {
            programmed.settle_leftovers(touched);
            return Ok(0);
        }
        let writes = operations.len();
        let refused = self.kernel.commit(operations.clone()).await.context("change what is there")?;
        let refused: HashMap<usize, Refused> = refused.into_iter().map(|one| (one.index, one)).collect();
        let objects = refused.keys().filter_map(|index| Some(*operations.get(*index)?.object())).collect();
        let owners = if refused.is_empty() { HashMap::new() } else { programmed.owners(&objects) };
        for (index, operation) in operations.into_iter().enumerate() {
            let Some(Refused { reason, instead, .. }) = refused.get(&index) else {
                programmed.settle(operation);
                continue;
            };
            let object = *operation.object();
            let owners = owners.get(&object).with_context(|| reason.clone())?;
            let list = if instead.is_some() { &mut self.degraded } else { &mut self.refused };
            for owner in owners {
                list.entry(owner.clone()).or_insert_with(|| reason.clone());
            }
            if let Some(value) = instead {
                programmed.settle(Operation::Change(object, value.clone()));
            }
        }
        programmed.settle_leftovers(touched);
        Ok(writes)
    }

    /// The service ports to look at: those that changed, those that gain or lose a contested front by it, and, when the node has
    /// other addresses, those with source ranges.
    fn touched(&mut self, state: &NodeState, changes: &Changes, programmed: &Programmed) -> BTreeSet<ServicePortKey> {
        let mut touched = self.claims.update(state, changes, |key| programmed.fronts(key));
        if changes.node && programmed.node != state.node().addresses {
            // Their ranges may hold them, and with affinity there are virtual servers at them.
            let touched_by = state.service_ports().iter().filter(|(_, service)| {
                !service.port.source_ranges.is_empty() || service.port.affinity_seconds.is_some()
            });
            touched.extend(touched_by.map(|(key, _)| key.clone()));
        }
        touched
    }

    fn desired(&self, state: &NodeState, key: &ServicePortKey, programmed: &mut Programmed) -> Result<Desired> {
        let Some(service) = state.service_port(key) else {
            programmed.release_id(key);
            return Ok(Desired::default());
        };
        let id = if self.marked_fronts(state, key).is_empty() {
            programmed.release_id(key);
            0
        } else {
            programmed.give_id(key).context("there are more service ports than marks")?
        };
        let node_ports = self.node_port_addresses(state, &programmed.elsewhere);
        let context = Context {
            settings: &self.settings,
            node: &state.node().addresses,
            elsewhere: &programmed.elsewhere,
            node_ports: &node_ports,
        };
        Ok(desired(service, context, id, |family, front| self.claims.owns(key, family, front)))
    }

    /// The addresses where node ports answer, of those that the node has.
    fn node_port_addresses(&self, state: &NodeState, elsewhere: &HashSet<IpAddr>) -> Vec<IpAddr> {
        match &self.settings.dataplane.nodeport_addresses {
            NodePortAddresses::Primary => {
                IpFamily::ALL.into_iter().filter_map(|family| state.node().primary_address(family)).collect()
            }
            NodePortAddresses::Cidrs(ranges) => {
                let is_in = |address: &&IpAddr| ranges.iter().any(|range| range.contains(*address));
                elsewhere.iter().filter(is_in).filter(|address| !address.is_loopback()).copied().collect()
            }
        }
    }

    /// The entries of the fronts of a service port that lead to marks of its own.
    fn marked_fronts(&self, state: &NodeState, key: &ServicePortKey) -> Vec<Object> {
        let Some(service) = state.service_port(key) else { return Vec::new() };
        let mut list = Vec::new();
        for family in IpFamily::ALL {
            for (front, class) in backend::dataplane::vips(&service.port, family) {
                if class == backend::dataplane::VipKind::ClusterIp || !self.claims.owns(key, family, &front) {
                    continue;
                }
                let contents = match front {
                    Vip::NodePort { .. } => [SetContent::NodePorts, SetContent::NodePortsInside],
                    _ => [SetContent::Vips, SetContent::VipsInside],
                };
                let entries = set::front(&front, family);
                for content in contents {
                    let set = SetId { content, family };
                    list.extend(entries.iter().map(|entry| Object::SetEntry(set, *entry)));
                }
            }
        }
        list
    }

    /// The virtual servers at cluster IPs that should be there: whoever has made one, it is ours from now on.
    fn ours(&self, state: &NodeState) -> Ours {
        let services = state.service_ports().values();
        let servers = services.flat_map(|service| {
            let port = &service.port;
            let addresses = IpFamily::ALL.into_iter().filter_map(|family| port.cluster_ips[family]);
            addresses.map(|address| {
                let protocol = crate::object::ipvs_protocol(port.key.protocol);
                netlink::ipvs::VirtualServerKey::Address(protocol, (address, port.port.get()).into())
            })
        });
        Ours { wanted: servers.collect(), exclude: self.settings.exclude.clone() }
    }

    fn rules(&self, state: &NodeState) -> PerFamily<Rules> {
        PerFamily::from_fn(|family| rules(family, &self.settings.dataplane, state.node(), state.cluster()))
    }

    fn applied(&self, writes: usize) -> SyncReport {
        let failure = |retryable| {
            move |(key, reason): (&ServicePortKey, &String)| ServicePortFailure {
                key: key.clone(),
                reason: reason.clone(),
                retryable,
                kind: FailureKind::Program,
            }
        };
        let refused = self.refused.iter().map(failure(true));
        let degraded = self.degraded.iter().map(failure(false));
        let may_exclude = self.programmed.iter().filter(|_| !self.settings.exclude.is_empty());
        let excluded = may_exclude.flat_map(Programmed::excluded).map(|(key, addresses)| {
            let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let reason = format!("{} is in a range that was said to be left alone", list.join(", "));
            ServicePortFailure { key: key.clone(), reason, retryable: false, kind: FailureKind::Program }
        });
        let failures = self.claims.failures().chain(excluded).chain(degraded).chain(refused).collect();
        SyncReport { writes, failures, ..SyncReport::default() }
    }
}

/// Seconds since 1970.
fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, seconds)
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX / 2)
}

impl Driver<crate::kernel::Netlink> {
    /// What [`Self::cleanup`] would remove.
    pub(crate) async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        self.kernel.installed_objects(self.settings.exclude.clone()).await
    }
}

impl Driver<DryRun> {
    /// See [`backend::Preview::preview`]: a reconcile, and what came of it.
    pub(crate) async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.kernel.take();
        let SyncReport { failures, .. } = self.reconcile(state).await?;
        let (mut differences, operations) = self.kernel.take();
        let before = self.kernel.list(self.ours(state)).await.context("list what is there")?.objects;
        // Nothing of it is in force.
        if let Some(programmed) = self.programmed.take() {
            let objects = operations.iter().map(|operation| *operation.object()).collect();
            differences.extend(describe::differences(&operations, &before, &programmed.owners(&objects)));
        }
        Ok(PreviewReport { differences, failures })
    }
}
