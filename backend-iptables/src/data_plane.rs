//! The iptables part of the driver: reads what the kernel contains, computes the desired state, commits the difference,
//! for each family on its own.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use backend::{
    Difference, Drift, InstalledObject, NodeState,
    dataplane::{DataplaneOptions, EffectiveOptions, VipOwnership},
    driver::{Change, DataPlane, DryRunPlane, ServicePortUpdate, Synced, UpdateOutcome, commit_all, urgent_first},
};
use iptables::Hook;
use proto::model::{IpFamily, NodeInfo, PerFamily, ServicePort, ServicePortKey};
use tracing::warn;

use crate::{
    applied::AppliedState,
    commit::{Committer, observe, rejection},
    describe::{chain_owners, differences},
    desired::{Base, Desired, RuleContext, base, desired, hooks},
    kernel::{DryRun, Kernel, Suspicion},
    observed::Observed,
    plan::{partial, remove},
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
        state: &NodeState,
        ownership: &VipOwnership,
        key: &ServicePortKey,
        options: &EffectiveOptions,
    ) -> ServicePortUpdate<Desired> {
        let context = RuleContext { effective: options, node: &state.node().addresses };
        let of_family = |family| {
            let is_owned = |vip: &_| ownership.owns(key, family, vip);
            desired(state.service_port(key)?, family, context, is_owned)
        };
        ServicePortUpdate { key: key.clone(), desired: PerFamily::from_fn(of_family) }
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }
}

impl<K: Kernel> DataPlane for IptablesDataPlane<K> {
    const NAME: &'static str = "iptables";

    type Applied = AppliedState;

    async fn reconcile(&mut self, state: &NodeState, ownership: &VipOwnership) -> Result<Synced<AppliedState>> {
        let base = self.base(state);
        let options = self.options.effective(state.node());
        let (urgent, others) = urgent_first(state);
        let in_order = urgent.iter().chain(&others);
        let mut updates: Vec<_> = in_order.map(|key| self.desired(state, ownership, key, &options)).collect();
        let mut applied = AppliedState::new(base, options, state.node().addresses.clone());
        let mut families = Vec::new();
        let mut writes = 0;
        for family in IpFamily::ALL {
            let (base, hooks) = (&applied.base[family], &self.hooks);
            let Some(mut committer) = Committer::new(&mut self.kernel, family, base, hooks, &updates).await? else {
                if self.families.contains(&family) {
                    warn!(%family, "iptables is not installed for this IP family, its Services are not served");
                }
                continue;
            };
            families.push(family);
            committer.commit_urgent(urgent.len()).await?;
            let rejected = commit_all(&mut committer, &updates, 0).await?;
            writes += committer.finish()?;
            for (index, reason) in rejected {
                if let Some(update) = updates.get_mut(index as usize) {
                    // The other family may accept it.
                    update.desired[family] = None;
                    applied.rejections.insert(&update.key, &reason);
                }
            }
        }
        if families.is_empty() {
            bail!("iptables is not installed");
        }
        self.families = families;
        updates.into_iter().for_each(|update| applied.add(update));
        Ok(Synced { applied, writes })
    }

    async fn update(&mut self, mut applied: AppliedState, change: Change<'_>) -> Result<UpdateOutcome<AppliedState>> {
        let Change { state, ownership, service_ports, facts } = change;
        let options = self.options.effective(state.node());
        let updates: Vec<_> = service_ports.iter().map(|key| self.desired(state, ownership, key, &options)).collect();
        let new_base = facts.then(|| self.base(state));
        let mut writes = 0;
        for family in self.families.clone() {
            let new_base = new_base.as_ref().map(|base| &base[family]);
            let (plan, users) = partial(&applied, family, &updates, new_base);
            let script = plan.script(self.kernel.max_lines());
            if !script.is_empty()
                && let Err(error) = self.kernel.restore(family, &script).await
            {
                return Ok(UpdateOutcome::Rejected(rejection(&script, error)?.to_string()));
            }
            writes += script.commands();
            applied.commit_users(family, users);
        }
        if let Some(base) = new_base {
            let addresses = state.node().addresses.clone();
            (applied.base, applied.options, applied.node_addresses) = (base, options, addresses);
        }
        updates.into_iter().for_each(|update| applied.service_ports.commit(update));
        Ok(UpdateOutcome::Applied(Synced { applied, writes }))
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
