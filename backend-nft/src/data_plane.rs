//! The nftables part of the driver: reads what the kernel contains, computes the desired state, commits the difference.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use backend::{
    Difference, Drift, InstalledObject, NodeState,
    dataplane::{DataplaneOptions, EffectiveOptions, Masquerade, VipOwnership},
    driver::{
        Change, DataPlane, DryRunPlane, ServicePortUpdate, Synced, Unneeded, UpdateOutcome, commit_all, urgent_first,
    },
};
use proto::model::{NodeInfo, PerFamily, Protocol, ServicePort, ServicePortKey};

use crate::{
    applied::AppliedState,
    commit::{BatchSizer, Committer, UrgentOutcome, WHOLE, rebuilds},
    describe::differences,
    desired::{Affinity, Base, Desired, EndpointKeys, base, desired, table},
    kernel::{DryRun, Kernel},
    observed::Observed,
    plan::{CurrentState as _, Operation, Plan, Repairs},
};

/// nftables, over any [`Kernel`].
#[derive(Debug)]
pub struct NftDataPlane<K> {
    options: DataplaneOptions,
    masquerade: PerFamily<Masquerade>,
    kernel: K,
    /// For the first transactions of a reconcile.
    batch_sizer: BatchSizer,
}

/// With fewer other service ports the urgent ones get no transaction of their own.
const MANY: usize = 256;

/// A change that writes more is made by a reconcile, in transactions of limited size.
const MAX_UPDATE_WRITES: usize = 20_000;

impl<K> NftDataPlane<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self {
            masquerade: PerFamily::from_fn(|family| options.masquerade(family)),
            options,
            kernel,
            batch_sizer: BatchSizer::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_batch_sizer(self, batch_sizer: BatchSizer) -> Self {
        Self { batch_sizer, ..self }
    }

    fn desired(&self, state: &NodeState, ownership: &VipOwnership, key: &ServicePortKey) -> ServicePortUpdate<Desired> {
        let affine_ports = affine_siblings(state, key).take(Affinity::MAX_PORTS).count();
        let of_family = |family| {
            let is_owned = |vip: &_| ownership.owns(key, family, vip);
            let (service_port, node) = (state.service_port(key)?, &state.node().addresses);
            desired(service_port, family, self.masquerade[family], is_owned, node, affine_ports)
        };
        ServicePortUpdate { key: key.clone(), desired: PerFamily::from_fn(of_family) }
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }

    fn committer<'a>(
        &'a mut self,
        observed: &'a mut Observed,
        updates: &'a [ServicePortUpdate<Desired>],
        options: &'a EffectiveOptions,
        repairs: PerFamily<Repairs>,
    ) -> Committer<'a, K> {
        Committer::new(&mut self.kernel, observed, updates, options, self.batch_sizer, repairs)
    }
}

/// The service ports with session affinity of the Service of a service port, which share its client buckets.
fn affine_siblings<'a>(state: &'a NodeState, key: &ServicePortKey) -> impl Iterator<Item = &'a ServicePortKey> {
    let (namespace, name) = (key.namespace.clone(), key.name.clone());
    let first = ServicePortKey { port_name: "".into(), protocol: Protocol::ALL[0], ..key.clone() };
    let is_sibling = move |key: &ServicePortKey| key.namespace == namespace && key.name == name;
    let siblings = state.service_ports().range(first..).take_while(move |(key, _)| is_sibling(key));
    siblings.filter(|(_, service)| service.port.affinity_seconds.is_some()).map(|(key, _)| key)
}

/// Adds the service ports whose client buckets may change because another port of their Service has gained or lost
/// session affinity.
fn with_affine_siblings(
    mut service_ports: BTreeSet<ServicePortKey>,
    state: &NodeState,
    applied: &AppliedState,
) -> BTreeSet<ServicePortKey> {
    let is_affine = |key| state.service_port(key).is_some_and(|service| service.port.affinity_seconds.is_some());
    let toggled = service_ports.iter().filter(|key| is_affine(key) != applied.is_affine(key));
    let services: BTreeMap<_, ServicePortKey> =
        toggled.map(|key| ((key.namespace.clone(), key.name.clone()), key.clone())).collect();
    service_ports.extend(services.values().flat_map(|key| affine_siblings(state, key)).cloned());
    service_ports
}

impl<K: Kernel> DataPlane for NftDataPlane<K> {
    const NAME: &'static str = "nftables";

    type Applied = AppliedState;

    async fn reconcile(&mut self, state: &NodeState, ownership: &VipOwnership) -> Result<Synced<AppliedState>> {
        let (urgent, others) = urgent_first(state);
        let is_new = self.kernel.tables().await?.is_empty();
        let mut updates: Vec<_> = urgent.iter().map(|key| self.desired(state, ownership, key)).collect();
        // On a node without our tables the urgent service ports do not wait until the others are computed.
        if !is_new {
            updates.extend(others.iter().map(|key| self.desired(state, ownership, key)));
        }
        let keys = if is_new { EndpointKeys::default() } else { EndpointKeys::of(&updates) };
        let listings = self.kernel.list(keys).await?;
        let base = self.base(state);
        let is_owned = |family, vip: &_| ownership.owner(family, vip).is_some();
        let options = self.options.effective(state.node());
        let (mut observed, mut repairs) = Observed::new(listings, &base, &options, is_owned);
        updates.iter_mut().for_each(|update| observed.keep_slots(update));

        let (mut first, mut writes) = (0, 0);
        if others.len() >= MANY && observed.is_empty() && !rebuilds(&repairs) {
            let mut committer = self.committer(&mut observed, &updates[..urgent.len()], &options, repairs);
            if committer.commit_urgent().await? == UrgentOutcome::Committed {
                first = urgent.len() as u32;
            }
            (writes, repairs) = committer.finish();
        }
        if is_new {
            updates.extend(others.iter().map(|key| self.desired(state, ownership, key)));
        }
        let mut committer = self.committer(&mut observed, &updates, &options, repairs);
        let rejected = commit_all(&mut committer, &updates, first).await?;
        writes += committer.finish().0;

        let addresses = state.node().addresses.clone();
        let mut applied = AppliedState::new(base, options, addresses, observed.into_refs());
        for (index, update) in (0..).zip(updates) {
            match rejected.get(&index) {
                Some(reason) => applied.rejections.insert(&update.key, reason),
                None => applied.service_ports.commit(update),
            }
        }
        Ok(Synced { applied, writes })
    }

    async fn update(&mut self, mut applied: AppliedState, change: Change<'_>) -> Result<UpdateOutcome<AppliedState>> {
        let Change { state, ownership, service_ports, facts } = change;
        let service_ports = with_affine_siblings(service_ports, state, &applied);
        let mut updates: Vec<_> = service_ports.iter().map(|key| self.desired(state, ownership, key)).collect();
        updates.iter_mut().for_each(|update| applied.keep_slots(update));
        let repairs = if facts {
            let node = state.node();
            applied.rebase(self.base(state), self.options.effective(node), node.addresses.clone())
        } else {
            PerFamily::default()
        };
        let all: Vec<u32> = (0..updates.len() as u32).collect();
        let plan = Plan::new(&applied, (&updates, &all), repairs, WHOLE, Unneeded::Delete, &applied.options);
        let writes = plan.writes();
        if writes > MAX_UPDATE_WRITES {
            return Ok(UpdateOutcome::TooLarge);
        }
        let Plan { operations, refs, taken: _ } = plan;
        if !operations.is_empty()
            && let Err(error) = self.kernel.commit(operations).await
        {
            return Ok(UpdateOutcome::Rejected(error.into_rejection()?.to_string()));
        }
        applied.commit(refs, updates);
        Ok(UpdateOutcome::Applied(Synced { applied, writes }))
    }

    fn node_dependents(&self, applied: &AppliedState, node: &NodeInfo) -> Option<fn(&ServicePort) -> bool> {
        (applied.node_addresses != node.addresses).then_some(|port| !port.source_ranges.is_empty())
    }

    async fn drifted(&mut self, _: &mut Option<AppliedState>) -> Drift {
        self.kernel.drifted().await
    }

    async fn cleanup(&mut self) -> Result<()> {
        let families = self.kernel.tables().await?;
        let operations: Vec<_> = families.into_iter().map(|family| (family, Operation::DeleteTable)).collect();
        if !operations.is_empty() {
            self.kernel.commit(operations).await.context("delete our tables")?;
        }
        Ok(())
    }

    async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        let tables = self.kernel.tables().await?.into_iter().map(table);
        let names = tables.map(|table| format!("table {} {}", table.family, table.name));
        Ok(names.map(|kind| InstalledObject { subsystem: "nf_tables".to_owned(), kind, count: 1 }).collect())
    }
}

impl<K: Kernel> DryRunPlane for NftDataPlane<DryRun<K>> {
    fn discard(&mut self) {
        self.kernel.take();
    }

    async fn differences(
        &mut self,
        _: &NodeState,
        ownership: &VipOwnership,
        _: &AppliedState,
    ) -> Result<Vec<Difference>> {
        Ok(differences(self.kernel.take(), |family, vip| ownership.owner(family, vip)))
    }
}
