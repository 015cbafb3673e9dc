//! Drives a kernel: remembers what it holds, applies commits by their difference, and falls back to a comparison with what is
//! there whenever it cannot be sure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use backend::{
    Changes, Drift, NodeState, PreviewReport, SyncReport,
    dataplane::{DataplaneOptions, EffectiveOptions, VipOwnership, is_urgent},
};
use iptables::{Hook, RestoreError};
use proto::model::{FailureKind, IpFamily, PerFamily, ServicePortFailure, ServicePortKey};
use tracing::{debug, warn};

use crate::{
    commit::{Committer, Outcome},
    describe::{Owners, differences},
    desired::{Base, Context, base, desired, hooks},
    kernel::{DryRun, IptablesKernel, Kernel, Localnet, Suspicion},
    observed::Observed,
    plan::{Edit, partial, remove},
    programmed::Programmed,
};

/// What the backend is, whatever its kernel.
#[derive(Debug)]
pub(crate) struct Driver<K> {
    options: DataplaneOptions,
    hooks: Vec<Hook>,
    kernel: K,
    /// `None`: unknown, the kernel must be asked.
    programmed: Option<Programmed>,
    /// The families for which there is an iptables.
    served: Vec<IpFamily>,
    claims: VipOwnership,
    /// Why a service port was refused. The kernel holds nothing of it in that family.
    refused: BTreeMap<ServicePortKey, String>,
}

impl<K: Kernel> Driver<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self {
            options,
            hooks: hooks(),
            kernel,
            programmed: None,
            served: IpFamily::ALL.to_vec(),
            claims: VipOwnership::default(),
            refused: BTreeMap::new(),
        }
    }

    /// See [`backend::Backend::reconcile`].
    pub(crate) async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.programmed = None;
        self.claims = VipOwnership::of(state);
        let base = self.base(state);
        let effective = self.options.effective(state.node());
        let (urgent, others): (Vec<_>, Vec<_>) =
            state.service_ports().iter().partition(|(_, service)| is_urgent(&service.port));
        let in_order = urgent.iter().chain(&others);
        let mut edits: Vec<Edit> = in_order.map(|(key, _)| self.edit(state, key, &effective)).collect();
        let mut served = Vec::new();
        let mut writes = 0;
        let mut reasons = BTreeMap::new();
        for family in IpFamily::ALL {
            let (base, hooks) = (&base[family], &self.hooks);
            let committer =
                Committer { kernel: &mut self.kernel, family, base, hooks, edits: &edits, urgent: urgent.len() };
            let Some(outcome) = committer.run().await? else {
                if self.served.contains(&family) {
                    warn!(%family, "there is no iptables for this family: its Services are not served");
                }
                continue;
            };
            served.push(family);
            let Outcome { writes: more, refused } = outcome;
            writes += more;
            for (index, reason) in refused {
                if let Some(edit) = edits.get_mut(index as usize) {
                    edit.desired[family] = None;
                    reasons.entry(edit.key.clone()).or_insert(reason);
                }
            }
        }
        if served.is_empty() {
            bail!("iptables is not installed");
        }
        self.served = served;
        self.refused = reasons;
        let mut programmed = Programmed::new(base, effective, state.node().addresses.clone());
        edits.into_iter().for_each(|edit| programmed.adopt(edit));
        self.programmed = Some(programmed);
        Ok(self.applied(writes))
    }

    /// See [`backend::Backend::apply`].
    pub(crate) async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        // What is refused in one family may be in force in the other.
        let unknown = changes.service_ports.iter().any(|key| self.refused.contains_key(key))
            || (changes.node && !self.refused.is_empty());
        let Some(mut programmed) = self.programmed.take().filter(|_| !unknown) else {
            return self.reconcile(state).await;
        };
        let effective = self.options.effective(state.node());
        let touched = self.touched(state, changes, &programmed, &effective);
        let edits: Vec<Edit> = touched.iter().map(|key| self.edit(state, key, &effective)).collect();
        let rebased = (changes.node || changes.cluster).then(|| self.base(state));
        let mut writes = 0;
        for family in self.served.clone() {
            let base = rebased.as_ref().map(|base| &base[family]);
            let (plan, users) = partial(&programmed, family, &edits, base);
            let script = plan.script(self.kernel.at_once());
            if !script.is_empty() {
                match self.kernel.restore(family, &script).await {
                    Ok(()) => debug!(%family, services = edits.len(), writes = script.writes(), "applied"),
                    Err(RestoreError::Rejected { reason, .. }) => {
                        // Somebody changed our chains, or one service port is to blame: what is there decides.
                        warn!(error = reason, "iptables refused a change: looking at what is there");
                        return self.reconcile(state).await;
                    }
                    Err(RestoreError::Failed(error)) => return Err(error),
                }
            }
            writes += script.writes();
            programmed.settle_users(family, users);
        }
        if let Some(base) = rebased {
            programmed.base = base;
            programmed.effective = effective;
            programmed.node.clone_from(&state.node().addresses);
        }
        edits.into_iter().for_each(|edit| programmed.settle(edit));
        self.programmed = Some(programmed);
        Ok(self.applied(writes))
    }

    /// See [`backend::Backend::drifted`].
    pub(crate) async fn drifted(&mut self) -> Drift {
        loop {
            match self.kernel.suspect().await {
                Suspicion::Drift(drift) => return drift,
                Suspicion::Look(family) => match self.look(family).await {
                    Ok(true) => {}
                    Ok(false) => {
                        // Nobody says who it was.
                        let (what, by) = ("rule".to_owned(), "unknown".to_owned());
                        return Drift::Changed { object: what, process: by, pid: 0 };
                    }
                    Err(error) => {
                        warn!(error = format!("{error:#}"), "cannot look at what is there");
                        return Drift::Possible;
                    }
                },
            }
        }
    }

    /// Whether a family holds what was programmed.
    async fn look(&mut self, family: IpFamily) -> Result<bool> {
        let Some(programmed) = self.programmed.as_ref().filter(|_| self.served.contains(&family)) else {
            return Ok(true);
        };
        let Some(saved) = self.kernel.save(family).await? else { return Ok(false) };
        let found = Observed::parse(&saved)?.fingerprint(&self.hooks);
        Ok(found == programmed.fingerprint(family, &self.hooks))
    }

    pub(crate) fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// What is there of each family that has been programmed. Chains of these names may be kube-proxy's in others.
    pub(crate) async fn present(&mut self) -> Result<Vec<(IpFamily, Observed)>> {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let saved = self.kernel.save(family).await?;
            let present = saved.as_deref().map(Observed::parse).transpose()?.filter(Observed::is_programmed);
            found.extend(present.map(|present| (family, present)));
        }
        Ok(found)
    }

    /// See [`backend::Backend::cleanup`].
    pub(crate) async fn cleanup(&mut self) -> Result<()> {
        self.programmed = None;
        for (family, present) in self.present().await? {
            if present.routes_localnet() {
                self.kernel.route_localnet(Localnet::Kept)?;
            }
            let script = remove(&present, &self.hooks).script(self.kernel.at_once());
            if !script.is_empty() {
                self.kernel.restore(family, &script).await.context("remove our chains")?;
            }
        }
        Ok(())
    }

    /// The service ports to look at: those that changed, those that gain or lose a contested front by it, and, when the node's facts
    /// are others, those whose rules may say something about them.
    fn touched(
        &mut self,
        state: &NodeState,
        changes: &Changes,
        programmed: &Programmed,
        effective: &EffectiveOptions,
    ) -> BTreeSet<ServicePortKey> {
        let mut touched = self.claims.update(state, changes, |key| programmed.fronts(key));
        if programmed.effective != *effective {
            touched.extend(state.service_ports().keys().cloned());
        } else if programmed.node != state.node().addresses {
            let restricted = state.service_ports().iter().filter(|(_, service)| !service.port.source_ranges.is_empty());
            touched.extend(restricted.map(|(key, _)| key.clone()));
        }
        touched
    }

    fn edit(&self, state: &NodeState, key: &ServicePortKey, effective: &EffectiveOptions) -> Edit {
        let context = Context { effective, node: &state.node().addresses };
        let of = |family| {
            let owned = |front: &_| self.claims.owns(key, family, front);
            desired(state.service_port(key)?, family, context, owned)
        };
        Edit { key: key.clone(), desired: PerFamily::from_fn(of) }
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }

    fn applied(&mut self, writes: usize) -> SyncReport {
        let refused = self.refused.iter().map(|(key, reason)| ServicePortFailure {
            key: key.clone(),
            reason: reason.clone(),
            retryable: true,
            kind: FailureKind::Program,
        });
        let failures = self.claims.failures().chain(refused).collect();
        SyncReport { writes, failures, lock_wait: self.kernel.waited() }
    }
}

impl Driver<DryRun<IptablesKernel>> {
    /// See [`backend::Preview::preview`]: a reconcile, and what came of it.
    pub(crate) async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        self.kernel.take();
        let SyncReport { failures, .. } = self.reconcile(state).await?;
        // Nothing of it is in force.
        self.programmed = None;
        let mut programs = PerFamily::<String>::default();
        for family in IpFamily::ALL {
            programs[family] = self.kernel.program(family).await?;
        }
        let program = |family| programs[family].clone();
        let differences = differences(self.kernel.take(), program, &Owners::of(state));
        Ok(PreviewReport { differences, failures })
    }
}
