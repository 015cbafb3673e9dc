//! Commits service ports to one family, as scripts for `iptables-restore`.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use backend::driver::{Answer, Rejection, ServicePortUpdate, Transactions, Unneeded};
use iptables::{Hook, RestoreError};
use proto::model::IpFamily;

use crate::{
    desired::{Base, Desired},
    kernel::Kernel,
    observed::Observed,
    plan::{FullComparison, Script},
};

/// With fewer service ports the urgent ones get no script of their own.
const MANY: usize = 500;

/// Commits updates to one family of a kernel.
pub(crate) struct Committer<'a, K> {
    kernel: &'a mut K,
    family: IpFamily,
    base: &'a Base,
    hooks: &'a [Hook],
    updates: &'a [ServicePortUpdate<Desired>],
    /// `None`: the kernel has to be read again, because a script changed it.
    observed: Option<Observed>,
    /// Lines that changed something.
    writes: usize,
}

impl<'a, K: Kernel> Committer<'a, K> {
    /// Reads the family; `None`: iptables is not installed for it.
    pub(crate) async fn new(
        kernel: &'a mut K,
        family: IpFamily,
        base: &'a Base,
        hooks: &'a [Hook],
        updates: &'a [ServicePortUpdate<Desired>],
    ) -> Result<Option<Self>> {
        let Some(observed) = observe(kernel, family).await? else { return Ok(None) };
        // Loopback addresses are routed only while the rules that protect them exist.
        if observed.routes_localnet() && !base.routes_localnet() {
            kernel.route_localnet(false)?;
        }
        Ok(Some(Self { kernel, family, base, hooks, updates, observed: Some(observed), writes: 0 }))
    }

    /// Commits the first `urgent` updates on their own if the kernel has nothing of ours yet and many others follow.
    pub(crate) async fn commit_urgent(&mut self, urgent: usize) -> Result<()> {
        let is_new = self.observed.as_ref().is_some_and(|observed| observed.ours().next().is_none());
        if !is_new || self.updates.len() < MANY {
            return Ok(());
        }
        let urgent = (0..).zip(self.updates).take(urgent);
        let urgent = urgent.filter(|(_, update)| update.desired[self.family].is_some());
        let urgent: BTreeSet<u32> = urgent.map(|(index, _)| index).collect();
        if !urgent.is_empty() {
            // What the kernel rejects now it rejects again with the others.
            let _: Answer = self.commit(&urgent, Unneeded::Keep).await?;
        }
        Ok(())
    }

    /// To be called when everything is committed. Returns the number of lines that changed something.
    pub(crate) fn finish(self) -> Result<usize> {
        if self.base.routes_localnet() {
            self.kernel.route_localnet(true)?;
        }
        Ok(self.writes)
    }

    async fn commit(&mut self, active: &BTreeSet<u32>, unneeded: Unneeded) -> Result<Answer> {
        let observed = match self.observed.take() {
            Some(observed) => observed,
            None => observe(self.kernel, self.family).await?.context("iptables is not installed any more")?,
        };
        let Self { base, hooks, updates, family, .. } = *self;
        let plan = FullComparison { observed: &observed, base, hooks, updates, active, unneeded }.plan(family);
        let script = plan.script(self.kernel.max_lines());
        if script.is_empty() {
            self.observed = Some(observed);
            return Ok(Ok(()));
        }
        Ok(match self.kernel.restore(family, &script).await {
            Ok(()) => {
                self.writes += script.commands();
                Ok(())
            }
            Err(error) => Err(rejection(&script, error)?),
        })
    }
}

impl<K: Kernel> Transactions for Committer<'_, K> {
    async fn commit_next(&mut self, committed: &BTreeSet<u32>, remaining: &[u32]) -> Result<(usize, Answer)> {
        let active = committed.iter().chain(remaining).copied().collect();
        Ok((remaining.len(), self.commit(&active, Unneeded::Delete).await?))
    }

    async fn commit_part(&mut self, committed: &BTreeSet<u32>, part: &[u32]) -> Result<Answer> {
        let active = committed.iter().chain(part).copied().collect();
        self.commit(&active, Unneeded::Keep).await
    }
}

/// What the kernel contains of a family; `None`: iptables is not installed for it.
pub(crate) async fn observe<K: Kernel>(kernel: &mut K, family: IpFamily) -> Result<Option<Observed>> {
    let saved = kernel.save(family).await;
    let observed = saved.and_then(|saved| saved.as_deref().map(Observed::parse).transpose());
    observed.with_context(|| format!("read the {family} tables"))
}

/// Traces the lines that iptables rejected to the service ports that they are for.
pub(crate) fn rejection(script: &Script, error: RestoreError) -> Result<Rejection> {
    let (lines, reason) = match error {
        RestoreError::Rejected { lines, reason, .. } => (lines, reason),
        RestoreError::Failed(error) => return Err(error),
    };
    let named: BTreeSet<u32> = lines.iter().filter_map(|line| script.owner(*line)).collect();
    let unnamed = named.is_empty().then(|| reason.clone());
    Ok(Rejection { named: named.into_iter().map(|index| (index, reason.clone())).collect(), unnamed })
}
