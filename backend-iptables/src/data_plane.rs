//! The iptables part of the driver: reads what the kernel contains, computes the desired state, commits the difference,
//! for each family on its own.

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

/// What happens to the setting `route_localnet` when the rules that protect loopback addresses are removed.
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
    /// The kernel routes loopback addresses and that could not be reset, so the rule that protects them stays.
    keeps_localnet_guard: bool,
}

#[expect(private_bounds, reason = "only this crate calls these methods")]
impl<K: Kernel> IptablesDataPlane<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self { options, kernel, families: UsableFamilies::default(), keeps_localnet_guard: false }
    }

    /// What the kernel contains, of each family that we have programmed. In others, chains of these names may be
    /// kube-proxy's.
    pub(crate) async fn observed(&mut self) -> Result<Vec<(IpFamily, Observed)>> {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let observed = observe(&mut self.kernel, family).await?.filter(Observed::is_programmed);
            found.extend(observed.map(|observed| (family, observed)));
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

    async fn execute(&mut self, family: IpFamily, removal: &Plan) -> Result<()> {
        let script = removal.script(self.kernel.max_lines());
        if !script.is_empty() {
            self.kernel.restore(family, &script).await.context("remove our chains")?;
        }
        Ok(())
    }

    /// Whether a family contains what was applied.
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
        let state = change.state;
        let of_family = |family| {
            let is_owned = |vip: &_| change.owns(key, family, vip);
            desired(state.service_port(key)?, family, options, &state.node().addresses, is_owned)
        };
        ServicePortUpdate { key: key.clone(), desired: PerFamily::from_fn(of_family) }
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
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
        let needs_localnet = base.routes_localnet();
        // Loopback addresses are routed only while the rules that protect them exist.
        let kept = family == IpFamily::V4 && self.keeps_localnet_guard;
        if !needs_localnet && (kept || observed.routes_localnet()) {
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
    async fn observe_family(&mut self, family: IpFamily, base: &mut Base) -> Result<Option<(usize, Content)>> {
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
            Ok(writes) => Ok(Some((writes, Content::of(&observed, base)))),
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
        let mut base = self.base(state);
        self.families.retry_due();
        let (mut writes, mut content) = (0, PerFamily::<Content>::default());
        for family in self.families.iter().collect::<Vec<_>>() {
            if let Some((written, found)) = self.observe_family(family, &mut base[family]).await? {
                writes += written;
                content[family] = found;
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
        let lines = |family| {
            let (applied, updates) = (&*applied, &updates[..]);
            FamilyUpdate { applied, family, updates, base: None, unneeded: Unneeded::Keep }.count_lines()
        };
        self.families.iter().map(lines).sum()
    }

    /// One script for each family.
    async fn commit(&mut self, applied: &mut AppliedState, change: &Change<'_>) -> Result<CommitOutcome> {
        let options = self.options.effective(change.state.node());
        let updates: Vec<_> = change.service_ports.iter().map(|key| self.desired(change, key, &options)).collect();
        let mut new_base = change.facts.then(|| self.base(change.state));
        if let Some(base) = new_base.as_mut().filter(|_| self.keeps_localnet_guard) {
            base[IpFamily::V4].keep_localnet_guard();
        }
        let unneeded = if change.is_last { Unneeded::Delete } else { Unneeded::Keep };
        let (mut writes, mut left, mut plans) = (0, change.budget, PerFamily::<Option<PartialPlan>>::default());
        for family in self.families.iter().collect::<Vec<_>>() {
            let base = new_base.as_ref().map(|base| &base[family]);
            let update = FamilyUpdate { applied, family, updates: &updates, base, unneeded };
            let plan = update.plan(left, change.budget.saturating_sub(left));
            let script = plan.plan.script(self.kernel.max_lines());
            if !script.is_empty()
                && let Err(error) = self.kernel.restore(family, &script).await
            {
                let rejection = rejection(&script, error)?;
                // A part of the script may have been committed, as may the other family's. `read_again` finds out for
                // service ports; the base ruleset is observed anew.
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
                    let (object, process) = ("rule".to_owned(), "unknown".to_owned());
                    return Drift::Changed { object, process, pid: 0 };
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
                    let (subsystem, kind) = (format!("{program} {table}"), "chain".to_owned());
                    objects.push(InstalledObject { subsystem, kind, count });
                }
            }
        }
        Ok(objects)
    }

    /// Reads a family only if the one before is not programmed.
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

/// What the kernel contains of a family; `None`: iptables is not installed for it.
async fn observe<K: Kernel>(kernel: &mut K, family: IpFamily) -> Result<Option<Observed>> {
    let saved = kernel.save(family).await;
    let observed = saved.and_then(|saved| saved.as_deref().map(Observed::parse).transpose());
    observed.with_context(|| format!("read the {family} tables"))
}

/// Records what was written. Returns the service ports that need further transactions.
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
        unfinished.extend(is_unfinished.then(|| key.clone()));
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
    let named: BTreeSet<u32> = lines.iter().filter_map(|line| script.owner(*line)).collect();
    let unnamed = named.is_empty().then(|| reason.clone());
    Ok(Rejection { named: named.into_iter().map(|index| (index, reason.clone())).collect(), unnamed })
}
