//! The iptables part of the driver: reads the rules, computes the desired state, commits the difference, for each
//! family on its own.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, mem, time::Duration};

use anyhow::{Context as _, Result};
use backend::{
    Difference, Drift, InstalledObject, NodeState,
    dataplane::{DataplaneOptions, EffectiveOptions, VipOwnership},
    driver::{
        Change, CommitOutcome, DataPlane, DryRunPlane, Rejection, ServicePortUpdate, Synced, Unneeded, UsableFamilies,
    },
};
use iptables::RestoreError;
use proto::model::{IpFamily, NodeInfo, PerFamily, ServicePort, ServicePortKey};
use tracing::warn;

use crate::{
    applied::AppliedState,
    content::Content,
    describe::{chain_owners, differences},
    desired::{Base, Desired, base, desired},
    kernel::{IptablesKernel, Kernel, Suspicion},
    observed::Observed,
    plan::{FamilyUpdate, PartialPlan, Plan, Script, complete_base, remove, remove_unshared},
    table::TABLES,
};

/// The setting `route_localnet` after the rules that protect loopback addresses are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopbackRouting {
    /// It is reset: no other rules serve node ports on 127.0.0.0/8.
    Reset,
    /// Other rules need it.
    Keep,
}

/// iptables, over any [`Kernel`].
#[derive(Debug)]
pub struct IptablesDataPlane<K> {
    options: DataplaneOptions,
    kernel: K,
    families: UsableFamilies,
    /// Whether the rule that protects loopback addresses stays, because the kernel routes them and that setting could
    /// not be reset.
    keeps_localnet_guard: bool,
}

/// A family after its base ruleset was programmed.
#[derive(Debug)]
struct ObservedFamily {
    /// The number of objects that the base ruleset needed.
    writes: usize,
    content: Content,
}

#[expect(private_bounds, reason = "only this crate calls these methods")]
impl<K: Kernel> IptablesDataPlane<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self { options, kernel, families: UsableFamilies::default(), keeps_localnet_guard: false }
    }

    /// The rules of each family that we have programmed. In other families, chains of these names may be kube-proxy's.
    pub(crate) async fn observed(&mut self) -> Result<Vec<(IpFamily, Observed)>> {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            if let Some(observed) = observe(&mut self.kernel, family).await?
                && observed.is_programmed()
            {
                found.push((family, observed));
            }
        }
        Ok(found)
    }

    /// Removes the rules of a family, if we have programmed it.
    pub(crate) async fn remove(&mut self, family: IpFamily, loopback: LoopbackRouting) -> Result<()> {
        let observed = observe(&mut self.kernel, family).await?.filter(Observed::is_programmed);
        let Some(observed) = observed else { return Ok(()) };

        if loopback == LoopbackRouting::Reset
            && observed.routes_localnet()
            && let Err(error) = self.kernel.route_localnet(false)
        {
            // Read-only in a container without privileges. Rules that stay would be worse.
            warn!(
                error = format!("{error:#}"),
                "cannot reset net.ipv4.conf.all.route_localnet: hosts in the node's networks can reach its loopback \
                 addresses; set it to 0 on the node"
            );
        }

        self.execute(family, &remove(&observed)).await
    }

    /// Removes the chains of a family that kube-proxy's rules do not use, and returns their number.
    pub(crate) async fn remove_unshared(&mut self, family: IpFamily) -> Result<usize> {
        let Some(observed) = observe(&mut self.kernel, family).await? else { return Ok(0) };
        let plan = remove_unshared(&observed);
        self.execute(family, &plan).await?;
        Ok(plan.delete_chains.len())
    }

    /// Restores the script of a removal.
    async fn execute(&mut self, family: IpFamily, removal: &Plan) -> Result<()> {
        let script = removal.script(self.kernel.max_lines());
        if !script.is_empty() {
            self.kernel.restore(family, &script).await.context("remove our chains")?;
        }
        Ok(())
    }

    /// Whether a family contains the applied state.
    async fn is_unchanged(&mut self, family: IpFamily, applied: &AppliedState) -> Result<bool> {
        if !self.families.contains(family) {
            return Ok(true);
        }
        let Some(observed) = observe(&mut self.kernel, family).await? else { return Ok(false) };

        let base = &applied.base[family];
        let has_base = complete_base(&observed, base) == Plan::default();
        Ok(has_base && Content::of(&observed, base).is_same(&applied.content[family]))
    }

    fn desired(
        &self,
        change: &Change<'_>,
        key: &ServicePortKey,
        options: &EffectiveOptions,
    ) -> ServicePortUpdate<Desired> {
        let mut update = ServicePortUpdate { key: key.clone(), desired: PerFamily::default() };
        let Some(service_port) = change.state.service_port(key) else { return update };

        let node = &change.state.node().addresses;
        for family in IpFamily::ALL {
            let is_owned = |vip: &_| change.owns(key, family, vip);
            update.desired[family] = desired(service_port, family, options, node, is_owned);
        }
        update
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }

    /// The base ruleset after the facts of the node or the cluster have changed.
    fn new_base(&self, state: &NodeState) -> PerFamily<Base> {
        let mut base = self.base(state);
        if self.keeps_localnet_guard {
            base.v4.keep_localnet_guard();
        }
        base
    }

    /// Reads the rules of the families again, after a script was rejected: a part of it may have been committed, for
    /// these service ports.
    async fn read_again(&mut self, applied: &mut AppliedState, service_ports: &[ServicePortKey]) -> Result<()> {
        let mut content = PerFamily::<Content>::default();
        for family in self.families.iter() {
            let observed = observe(&mut self.kernel, family).await?.context("iptables is not installed any more")?;
            content[family] = Content::of(&observed, &applied.base[family]);
        }
        applied.read_again(content, service_ports);
        Ok(())
    }

    /// Resets `route_localnet`. Where that is not possible, the rule that protects loopback addresses becomes a part of
    /// the base ruleset.
    fn reset_localnet(&mut self, base: &mut Base) {
        let reset = self.kernel.route_localnet(false);
        let kept_before = mem::replace(&mut self.keeps_localnet_guard, reset.is_err());
        let Err(error) = reset else { return };

        base.keep_localnet_guard();
        if !kept_before {
            // Read-only in a container without privileges.
            warn!(
                error = format!("{error:#}"),
                "cannot reset net.ipv4.conf.all.route_localnet, keeping the rule that protects loopback addresses: set \
                 it to 0 on the node"
            );
        }
    }

    /// Gives the rules of a family this base ruleset. Returns the number of writes.
    async fn program_base(
        &mut self,
        family: IpFamily,
        observed: &Observed,
        base: &mut Base,
    ) -> Result<usize, RestoreError> {
        // Loopback addresses are routed only while the rules that protect them exist.
        let needs_localnet = base.routes_localnet();
        let has_guard = (family == IpFamily::V4 && self.keeps_localnet_guard) || observed.routes_localnet();
        if !needs_localnet && has_guard {
            self.reset_localnet(base);
        }

        let script = complete_base(observed, base).script(usize::MAX);
        if !script.is_empty() {
            self.kernel.restore(family, &script).await?;
        }
        if needs_localnet {
            self.kernel.route_localnet(true).map_err(RestoreError::Failed)?;
        }
        Ok(script.commands())
    }

    /// Reads a family and programs its base ruleset. `None`: it is not programmed.
    async fn observe_family(&mut self, family: IpFamily, base: &mut Base) -> Result<Option<ObservedFamily>> {
        let observed = match observe(&mut self.kernel, family).await {
            Ok(Some(observed)) => observed,
            Ok(None) => {
                let program = PerFamily { v4: "iptables", v6: "ip6tables" }[family];
                self.families.unavailable(family, format!("{program} is not installed"))?;
                return Ok(None);
            }
            Err(error) => {
                self.families.unreadable(family, format!("{error:#}"))?;
                return Ok(None);
            }
        };

        match self.program_base(family, &observed, base).await {
            Ok(writes) => Ok(Some(ObservedFamily { writes, content: Content::of(&observed, base) })),
            Err(RestoreError::Rejected { reason, .. }) => {
                let reason = format!("the kernel rejected the base ruleset: {reason}");
                self.families.failed(family, reason)?;
                Ok(None)
            }
            Err(RestoreError::Failed(error)) => Err(error),
        }
    }
}

impl<K: Kernel> DataPlane for IptablesDataPlane<K> {
    const NAME: &'static str = "iptables";

    type Applied = AppliedState;

    /// Programs the base ruleset too.
    async fn observe(&mut self, state: &NodeState, _: &VipOwnership) -> Result<Synced<AppliedState>> {
        self.families.retry_due();
        let mut base = self.base(state);
        let mut content = PerFamily::<Content>::default();
        let mut writes = 0;
        for family in self.families.iter().collect::<Vec<_>>() {
            if let Some(observed) = self.observe_family(family, &mut base[family]).await? {
                writes += observed.writes;
                content[family] = observed.content;
            }
        }
        self.families.programmed();
        Ok(Synced { applied: AppliedState::new(base, content), writes })
    }

    fn budget(&self, applied: &AppliedState) -> usize {
        self.kernel.script_lines(applied.rules())
    }

    fn writes(&self, applied: &mut AppliedState, change: &Change<'_>, key: &ServicePortKey) -> usize {
        let updates = [self.desired(change, key, &self.options.effective(change.state.node()))];
        let mut lines = 0;
        for family in self.families.iter() {
            let update = FamilyUpdate { applied, family, updates: &updates, base: None, unneeded: Unneeded::Keep };
            lines += update.count_lines();
        }
        lines
    }

    /// One script for each family.
    async fn commit(&mut self, applied: &mut AppliedState, change: &Change<'_>) -> Result<CommitOutcome> {
        let options = self.options.effective(change.state.node());
        let updates: Vec<_> = change.service_ports.iter().map(|key| self.desired(change, key, &options)).collect();
        let new_base = if change.facts { Some(self.new_base(change.state)) } else { None };
        let unneeded = if change.is_last { Unneeded::Delete } else { Unneeded::Keep };

        let mut plans = PerFamily::<Option<PartialPlan>>::default();
        let mut left = change.budget;
        let mut writes = 0;
        for family in self.families.iter().collect::<Vec<_>>() {
            let base = new_base.as_ref().map(|base| &base[family]);
            let update = FamilyUpdate { applied, family, updates: &updates, base, unneeded };
            let plan = update.plan(left, change.budget.saturating_sub(left));
            let script = plan.plan.script(self.kernel.max_lines());
            if !script.is_empty()
                && let Err(error) = self.kernel.restore(family, &script).await
            {
                let rejection = rejection(&script, error)?;
                // A part of the script may have been committed, as may the script of the other family. The content of
                // service ports is read again; after a change of the base ruleset, all rules are observed anew.
                if !applied.is_reconciling || change.facts {
                    return Ok(CommitOutcome::Unknown(rejection.to_string()));
                }
                self.read_again(applied, &change.service_ports).await?;
                return Ok(CommitOutcome::Rejected(rejection));
            }
            writes += script.commands();
            left = left.saturating_sub(plan.lines);
            plans[family] = Some(plan);
        }

        if let Some(base) = new_base {
            applied.base = base;
        }
        let unfinished = committed(applied, &change.service_ports, plans);
        let is_complete = change.is_last && unfinished.is_empty();
        applied.is_reconciling &= !is_complete || applied.has_unclaimed();
        Ok(CommitOutcome::Committed { writes, unfinished })
    }

    fn node_dependents(&self, before: &NodeInfo, after: &NodeInfo) -> Option<fn(&ServicePort) -> bool> {
        if self.options.effective(before) != self.options.effective(after) {
            Some(|_| true)
        } else if before.addresses != after.addresses {
            Some(|port| !port.source_ranges.is_empty())
        } else {
            None
        }
    }

    fn families(&self) -> &UsableFamilies {
        &self.families
    }

    async fn may_be_usable(&mut self) -> bool {
        for family in self.families.due() {
            if let Ok(Some(_)) = self.kernel.save(family).await {
                return true;
            }
            self.families.postpone(family);
        }
        false
    }

    async fn drifted(&mut self, applied: &mut Option<AppliedState>) -> Drift {
        loop {
            let family = match self.kernel.suspect().await {
                Suspicion::Drift(drift) => return drift,
                Suspicion::Compare(family) => family,
            };
            let Some(applied) = applied else { continue };

            match self.is_unchanged(family, applied).await {
                Ok(true) => {}
                Ok(false) => {
                    // The kernel does not tell which process it was.
                    return Drift::Changed { object: "rule".to_owned(), process: "unknown".to_owned(), pid: 0 };
                }
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot read the rules to detect changes");
                    return Drift::Possible;
                }
            }
        }
    }

    async fn cleanup(&mut self) -> Result<()> {
        for family in IpFamily::ALL {
            self.remove(family, LoopbackRouting::Reset).await?;
        }
        Ok(())
    }

    async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        let mut objects = Vec::new();
        for (family, observed) in self.observed().await? {
            let program = self.kernel.program(family).await?;
            for table in TABLES {
                let count = observed.ours().filter(|(of, ..)| *of == table).count();
                if count > 0 {
                    let subsystem = format!("{program} {table}");
                    objects.push(InstalledObject { subsystem, kind: "chain".to_owned(), count });
                }
            }
        }
        Ok(objects)
    }

    /// Reads the second family only if the first one is not programmed.
    async fn is_programmed(&mut self) -> Result<bool> {
        for family in IpFamily::ALL {
            if observe(&mut self.kernel, family).await?.is_some_and(|observed| observed.is_programmed()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn lock_wait(&mut self) -> Duration {
        self.kernel.lock_wait()
    }
}

impl DryRunPlane for IptablesDataPlane<IptablesKernel> {
    async fn begin_dry_run(&mut self) -> Result<()> {
        self.kernel.begin_dry_run();
        Ok(())
    }

    async fn differences(&mut self, state: &NodeState, _: &VipOwnership, _: &AppliedState) -> Result<Vec<Difference>> {
        let mut programs = PerFamily::<String>::default();
        for family in IpFamily::ALL {
            programs[family] = self.kernel.program(family).await?;
        }
        Ok(differences(self.kernel.take_dry_run(), &programs, &chain_owners(state)))
    }
}

/// The rules of a family; `None`: iptables is not installed for it.
async fn observe<K: Kernel>(kernel: &mut K, family: IpFamily) -> Result<Option<Observed>> {
    let context = || format!("read the {family} tables");
    match kernel.save(family).await.with_context(context)? {
        Some(saved) => Observed::parse(&saved).with_context(context).map(Some),
        None => Ok(None),
    }
}

/// Records that the scripts of these plans were restored. Returns the service ports that need further transactions.
fn committed(
    applied: &mut AppliedState,
    service_ports: &[ServicePortKey],
    mut plans: PerFamily<Option<PartialPlan>>,
) -> Vec<ServicePortKey> {
    let mut unfinished = Vec::new();
    for (index, key) in service_ports.iter().enumerate() {
        let mut desired = PerFamily::default();
        let mut is_unfinished = false;
        for family in IpFamily::ALL {
            let Some(plan) = &mut plans[family] else { continue };
            desired[family] = plan.installed[index].take();
            is_unfinished |= plan.unfinished[index];
        }
        applied.service_ports.commit(ServicePortUpdate { key: key.clone(), desired });
        if is_unfinished {
            unfinished.push(key.clone());
        }
    }

    for (family, plan) in plans {
        if let Some(plan) = plan {
            applied.content[family].commit(plan.changes);
        }
    }
    unfinished
}

/// Traces the lines that iptables rejected to service ports.
fn rejection(script: &Script, error: RestoreError) -> Result<Rejection> {
    let (lines, reason) = match error {
        RestoreError::Rejected { lines, reason, .. } => (lines, reason),
        RestoreError::Failed(error) => return Err(error),
    };

    let owners: BTreeSet<u32> = lines.iter().filter_map(|line| script.owner(*line)).collect();
    if owners.is_empty() {
        return Ok(Rejection { named: Vec::new(), unnamed: Some(reason) });
    }
    Ok(Rejection { named: owners.into_iter().map(|owner| (owner, reason.clone())).collect(), unnamed: None })
}
