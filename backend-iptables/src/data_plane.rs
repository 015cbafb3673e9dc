//! The iptables part of the driver: reads what the kernel contains, computes the desired state, commits the difference,
//! for each family on its own.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, bail};
use backend::{
    Difference, Drift, InstalledObject, NodeState,
    dataplane::{DataplaneOptions, EffectiveOptions, VipOwnership},
    driver::{
        Change, CommitOutcome, DataPlane, DryRunPlane, MAX_TRANSACTION_WRITES, Rejection, ServicePortUpdate, Synced,
        Unneeded,
    },
};
use iptables::{Hook, RestoreError};
use proto::model::{IpFamily, NodeInfo, PerFamily, ServicePort, ServicePortKey};
use tracing::warn;

use crate::{
    applied::{AppliedState, Installed},
    describe::{chain_owners, differences},
    desired::{Base, Desired, RuleContext, base, desired, hooks},
    kernel::{DryRun, Kernel, Suspicion},
    observed::Observed,
    plan::{FullComparison, Script, partial, remove},
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
    hooks: Vec<Hook>,
    kernel: K,
    /// The families for which iptables is installed.
    families: Vec<IpFamily>,
}

impl<K> IptablesDataPlane<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self { options, hooks: hooks(), kernel, families: IpFamily::ALL.to_vec() }
    }

    /// What the kernel contains, of each family that we have programmed. In others, chains of these names may be
    /// kube-proxy's.
    pub(crate) async fn observed(&mut self) -> Result<Vec<(IpFamily, Observed)>>
    where
        K: Kernel,
    {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let observed = observe(&mut self.kernel, family).await?.filter(Observed::is_programmed);
            found.extend(observed.map(|observed| (family, observed)));
        }
        Ok(found)
    }

    /// Removes the rules of a family, if we have programmed it.
    pub(crate) async fn remove(&mut self, family: IpFamily, loopback: LoopbackRouting) -> Result<()>
    where
        K: Kernel,
    {
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
        let script = remove(&observed, &self.hooks).script(self.kernel.max_lines());
        if !script.is_empty() {
            self.kernel.restore(family, &script).await.context("remove our chains")?;
        }
        Ok(())
    }

    /// Whether a family contains what was applied.
    async fn is_unchanged(&mut self, family: IpFamily, applied: &AppliedState) -> Result<bool>
    where
        K: Kernel,
    {
        if !self.families.contains(&family) {
            return Ok(true);
        }
        let Some(observed) = observe(&mut self.kernel, family).await? else { return Ok(false) };
        Ok(observed.fingerprint(&self.hooks) == applied.fingerprint(family, &self.hooks))
    }

    fn desired(
        &self,
        change: &Change<'_>,
        key: &ServicePortKey,
        options: &EffectiveOptions,
    ) -> ServicePortUpdate<Desired> {
        let state = change.state;
        let context = RuleContext { effective: options, node: &state.node().addresses };
        let of_family = |family| {
            let is_owned = |vip: &_| change.owns(key, family, vip);
            desired(state.service_port(key)?, family, context, is_owned)
        };
        ServicePortUpdate { key: key.clone(), desired: PerFamily::from_fn(of_family) }
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }

    /// Compares all rules with those of the updates and of the service ports that are reconciled already.
    async fn commit_all(
        &mut self,
        applied: &mut AppliedState,
        change: &Change<'_>,
        mut updates: Vec<ServicePortUpdate<Desired>>,
    ) -> Result<CommitOutcome>
    where
        K: Kernel,
    {
        let count = updates.len() as u32;
        let others = applied.reconciled.iter().flatten().filter(|(key, _)| !change.contains(key));
        updates.extend(others.map(|(_, it)| it.clone()));
        let unneeded = if change.is_last { Unneeded::Delete } else { Unneeded::Keep };
        if change.facts {
            let node = change.state.node();
            applied.base = self.base(change.state);
            (applied.options, applied.node_addresses) = (self.options.effective(node), node.addresses.clone());
        }
        let mut writes = 0;
        for family in applied.families.clone() {
            let observed = observe(&mut self.kernel, family).await?.context("iptables is not installed any more")?;
            let (base, hooks) = (&applied.base[family], &self.hooks);
            let plan = FullComparison { observed: &observed, base, hooks, updates: &updates, unneeded }.plan(family);
            let script = plan.script(self.kernel.max_lines());
            if !script.is_empty()
                && let Err(error) = self.kernel.restore(family, &script).await
            {
                return Ok(CommitOutcome::Rejected(rejection(&script, count, error)?));
            }
            writes += script.commands();
            if base.routes_localnet() {
                self.kernel.route_localnet(true)?;
            }
        }
        applied.is_new = false;
        applied.reconciled = Some(updates.into_iter().map(|update| (update.key.clone(), update)).collect());
        if change.is_last {
            applied.complete();
        }
        Ok(CommitOutcome::Committed { writes, unfinished: Vec::new(), has_unneeded: !change.is_last })
    }

    /// Writes the difference to what was applied, without reading the kernel.
    async fn commit_difference(
        &mut self,
        applied: &mut AppliedState,
        change: &Change<'_>,
        (updates, options): (Vec<ServicePortUpdate<Desired>>, EffectiveOptions),
    ) -> Result<CommitOutcome>
    where
        K: Kernel,
    {
        let new_base = change.facts.then(|| self.base(change.state));
        let mut writes = 0;
        for family in applied.families.clone() {
            let new_base = new_base.as_ref().map(|base| &base[family]);
            let (plan, users) = partial(applied, family, &updates, new_base);
            let script = plan.script(self.kernel.max_lines());
            if !script.is_empty()
                && let Err(error) = self.kernel.restore(family, &script).await
            {
                // A part of the script may have been committed.
                return Ok(CommitOutcome::Unknown(rejection(&script, u32::MAX, error)?.to_string()));
            }
            writes += script.commands();
            applied.commit_users(family, users);
        }
        if let Some(base) = new_base {
            let addresses = change.state.node().addresses.clone();
            (applied.base, applied.options, applied.node_addresses) = (base, options, addresses);
        }
        updates.into_iter().for_each(|update| applied.service_ports.commit(update));
        Ok(CommitOutcome::Committed { writes, unfinished: Vec::new(), has_unneeded: false })
    }
}

impl<K: Kernel> DataPlane for IptablesDataPlane<K> {
    const NAME: &'static str = "iptables";

    type Applied = AppliedState;

    async fn observe(&mut self, state: &NodeState, _: &VipOwnership) -> Result<Synced<AppliedState>> {
        let base = self.base(state);
        let (mut families, mut is_new) = (Vec::new(), true);
        for family in IpFamily::ALL {
            let Some(observed) = observe(&mut self.kernel, family).await? else {
                if self.families.contains(&family) {
                    warn!(%family, "iptables is not installed for this IP family, its Services are not served");
                }
                continue;
            };
            families.push(family);
            is_new &= observed.ours().next().is_none();
            // Loopback addresses are routed only while the rules that protect them exist.
            if observed.routes_localnet() && !base[family].routes_localnet() {
                self.kernel.route_localnet(false)?;
            }
        }
        if families.is_empty() {
            bail!("iptables is not installed");
        }
        self.families.clone_from(&families);
        let options = self.options.effective(state.node());
        let mut applied = AppliedState::new(base, options, state.node().addresses.clone(), families);
        applied.is_new = is_new;
        Ok(Synced { applied, writes: 0 })
    }

    /// A reconcile is one script, after one for the urgent service ports of a new node: reading the rules takes longer
    /// than writing them.
    fn budget(&self, applied: &AppliedState) -> usize {
        if applied.reconciled.is_none() || applied.is_new { MAX_TRANSACTION_WRITES } else { usize::MAX }
    }

    fn writes(&self, applied: &mut AppliedState, change: &Change<'_>, key: &ServicePortKey) -> usize {
        let options = self.options.effective(change.state.node());
        let update = self.desired(change, key, &options);
        let size = |family| {
            let new = update.desired[family].as_ref();
            let old = applied.service_ports.get(key, family);
            let lines = new.map_or(0, Desired::rules) + old.map_or(0, |old| old.chains.len() + old.lines.len());
            let is_equal = new.cloned().map(Installed::from).as_ref() == old;
            if is_equal && applied.reconciled.is_none() { 0 } else { lines }
        };
        applied.families.iter().map(|family| size(*family)).sum()
    }

    async fn commit(&mut self, applied: &mut AppliedState, change: &Change<'_>) -> Result<CommitOutcome> {
        let options = self.options.effective(change.state.node());
        let updates = change.service_ports.iter().map(|key| self.desired(change, key, &options)).collect();
        if applied.reconciled.is_some() {
            self.commit_all(applied, change, updates).await
        } else {
            self.commit_difference(applied, change, (updates, options)).await
        }
    }

    fn node_dependents(&self, applied: &AppliedState, node: &NodeInfo) -> Option<fn(&ServicePort) -> bool> {
        if applied.options != self.options.effective(node) {
            Some(|_| true)
        } else if applied.node_addresses != node.addresses {
            Some(|port| !port.source_ranges.is_empty())
        } else {
            None
        }
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

    fn lock_wait(&mut self) -> Duration {
        self.kernel.lock_wait()
    }
}

impl<K: Kernel> DryRunPlane for IptablesDataPlane<DryRun<K>> {
    fn discard(&mut self) {
        self.kernel.take();
    }

    async fn differences(&mut self, state: &NodeState, _: &VipOwnership, _: &AppliedState) -> Result<Vec<Difference>> {
        let mut programs = PerFamily::<String>::default();
        for family in IpFamily::ALL {
            programs[family] = self.kernel.program(family).await?;
        }
        Ok(differences(self.kernel.take(), &programs, &chain_owners(state)))
    }
}

/// What the kernel contains of a family; `None`: iptables is not installed for it.
async fn observe<K: Kernel>(kernel: &mut K, family: IpFamily) -> Result<Option<Observed>> {
    let saved = kernel.save(family).await;
    let observed = saved.and_then(|saved| saved.as_deref().map(Observed::parse).transpose());
    observed.with_context(|| format!("read the {family} tables"))
}

/// Traces the lines that iptables rejected to the first `count` updates.
fn rejection(script: &Script, count: u32, error: RestoreError) -> Result<Rejection> {
    let (lines, reason) = match error {
        RestoreError::Rejected { lines, reason, .. } => (lines, reason),
        RestoreError::Failed(error) => return Err(error),
    };
    let owners = lines.iter().filter_map(|line| script.owner(*line));
    let named: BTreeSet<u32> = owners.filter(|owner| *owner < count).collect();
    let unnamed = named.is_empty().then(|| reason.clone());
    Ok(Rejection { named: named.into_iter().map(|index| (index, reason.clone())).collect(), unnamed })
}
