//! Makes a family what its active edits say, without those that are refused: by the lines that the program names, by halving otherwise.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use iptables::{Hook, RestoreError};
use proto::model::IpFamily;
use tracing::debug;

use crate::{
    desired::Base,
    kernel::{Kernel, Localnet},
    observed::Observed,
    plan::{Edit, Full, Script, Sweep},
};

/// So many service ports may be refused before something else must be wrong.
const MAX_REFUSED: usize = 64;

/// With so many service ports the most urgent ones do not wait until the others are ready.
const MANY: usize = 500;

/// What has come of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Lines that changed something.
    pub(crate) writes: usize,
    /// The edits that are not in force, by index, each with the reason.
    pub(crate) refused: BTreeMap<u32, String>,
}

/// Commits edits to one family of a kernel.
pub(crate) struct Committer<'a, K> {
    pub(crate) kernel: &'a mut K,
    pub(crate) family: IpFamily,
    pub(crate) base: &'a Base,
    pub(crate) hooks: &'a [Hook],
    pub(crate) edits: &'a [Edit],
    /// So many at their beginning are the most urgent ones.
    pub(crate) urgent: usize,
}

/// Why some edits are not in force.
struct Refused {
    blamed: BTreeSet<u32>,
    reason: String,
}

impl<K: Kernel> Committer<'_, K> {
    /// Starts from what is there. `None`: there is no iptables for this family.
    pub(crate) async fn run(mut self) -> Result<Option<Outcome>> {
        let Some(mut present) = self.present().await? else { return Ok(None) };
        // What protects loopback addresses goes after they are routed, and comes before.
        if present.routes_localnet() && !self.base.routes_localnet() {
            self.kernel.route_localnet(Localnet::Kept)?;
        }
        let mut outcome = Outcome::default();
        let urgent = self.urgent(&present);
        if !urgent.is_empty() {
            // What is refused of it will be so again.
            let _ = self.commit(&present, &urgent, Sweep::Keep, &mut outcome).await?;
            present = self.again().await?;
        }
        let mut active: BTreeSet<u32> = (0..self.edits.len() as u32).collect();
        loop {
            let Err(refused) = self.commit(&present, &active, Sweep::Delete, &mut outcome).await? else {
                if self.base.routes_localnet() {
                    self.kernel.route_localnet(Localnet::Routed)?;
                }
                return Ok(Some(outcome));
            };
            if !refused.blamed.is_empty() {
                self.exclude(&mut active, &refused, &mut outcome)?;
            } else if active.is_empty() {
                bail!("what belongs to no service port was refused: {}", refused.reason);
            } else {
                debug!(reason = refused.reason, services = active.len(), "nobody says what is refused: halving");
                active = self.halve(active, &mut outcome).await?;
            }
            present = self.again().await?;
        }
    }

    /// Those that come first where nothing is yet and many others are to come.
    fn urgent(&self, present: &Observed) -> BTreeSet<u32> {
        if self.edits.len() < MANY || present.ours().next().is_some() {
            return BTreeSet::new();
        }
        let urgent = (0..).zip(self.edits).take(self.urgent);
        urgent.filter(|(_, edit)| edit.desired[self.family].is_some()).map(|(index, _)| index).collect()
    }

    /// Those that are in force in the end; what was there before stays meanwhile.
    async fn halve(&mut self, all: BTreeSet<u32>, outcome: &mut Outcome) -> Result<BTreeSet<u32>> {
        let mut accepted = BTreeSet::new();
        // First what belongs to no service port.
        let mut parts = vec![all, BTreeSet::new()];
        while let Some(mut part) = parts.pop() {
            let present = self.again().await?;
            let together = &accepted | &part;
            match self.commit(&present, &together, Sweep::Keep, outcome).await? {
                Ok(()) => accepted = together,
                Err(refused) if part.is_empty() => {
                    bail!("what belongs to no service port was refused: {}", refused.reason);
                }
                Err(refused) if !refused.blamed.is_empty() => {
                    self.exclude(&mut part, &refused, outcome)?;
                    parts.push(part);
                }
                Err(mut refused) if part.len() == 1 => {
                    refused.blamed.clone_from(&part);
                    self.exclude(&mut part, &refused, outcome)?;
                }
                Err(_) => {
                    let middle = part.iter().nth(part.len() / 2).copied().unwrap_or_default();
                    let second = part.split_off(&middle);
                    parts.extend([second, part]);
                }
            }
        }
        Ok(accepted)
    }

    async fn present(&mut self) -> Result<Option<Observed>> {
        let saved = self.kernel.save(self.family).await;
        let present = saved.and_then(|saved| saved.as_deref().map(Observed::parse).transpose());
        present.with_context(|| format!("save the {} tables", self.family))
    }

    async fn again(&mut self) -> Result<Observed> {
        self.present().await?.context("iptables was there a moment ago")
    }

    async fn commit(
        &mut self,
        present: &Observed,
        active: &BTreeSet<u32>,
        sweep: Sweep,
        outcome: &mut Outcome,
    ) -> Result<Result<(), Refused>> {
        let Self { base, hooks, edits, family, .. } = self;
        let plan = Full { present, base, hooks, edits, active, sweep }.plan(*family);
        let script = plan.script(self.kernel.at_once());
        if script.is_empty() {
            return Ok(Ok(()));
        }
        match self.kernel.restore(self.family, &script).await {
            Ok(()) => {
                outcome.writes += script.writes();
                Ok(Ok(()))
            }
            Err(RestoreError::Rejected { lines, reason, .. }) => {
                Ok(Err(Refused { blamed: blamed(&script, &lines), reason }))
            }
            Err(RestoreError::Failed(error)) => Err(error),
        }
    }

    fn exclude(&self, active: &mut BTreeSet<u32>, refused: &Refused, outcome: &mut Outcome) -> Result<()> {
        let before = active.len();
        active.retain(|index| !refused.blamed.contains(index));
        if active.len() == before {
            bail!("what was not sent was refused: {}", refused.reason);
        }
        for index in &refused.blamed {
            if let Some(edit) = self.edits.get(*index as usize) {
                // Said aloud by the agent, when it is new.
                debug!(service = %edit.key, error = refused.reason, "a service port was refused; left out");
            }
            outcome.refused.insert(*index, refused.reason.clone());
        }
        if outcome.refused.len() > MAX_REFUSED {
            bail!("more than {MAX_REFUSED} service ports were refused, the last one: {}", refused.reason);
        }
        Ok(())
    }
}

/// On whose behalf the lines are in the script.
fn blamed(script: &Script, lines: &[usize]) -> BTreeSet<u32> {
    lines.iter().filter_map(|line| script.owner(*line)).collect()
}
