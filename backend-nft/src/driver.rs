//! Keeps a kernel equal to a state: from whatever is found there, or from what was programmed last.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use backend::{
    Changes, Drift, NodeState, PreviewReport, SyncReport,
    dataplane::{DataplaneOptions, EffectiveOptions, Masquerade, VipOwnership, is_urgent, vips},
};
use proto::model::{FailureKind, IpFamily, PerFamily, ServicePortFailure, ServicePortKey};
use tracing::{debug, warn};

use crate::{
    commit::{Committer, Outcome, Pace, Urgent, rebuilds},
    desired::{Base, Desired, Orders, base, desired},
    expected::Expected,
    kernel::{CommitError, DryRun, Kernel},
    plan::{Edit, Operation, Plan, Repairs, Sweep},
    present::Present,
    programmed::Programmed,
    words::differences,
};

/// The backend, over any [`Kernel`].
#[derive(Debug)]
pub(crate) struct Driver<K> {
    options: DataplaneOptions,
    masquerade: PerFamily<Masquerade>,
    kernel: K,
    /// `None`: unknown, the kernel must be asked.
    programmed: Option<Programmed>,
    claims: VipOwnership,
    /// Why the kernel refused a service port. It may hold an earlier form of it.
    refused: BTreeMap<ServicePortKey, String>,
    /// Of the first transactions of a reconcile.
    pace: Pace,
}

/// With fewer service ports nobody has to be first.
const MANY: usize = 256;

/// A change that writes more is made by a reconcile, in transactions of bounded length.
const MAX_APPLIED: usize = 20_000;

impl<K: Kernel> Driver<K> {
    pub(crate) fn new(kernel: K, options: DataplaneOptions) -> Self {
        Self {
            masquerade: PerFamily::from_fn(|family| options.masquerade(family)),
            options,
            kernel,
            programmed: None,
            claims: VipOwnership::default(),
            refused: BTreeMap::new(),
            pace: Pace::default(),
        }
    }

    /// With transactions of so many elements.
    #[cfg(test)]
    pub(crate) fn paced(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// See [`backend::Backend::reconcile`].
    pub(crate) async fn reconcile(&mut self, state: &NodeState) -> Result<SyncReport> {
        self.programmed = None;
        self.claims = VipOwnership::of(state);
        let expected = self.expected(state).await?;
        let listings = self.kernel.list(expected).await?;
        let base = self.base(state);
        let is_owned = |family, front: &_| self.claims.is_owned(family, front);
        let effective = self.options.effective(state.node());
        let (mut present, mut repairs) = Present::new(listings, &base, &effective, is_owned);
        let (urgent, others): (Vec<_>, Vec<_>) =
            state.service_ports().iter().partition(|(_, service)| is_urgent(&service.port));
        let mut edits: Vec<Edit> = urgent.iter().map(|(key, _)| self.found(state, key, &present)).collect();
        let mut outcome = Outcome::default();
        let mut done = 0;
        // On a node that has nothing they do not wait until it is known what the others need.
        if others.len() >= MANY && present.is_empty() && !rebuilds(&repairs) {
            let mut committer = self.committer(&mut present, &edits, &effective, outcome);
            if committer.urgent(&mut repairs).await? == Urgent::InForce {
                done = edits.len() as u32;
            }
            outcome = committer.outcome;
        }
        edits.extend(others.iter().map(|(key, _)| self.found(state, key, &present)));
        let committer = self.committer(&mut present, &edits, &effective, outcome);
        let active = (done..edits.len() as u32).collect();
        let Outcome { writes, refused } = committer.run(active, repairs).await?;

        let node = state.node().addresses.clone();
        let mut programmed = Programmed { services: BTreeMap::new(), base, effective, node, refs: present.into_refs() };
        self.refused.clear();
        for (index, edit) in (0..).zip(edits) {
            match refused.get(&index) {
                Some(reason) => drop(self.refused.insert(edit.key, reason.clone())),
                None => programmed.settle(edit),
            }
        }
        self.programmed = Some(programmed);
        Ok(self.applied(writes))
    }

    /// What should be there; nothing when there is no table, for then nobody needs to know.
    async fn expected(&mut self, state: &NodeState) -> Result<Expected> {
        let (mut expected, mut elements) = (Expected::default(), Vec::new());
        let families = self.kernel.tables().await?;
        for key in state.service_ports().keys().filter(|_| !families.is_empty()) {
            let Edit { desired, .. } = self.edit(state, key, |_| Orders::default());
            for family in &families {
                elements.clear();
                desired[*family].iter().for_each(|desired| desired.elements(&mut elements));
                expected.add(*family, &elements);
            }
        }
        Ok(expected)
    }

    /// See [`backend::Backend::apply`].
    pub(crate) async fn apply(&mut self, state: &NodeState, changes: &Changes) -> Result<SyncReport> {
        // Of a refused service port the kernel may hold anything; the node's facts may touch any of them.
        let unknown = changes.service_ports.iter().any(|key| self.refused.contains_key(key))
            || (changes.node && !self.refused.is_empty());
        let Some(mut programmed) = self.programmed.take().filter(|_| !unknown) else {
            return self.reconcile(state).await;
        };
        let edits: Vec<Edit> = self
            .touched(state, changes, &programmed)
            .iter()
            .map(|key| self.edit(state, key, |family| programmed.orders(key, family)))
            .collect();
        let mut repairs = PerFamily::<Repairs>::default();
        if changes.node || changes.cluster {
            let base = self.base(state);
            let effective = self.options.effective(state.node());
            repairs = PerFamily::from_fn(|family| programmed.rebase(family, &base[family], &effective));
            programmed.base = base;
            programmed.effective = effective;
            programmed.node = state.node().addresses.clone();
        }
        let active: Vec<u32> = (0..edits.len() as u32).collect();
        let plan = Plan::new(&programmed, (&edits, &active), repairs, Sweep::Delete, &programmed.effective);
        let writes = plan.writes();
        if writes > MAX_APPLIED {
            return self.reconcile(state).await;
        }
        let Plan { operations, refs, taken: _ } = plan;
        if !operations.is_empty() {
            match self.kernel.commit(operations).await {
                Ok(_) => debug!(services = edits.len(), writes, "applied"),
                Err(CommitError::Refused(refused)) => {
                    // Somebody changed our table, or one service port is to blame: what is there decides.
                    warn!(error = %refused, "the kernel refused a change: looking at what it holds");
                    return self.reconcile(state).await;
                }
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        programmed.settle_refs(refs);
        edits.into_iter().for_each(|edit| programmed.settle(edit));
        self.programmed = Some(programmed);
        Ok(self.applied(writes))
    }

    /// See [`backend::Backend::drifted`].
    pub(crate) async fn drifted(&mut self) -> Drift {
        self.kernel.drifted().await
    }

    /// The families of which there is a table.
    pub(crate) async fn families(&mut self) -> Result<Vec<IpFamily>> {
        self.kernel.tables().await
    }

    /// See [`backend::Backend::cleanup`].
    pub(crate) async fn cleanup(&mut self) -> Result<()> {
        self.programmed = None;
        let families = self.kernel.tables().await?;
        let operations: Vec<_> = families.into_iter().map(|family| (family, Operation::DeleteTable)).collect();
        if !operations.is_empty() {
            self.kernel.commit(operations).await.context("delete our tables")?;
        }
        Ok(())
    }

    /// The service ports to look at: those that changed, those that gain or lose a contested front by it, and, when the node has
    /// other addresses, those with source ranges.
    fn touched(&mut self, state: &NodeState, changes: &Changes, programmed: &Programmed) -> BTreeSet<ServicePortKey> {
        let mut touched = self.claims.update(state, changes, |key| programmed.fronts(key));
        if changes.node && programmed.node != state.node().addresses {
            let restricted = state.service_ports().iter().filter(|(_, service)| !service.port.source_ranges.is_empty());
            touched.extend(restricted.map(|(key, _)| key.clone()));
        }
        touched
    }

    fn committer<'a>(
        &'a mut self,
        present: &'a mut Present,
        edits: &'a [Edit],
        effective: &'a EffectiveOptions,
        outcome: Outcome,
    ) -> Committer<'a, K> {
        let (kernel, pace) = (&mut self.kernel, self.pace);
        Committer { kernel, present, edits, effective, pace, outcome }
    }

    /// What a service port is to have; its endpoints stay at the places where they were found.
    fn found(&self, state: &NodeState, key: &ServicePortKey, present: &Present) -> Edit {
        self.edit(state, key, |family| {
            let fronts = state.service_port(key).map(|service| vips(&service.port, family)).unwrap_or_default();
            let owned = fronts.iter().map(|(front, _)| front);
            present.orders(family, owned.filter(|front| self.claims.owns(key, family, front)))
        })
    }

    fn edit(&self, state: &NodeState, key: &ServicePortKey, orders: impl Fn(IpFamily) -> Orders) -> Edit {
        let of = |family| -> Option<Desired> {
            let owned = |front: &_| self.claims.owns(key, family, front);
            let (masquerade, node) = (self.masquerade[family], &state.node().addresses);
            desired(state.service_port(key)?, family, masquerade, owned, &orders(family), node)
        };
        Edit { key: key.clone(), desired: PerFamily::from_fn(of) }
    }

    fn base(&self, state: &NodeState) -> PerFamily<Base> {
        PerFamily::from_fn(|family| base(family, &self.options, state.node(), state.cluster()))
    }

    fn applied(&self, writes: usize) -> SyncReport {
        let refused = self.refused.iter().map(|(key, reason)| ServicePortFailure {
            key: key.clone(),
            reason: reason.clone(),
            retryable: true,
            kind: FailureKind::Program,
        });
        let failures = self.claims.failures().chain(refused).collect();
        SyncReport { writes, failures, ..SyncReport::default() }
    }
}

impl<K: Kernel> Driver<DryRun<K>> {
    /// See [`backend::Preview::preview`]: a reconcile, and what came of it.
    pub(crate) async fn preview(&mut self, state: &NodeState) -> Result<PreviewReport> {
        let SyncReport { failures, .. } = self.reconcile(state).await?;
        // Nothing of it is in force.
        self.programmed = None;
        let differences = differences(self.kernel.take(), |family, front| self.claims.owner(family, front));
        Ok(PreviewReport { differences, failures })
    }
}
