//! The nftables part of the driver: reads what the kernel contains, computes the desired state, commits the difference.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, num::NonZeroU32};

use anyhow::{Context, Result};
use backend::{
    Difference, Drift, InstalledObject, NodeState,
    dataplane::{DataplaneOptions, Masquerade, Vip, VipOwnership},
    driver::{
        Applied, Change, CommitOutcome, DataPlane, DryRunPlane, MAX_TRANSACTION_WRITES, Rejection, Synced,
        UsableFamilies,
    },
};
use netlink::nft::TableFamily;
use proto::model::{IpFamily, NodeInfo, PerFamily, ServicePort, ServicePortKey};
use tracing::warn;

use crate::{
    affine_ports::AffinePorts,
    applied::AppliedState,
    batch_sizer::BatchSizer,
    describe::differences,
    desired::{Base, EndpointKeys, Update, base, desired},
    edits::PlannedUpdate,
    kernel::{Kernel, Netlink},
    observed::{Observed, ObservedTable},
    operation::{Operation, Repairs},
    plan::Plan,
};

/// nftables, over any [`Kernel`].
#[derive(Debug)]
pub struct NftDataPlane<K> {
    options: DataplaneOptions,
    masquerade: PerFamily<Masquerade>,
    kernel: K,
    batch_sizer: BatchSizer,
    families: UsableFamilies,
}

impl<K> NftDataPlane<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self {
            masquerade: PerFamily::from_fn(|family| options.masquerade(family)),
            options,
            kernel,
            batch_sizer: BatchSizer::default(),
            families: UsableFamilies::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_batch_sizer(self, batch_sizer: BatchSizer) -> Self {
        Self { batch_sizer, ..self }
    }

    /// `buckets`: the client buckets of a service port with session affinity; `owns`: whether a VIP belongs to one.
    fn desired(
        &self,
        state: &NodeState,
        buckets: NonZeroU32,
        owns: impl Fn(&ServicePortKey, IpFamily, &Vip) -> bool,
        key: &ServicePortKey,
    ) -> Update {
        let service_port = state.service_port(key);
        let of_family = |family| {
            if !self.families.contains(family) {
                return None;
            }
            let is_owned = |vip: &_| owns(key, family, vip);
            let (service_port, node) = (service_port?, &state.node().addresses);
            desired(service_port, family, self.masquerade[family], is_owned, node, buckets).map(Box::new)
        };
        Update { key: key.clone(), desired: PerFamily::from_fn(of_family) }
    }

    /// What is planned for a service port. It is computed once, unless VIPs of it may depend on the transaction.
    fn planned(&self, applied: &mut AppliedState, change: &Change<'_>, key: &ServicePortKey) -> PlannedUpdate {
        let planned = applied.planned.remove(key);
        planned.filter(|_| !change.is_contested).unwrap_or_else(|| {
            let owns = |key: &_, family, vip: &_| change.owns(key, family, vip);
            let buckets = applied.affine_ports.buckets(&key.namespace);
            let mut update = self.desired(change.state, buckets, owns, key);
            applied.keep_slots(&mut update);
            PlannedUpdate::new(applied, update)
        })
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }
}

#[expect(private_bounds, reason = "only this crate calls these methods")]
impl<K: Kernel> NftDataPlane<K> {
    /// Executes a transaction. A rejected one without service ports is repeated for each family alone.
    async fn execute(
        &mut self,
        operations: Vec<(IpFamily, Operation)>,
        has_service_ports: bool,
    ) -> Result<Option<CommitOutcome>> {
        let size: usize = operations.iter().map(|(_, operation)| operation.elements()).sum();
        let base = (!has_service_ports).then(|| operations.clone());
        let rejection = match self.kernel.commit(operations).await? {
            Ok(took) => {
                self.batch_sizer.measured(size, took);
                return Ok(None);
            }
            Err(rejection) => rejection,
        };
        let Some(operations) = base.filter(|_| rejection.unnamed.is_some()) else {
            return Ok(Some(CommitOutcome::Rejected(rejection)));
        };
        self.find_unusable(operations, &rejection).await?;
        Ok(Some(CommitOutcome::UnusableFamily))
    }

    /// Finds out for which family the kernel rejects the base ruleset.
    async fn find_unusable(&mut self, operations: Vec<(IpFamily, Operation)>, rejection: &Rejection) -> Result<()> {
        let mut by_family = PerFamily::<Vec<_>>::default();
        for (family, operation) in operations {
            by_family[family].push((family, operation));
        }
        let is_one_family = by_family.iter().any(|(_, operations)| operations.is_empty());
        for (family, operations) in by_family.into_iter().filter(|(_, operations)| !operations.is_empty()) {
            if is_one_family {
                return self.families.failed(family, rejection.to_string());
            }
            if let Err(rejection) = self.kernel.commit(operations).await? {
                self.families.failed(family, rejection.to_string())?;
            }
        }
        Ok(())
    }
}

/// Deletes our tables of these families.
pub(crate) async fn delete_tables(kernel: &mut impl Kernel, families: &[IpFamily]) -> Result<()> {
    let tables = kernel.tables().await?.into_iter().filter(|(family, _)| families.contains(family));
    let deletions: Vec<_> = tables.map(|(family, name)| (family, Operation::DeleteTable(name))).collect();
    if !deletions.is_empty() {
        let deleted = kernel.commit(deletions).await.and_then(|deleted| deleted.map_err(anyhow::Error::new));
        deleted.context("delete our tables")?;
    }
    Ok(())
}

impl<K: Kernel> DataPlane for NftDataPlane<K> {
    const NAME: &'static str = "nftables";

    type Applied = AppliedState;

    async fn observe(&mut self, state: &NodeState, ownership: &VipOwnership) -> Result<Synced<AppliedState>> {
        self.families.retry_due();
        let affine_ports = AffinePorts::of(state);
        let updates = if self.kernel.tables().await?.is_empty() {
            // On a node without our tables, no service port is programmed.
            Vec::new()
        } else {
            let owns = |key: &_, family, vip: &_| ownership.owns(key, family, vip);
            let desired = |key: &ServicePortKey| self.desired(state, affine_ports.buckets(&key.namespace), owns, key);
            state.service_ports().keys().map(desired).collect()
        };
        let listings = self.kernel.list(EndpointKeys::of(&updates)).await?;
        let (base, options) = (self.base(state), self.options.effective(state.node()));
        let desired =
            updates.iter().flat_map(|update| update.desired.iter().filter_map(|(_, desired)| desired.as_ref()));
        let elements: usize = desired.map(|desired| desired.len()).sum();
        let mut observed = Observed::of(listings, &base, &options);
        for family in IpFamily::ALL.into_iter().filter(|family| !self.families.contains(*family)) {
            observed.tables[family] = ObservedTable::default();
            observed.repairs[family] = Repairs::default();
        }
        // Without a table that serves meanwhile, only what fits into one transaction is replaced without a gap.
        let rebuilds = elements <= MAX_TRANSACTION_WRITES && observed.is_replaced();
        let mut applied = AppliedState::new(base, options, affine_ports, observed, updates, ownership);
        applied.rebuilds = rebuilds;
        Ok(Synced { applied, writes: 0 })
    }

    fn is_untouched(&mut self) -> bool {
        self.kernel.is_untouched()
    }

    fn budget(&self, applied: &AppliedState) -> usize {
        if applied.rebuilds { usize::MAX } else { self.batch_sizer.budget() }
    }

    fn writes(&self, applied: &mut AppliedState, change: &Change<'_>, key: &ServicePortKey) -> usize {
        let planned = self.planned(applied, change, key);
        applied.prepare(&planned.update);
        let size = planned.size;
        if !change.is_contested {
            applied.plan(planned);
        }
        size
    }

    async fn commit(&mut self, applied: &mut AppliedState, change: &Change<'_>) -> Result<CommitOutcome> {
        let Change { state, ownership, service_ports, facts, is_last, budget, .. } = change;
        let mut updates: Vec<_> = service_ports.iter().map(|key| self.planned(applied, change, key)).collect();
        let mut repairs = applied.repairs.clone();
        let new_base = facts.then(|| (self.base(state), self.options.effective(state.node())));
        if let Some((base, options)) = &new_base {
            repairs = applied.rebase(base, options);
            for family in IpFamily::ALL.into_iter().filter(|family| !self.families.contains(*family)) {
                repairs[family] = Repairs::default();
            }
        }
        let stale = applied.stale_aliases(*budget);
        for (family, stale) in stale.iter() {
            repairs[family].unowned.extend(stale);
        }
        let has_stale = stale.iter().any(|(_, stale)| !stale.is_empty());
        let may_finish = *is_last && applied.has_unneeded() && !has_stale;
        let effective = new_base.as_ref().map_or(&applied.options, |(_, options)| options);
        let plan = Plan::new(applied, change, &mut updates, repairs, may_finish, effective);
        let writes = plan.writes();
        let forgotten = updates.iter().flat_map(|planned| applied.forgotten_clients(&planned.update));
        let forgotten: Vec<_> = forgotten.collect();
        let Plan { operations, refs, partial, last } = plan;
        if !operations.is_empty()
            && let Some(rejected) = self.execute(operations, !service_ports.is_empty()).await?
        {
            return Ok(rejected);
        }
        self.families.programmed();
        if !forgotten.is_empty()
            && let Err(error) = self.kernel.forget_clients(forgotten).await
        {
            let error = format!("{error:#}");
            warn!(error, "clients of session affinity stay until their timeout, although no service port has them");
        }
        let unfinished: Vec<_> =
            partial.keys().filter_map(|index| service_ports.get(*index as usize)).cloned().collect();
        applied.commit(refs, updates, partial, !change.is_contested);
        applied.remove_observed(&stale, ownership);
        if let Some((base, options)) = new_base {
            applied.base = base;
            applied.options = options;
        }
        if let Some(removed) = last {
            applied.commit_last(&removed, ownership);
        }
        Ok(CommitOutcome::Committed { writes, unfinished })
    }

    fn node_dependents(&self, before: &NodeInfo, after: &NodeInfo) -> Option<fn(&ServicePort) -> bool> {
        (before.addresses != after.addresses).then_some(|port| !port.source_ranges.is_empty())
    }

    fn families(&self) -> &UsableFamilies {
        &self.families
    }

    /// The service ports with session affinity of namespaces in which these have another number of client buckets now.
    fn dependents(
        &self,
        applied: &mut AppliedState,
        before: &NodeState,
        after: &NodeState,
        changed: &BTreeSet<ServicePortKey>,
    ) -> BTreeSet<ServicePortKey> {
        applied.affine_ports.update(before, after, changed)
    }

    async fn drifted(&mut self, _: &mut Option<AppliedState>) -> Drift {
        self.kernel.drifted().await
    }

    async fn cleanup(&mut self) -> Result<()> {
        delete_tables(&mut self.kernel, &IpFamily::ALL).await
    }

    async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        let tables = self.kernel.tables().await?.into_iter();
        let names = tables.map(|(family, name)| format!("table {} {name}", TableFamily::from(family)));
        Ok(names.map(|kind| InstalledObject { subsystem: "nf_tables".to_owned(), kind, count: 1 }).collect())
    }
}

impl DryRunPlane for NftDataPlane<Netlink> {
    async fn begin_dry_run(&mut self) -> Result<()> {
        self.kernel.begin_dry_run();
        Ok(())
    }

    async fn differences(
        &mut self,
        _: &NodeState,
        ownership: &VipOwnership,
        _: &AppliedState,
    ) -> Result<Vec<Difference>> {
        Ok(differences(self.kernel.take_recorded(), |family, vip| ownership.owner(family, vip)))
    }
}
