//! The nftables part of the driver: reads the tables in the kernel, computes the desired state, commits the difference.

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
    element::ForgottenClients,
    kernel::{Kernel, Netlink, TransactionOutcome},
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

    /// The desired state of a service port. `buckets`: the client buckets that it has under session affinity; `owns`:
    /// whether a VIP belongs to it.
    fn desired(
        &self,
        state: &NodeState,
        buckets: NonZeroU32,
        owns: impl Fn(&ServicePortKey, IpFamily, &Vip) -> bool,
        key: &ServicePortKey,
    ) -> Update {
        let mut update = Update { key: key.clone(), desired: PerFamily::default() };
        let Some(service_port) = state.service_port(key) else { return update };

        let node = &state.node().addresses;
        for family in self.families.iter() {
            let is_owned = |vip: &_| owns(key, family, vip);
            let desired = desired(service_port, family, self.masquerade[family], is_owned, node, buckets);
            update.desired[family] = desired.map(Box::new);
        }
        update
    }

    /// The planned update of a service port. It is computed once, unless VIPs of the service port may depend on the
    /// transaction.
    fn planned(&self, applied: &mut AppliedState, change: &Change<'_>, key: &ServicePortKey) -> PlannedUpdate {
        if let Some(planned) = applied.planned.remove(key)
            && !change.is_contested
        {
            return planned;
        }

        let owns = |key: &_, family, vip: &_| change.owns(key, family, vip);
        let buckets = applied.affine_ports.buckets(&key.namespace);
        let mut update = self.desired(change.state, buckets, owns, key);
        applied.keep_slots(&mut update);
        PlannedUpdate::new(applied, update)
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }

    fn unusable_families(&self) -> impl Iterator<Item = IpFamily> {
        IpFamily::ALL.into_iter().filter(|family| !self.families.contains(*family))
    }
}

#[expect(private_bounds, reason = "only this crate calls these methods")]
impl<K: Kernel> NftDataPlane<K> {
    /// Handles the rejection of a transaction of the base ruleset alone: if the kernel named no element, a family is
    /// unusable.
    async fn base_rejected(
        &mut self,
        operations: Vec<(IpFamily, Operation)>,
        rejection: Rejection,
    ) -> Result<CommitOutcome> {
        if rejection.unnamed.is_none() {
            return Ok(CommitOutcome::Rejected(rejection));
        }
        self.find_unusable(operations, &rejection).await?;
        Ok(CommitOutcome::UnusableFamily)
    }

    /// Finds out for which family the kernel rejects the base ruleset, by a transaction for each family alone.
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
            if let TransactionOutcome::Rejected(rejection) = self.kernel.commit(operations).await? {
                self.families.failed(family, rejection.to_string())?;
            }
        }
        Ok(())
    }

    /// Deletes the stored clients of buckets that service ports have given up.
    async fn forget_clients(&mut self, clients: Vec<ForgottenClients>) {
        if clients.is_empty() {
            return;
        }
        if let Err(error) = self.kernel.forget_clients(clients).await {
            let error = format!("{error:#}");
            warn!(error, "cannot delete unused session-affinity entries, which stay until their timeout");
        }
    }
}

/// Deletes our tables of these families.
pub(crate) async fn delete_tables(kernel: &mut impl Kernel, families: &[IpFamily]) -> Result<()> {
    let tables = kernel.tables().await?.into_iter().filter(|(family, _)| families.contains(family));
    let deletions: Vec<_> = tables.map(|(family, name)| (family, Operation::DeleteTable(name))).collect();
    if deletions.is_empty() {
        return Ok(());
    }

    match kernel.commit(deletions).await.context("delete our tables")? {
        TransactionOutcome::Committed { .. } => Ok(()),
        TransactionOutcome::Rejected(rejection) => Err(anyhow::Error::new(rejection).context("delete our tables")),
    }
}

impl<K: Kernel> DataPlane for NftDataPlane<K> {
    const NAME: &'static str = "nftables";

    type Applied = AppliedState;

    async fn observe(&mut self, state: &NodeState, ownership: &VipOwnership) -> Result<Synced<AppliedState>> {
        self.families.retry_due();
        let affine_ports = AffinePorts::of(state);
        let mut updates = Vec::new();
        // On a node without our tables, no service port is programmed.
        if !self.kernel.tables().await?.is_empty() {
            let owns = |key: &_, family, vip: &_| ownership.owns(key, family, vip);
            let desired = |key: &ServicePortKey| self.desired(state, affine_ports.buckets(&key.namespace), owns, key);
            updates.extend(state.service_ports().keys().map(desired));
        }

        let listings = self.kernel.list(EndpointKeys::of(&updates)).await?;
        let base = self.base(state);
        let options = self.options.effective(state.node());
        let mut observed = Observed::of(listings, &base, &options);
        for family in self.unusable_families() {
            observed.tables[family] = ObservedTable::default();
            observed.repairs[family] = Repairs::default();
        }

        // No table serves meanwhile, so that traffic is served without a gap only if one transaction builds all of it.
        let rebuilds = observed.is_replaced() && element_count(&updates) <= MAX_TRANSACTION_WRITES;
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
        let mut new_base = None;
        if *facts {
            let base = self.base(state);
            let options = self.options.effective(state.node());
            repairs = applied.rebase(&base, &options);
            for family in self.unusable_families() {
                repairs[family] = Repairs::default();
            }
            new_base = Some((base, options));
        }
        let stale = applied.stale_aliases(*budget);
        for (family, stale) in stale.iter() {
            repairs[family].unowned.extend(stale);
        }

        let has_stale = stale.iter().any(|(_, stale)| !stale.is_empty());
        let may_finish = *is_last && applied.has_unneeded() && !has_stale;
        let options = new_base.as_ref().map_or(&applied.options, |(_, options)| options);
        let plan = Plan::new(applied, change, &mut updates, repairs, may_finish, options);
        let writes = plan.writes();
        let Plan { operations, refs, partial, last } = plan;
        let forgotten: Vec<_> = updates.iter().flat_map(|planned| applied.forgotten_clients(&planned.update)).collect();

        if !operations.is_empty() {
            let elements: usize = operations.iter().map(|(_, operation)| operation.elements()).sum();
            // Kept to find an unusable family, which the kernel rejects without naming a service port.
            let base_operations = if service_ports.is_empty() { Some(operations.clone()) } else { None };
            match self.kernel.commit(operations).await? {
                TransactionOutcome::Committed { took } => self.batch_sizer.measured(elements, took),
                TransactionOutcome::Rejected(rejection) => {
                    return match base_operations {
                        Some(operations) => self.base_rejected(operations, rejection).await,
                        None => Ok(CommitOutcome::Rejected(rejection)),
                    };
                }
            }
        }
        self.families.programmed();
        self.forget_clients(forgotten).await;

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
        // Source ranges that contain an address of the node allow load-balancer IPs as sources, too.
        if before.addresses != after.addresses { Some(|port| !port.source_ranges.is_empty()) } else { None }
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
        let mut objects = Vec::new();
        for (family, name) in self.kernel.tables().await? {
            let kind = format!("table {} {name}", TableFamily::from(family));
            objects.push(InstalledObject { subsystem: "nf_tables".to_owned(), kind, count: 1 });
        }
        Ok(objects)
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

/// The elements of these service ports, without shared elements.
fn element_count(updates: &[Update]) -> usize {
    let desired = updates.iter().flat_map(|update| update.desired.iter().filter_map(|(_, desired)| desired.as_ref()));
    desired.map(|desired| desired.len()).sum()
}
