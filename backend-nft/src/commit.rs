//! Commits service ports to the kernel: in one transaction when they change little, otherwise in several that take
//! about the same time, each service port in one of them.
//!
//! ```text
//!   cold:  [ base ruleset, urgent ]  [ all pool chains, some ]  [ some ] ... [ the last, and deletions ]
//! ```

mod batch_sizer;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use anyhow::Result;
use backend::{
    dataplane::EffectiveOptions,
    driver::{Answer, ServicePortUpdate, Transactions, Unneeded},
};
use proto::model::PerFamily;
use tracing::debug;

use crate::{
    desired::Desired,
    kernel::Kernel,
    observed::Observed,
    plan::{Budget, Operation, Plan, Prepare, Repairs},
};

pub(crate) use batch_sizer::BatchSizer;

/// Commits updates to a kernel that contains `observed`, and keeps its reference counts up to date.
pub(crate) struct Committer<'a, K> {
    kernel: &'a mut K,
    observed: &'a mut Observed,
    updates: &'a [ServicePortUpdate<Desired>],
    options: &'a EffectiveOptions,
    batch_sizer: BatchSizer,
    /// What of the base ruleset is not committed yet.
    repairs: PerFamily<Repairs>,
    /// Whether everything has to be in one transaction.
    whole: bool,
    prepare: Prepare,
    writes: usize,
}

/// The result of the transaction for the urgent service ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrgentOutcome {
    Committed,
    Rejected,
}

/// No limit, and nothing of later transactions.
pub(crate) const WHOLE: (Budget, Prepare) = (Budget::Unlimited, Prepare::Nothing);

impl<'a, K> Committer<'a, K> {
    pub(crate) fn new(
        kernel: &'a mut K,
        observed: &'a mut Observed,
        updates: &'a [ServicePortUpdate<Desired>],
        options: &'a EffectiveOptions,
        batch_sizer: BatchSizer,
        repairs: PerFamily<Repairs>,
    ) -> Self {
        let (whole, prepare) = (rebuilds(&repairs), Prepare::PoolChains);
        Self { kernel, observed, updates, options, batch_sizer, repairs, whole, prepare, writes: 0 }
    }
}

impl<K: Kernel> Committer<'_, K> {
    /// Commits the base ruleset and all updates, which are few. If the kernel rejects anything, nothing is committed:
    /// [`commit_all`](backend::driver::commit_all) finds out what.
    pub(crate) async fn commit_urgent(&mut self) -> Result<UrgentOutcome> {
        let all: Vec<u32> = (0..self.updates.len() as u32).collect();
        let (now, later) = self.split_repairs();
        let (_, answer) = self.commit(&all, now, WHOLE, Unneeded::Keep).await?;
        if let Err(rejection) = answer {
            debug!(%rejection, "kernel rejected the urgent service ports, committing them with the others");
            return Ok(UrgentOutcome::Rejected);
        }
        self.repairs = later;
        Ok(UrgentOutcome::Committed)
    }

    /// How many objects were written, and what of the base ruleset is not committed.
    pub(crate) fn finish(self) -> (usize, PerFamily<Repairs>) {
        (self.writes, self.repairs)
    }

    /// What has to be done before or with the service ports, and what can wait until the last transaction.
    fn split_repairs(&self) -> (PerFamily<Repairs>, PerFamily<Repairs>) {
        let mut now = self.repairs.clone();
        let later = PerFamily::from_fn(|family| now[family].split_off_later());
        (now, later)
    }

    /// Commits as many of `active` as the budget allows. Returns how many that are.
    async fn commit(
        &mut self,
        active: &[u32],
        repairs: PerFamily<Repairs>,
        limits: (Budget, Prepare),
        unneeded: Unneeded,
    ) -> Result<(usize, Answer)> {
        let plan = Plan::new(self.observed, (self.updates, active), repairs, limits, unneeded, self.options);
        let writes = plan.writes();
        let Plan { operations, refs, taken } = plan;
        if !operations.is_empty() {
            match self.kernel.commit(operations).await {
                Ok(took) => self.batch_sizer.measured(writes, took),
                Err(error) => return Ok((taken, Err(error.into_rejection()?))),
            }
        }
        self.writes += writes;
        self.observed.commit(refs);
        Ok((taken, Ok(())))
    }
}

impl<K: Kernel> Transactions for Committer<'_, K> {
    async fn commit_next(&mut self, _: &BTreeSet<u32>, remaining: &[u32]) -> Result<(usize, Answer)> {
        let budget = if self.whole { Budget::Unlimited } else { self.batch_sizer.budget() };
        let repairs = self.repairs.clone();
        let (taken, answer) = self.commit(remaining, repairs, (budget, self.prepare), Unneeded::Delete).await?;
        if answer.is_ok() && taken < remaining.len() {
            (_, self.repairs) = self.split_repairs();
            self.prepare = Prepare::Nothing;
        }
        Ok((taken, answer))
    }

    async fn commit_part(&mut self, _: &BTreeSet<u32>, part: &[u32]) -> Result<Answer> {
        let (now, later) = if part.is_empty() { self.split_repairs() } else { Default::default() };
        let (_, answer) = self.commit(part, now, WHOLE, Unneeded::Keep).await?;
        if part.is_empty() {
            self.repairs = later;
        }
        Ok(answer)
    }
}

/// Whether a table is replaced as a whole. The old one must stay until the new one is complete.
pub(crate) fn rebuilds(repairs: &PerFamily<Repairs>) -> bool {
    repairs.iter().any(|(_, repairs)| repairs.first.contains(&Operation::DeleteTable))
}
