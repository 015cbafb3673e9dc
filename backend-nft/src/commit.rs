//! Commits the edits of many service ports at once. When the kernel refuses, those to blame are left out and the rest is committed:
//! by the kernel's own word where it names the element, by halving otherwise.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use proto::model::PerFamily;
use tracing::{debug, warn};

use crate::{
    kernel::{CommitError, Kernel, Refused},
    options::Options,
    plan::{Edit, Plan, Repairs, Sweep},
    present::Present,
};

/// So many service ports may be refused before something else must be wrong.
const MAX_REFUSED: usize = 64;

/// What has come of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Objects written.
    pub(crate) writes: usize,
    /// The edits that are not in force, by index, each with the reason.
    pub(crate) refused: BTreeMap<u32, String>,
}

/// Commits edits to a kernel that holds `present`, and keeps what is shared in it up to date.
pub(crate) struct Committer<'a, K> {
    pub(crate) kernel: &'a mut K,
    pub(crate) present: &'a mut Present,
    pub(crate) edits: &'a [Edit],
    pub(crate) options: &'a Options,
    pub(crate) outcome: Outcome,
}

impl<K: Kernel> Committer<'_, K> {
    /// Commits all, in one transaction if the kernel has nothing against it.
    pub(crate) async fn run(mut self, repairs: PerFamily<Repairs>) -> Result<Outcome> {
        let mut active: Vec<u32> = (0..self.edits.len() as u32).collect();
        loop {
            let Err(refused) = self.commit(&active, repairs.clone(), Sweep::Delete).await? else {
                return Ok(self.outcome);
            };
            if refused.unexplained.is_some() {
                break;
            }
            self.exclude(&mut active, refused)?;
        }
        debug!(services = active.len(), "the kernel does not say what it refuses: halving");
        self.commit(&[], repairs, Sweep::Keep).await?.context("the fixed chains were refused")?;
        self.halve(active).await?;
        self.commit(&[], PerFamily::default(), Sweep::Delete)
            .await?
            .context("deleting what is unused was refused")?;
        Ok(self.outcome)
    }

    async fn halve(&mut self, active: Vec<u32>) -> Result<()> {
        let mut parts = vec![active];
        while let Some(mut part) = parts.pop() {
            let Err(refused) = self.commit(&part, PerFamily::default(), Sweep::Keep).await? else { continue };
            match (&part[..], &refused.unexplained) {
                ([only], _) => {
                    let refused = Refused { blamed: vec![(*only, refused.to_string())], unexplained: None };
                    self.exclude(&mut part, refused)?;
                }
                (_, None) => {
                    self.exclude(&mut part, refused)?;
                    parts.push(part);
                }
                (_, Some(_)) => {
                    parts.push(part.split_off(part.len() / 2));
                    parts.push(part);
                }
            }
        }
        Ok(())
    }

    /// The outer error: no part would fare better.
    async fn commit(
        &mut self,
        active: &[u32],
        repairs: PerFamily<Repairs>,
        sweep: Sweep,
    ) -> Result<Result<(), Refused>> {
        let plan = Plan::new(self.present, (self.edits, active), repairs, sweep, self.options);
        let writes = plan.writes();
        let Plan { operations, refs } = plan;
        if !operations.is_empty() {
            match self.kernel.commit(operations).await {
                Ok(()) => {}
                Err(CommitError::Refused(refused)) => return Ok(Err(refused)),
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        self.outcome.writes += writes;
        self.present.settle(refs);
        Ok(Ok(()))
    }

    fn exclude(&mut self, active: &mut Vec<u32>, refused: Refused) -> Result<()> {
        let before = active.len();
        active.retain(|index| refused.blamed.iter().all(|(blamed, _)| blamed != index));
        if active.len() == before {
            bail!("the kernel refused what was not sent: {refused}");
        }
        for (index, reason) in refused.blamed {
            if let Some(edit) = self.edits.get(index as usize) {
                warn!(service = %edit.key, error = %reason, "the kernel refused a service port; left out");
            }
            self.outcome.refused.insert(index, reason);
        }
        if self.outcome.refused.len() > MAX_REFUSED {
            let reason = self.outcome.refused.values().next().map_or("", |reason| reason);
            bail!("the kernel refused more than {MAX_REFUSED} service ports, the first one: {reason}");
        }
        Ok(())
    }
}
