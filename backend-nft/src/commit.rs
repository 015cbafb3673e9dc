//! Commits the edits of many service ports: in one transaction when they change little, otherwise in several of about the same time,
//! each service port in one of them.
//!
//! ```text
//!   cold:  [ fixed part, urgent ]  [ all pool chains, some ]  [ some ] ... [ the last, and what nobody needs goes ]
//! ```
//!
//! When the kernel refuses, those to blame are left out and the rest is committed:
//! by the kernel's own word where it names the element, by halving otherwise.

#[cfg(test)]
mod kernel;
mod pace;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use backend::dataplane::EffectiveOptions;
use proto::model::PerFamily;
use tracing::debug;

use crate::{
    kernel::{CommitError, Kernel, Refused},
    plan::{Ahead, Edit, Operation, Plan, Repairs, Room, Sweep},
    present::Present,
};

pub(crate) use pace::Pace;

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
    pub(crate) effective: &'a EffectiveOptions,
    pub(crate) pace: Pace,
    pub(crate) outcome: Outcome,
}

/// What has become of the most urgent service ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgent {
    InForce,
    Refused,
}

/// What has become of a transaction.
#[derive(Debug)]
struct Part {
    /// How many edits were in it.
    taken: usize,
    result: Result<(), Refused>,
}

/// No limit, and nothing later.
const WHOLE: (Room, Ahead) = (Room::Enough, Ahead::Nothing);

impl<K: Kernel> Committer<'_, K> {
    /// Commits what belongs to no service port, with all edits, which are few; the repairs keep what can be done later. When the
    /// kernel has anything against it nothing is in force: [`Self::run`] finds out who is to blame.
    pub(crate) async fn urgent(&mut self, repairs: &mut PerFamily<Repairs>) -> Result<Urgent> {
        let all: Vec<u32> = (0..self.edits.len() as u32).collect();
        let mut now = repairs.clone();
        let later = split_off_later(&mut now);
        let part = self.commit(&all, now, WHOLE, Sweep::Keep).await?;
        if let Err(refused) = part.result {
            debug!(%refused, "the most urgent service ports have to wait");
            return Ok(Urgent::Refused);
        }
        *repairs = later;
        Ok(Urgent::InForce)
    }

    /// Commits the active ones of the edits: in one transaction, if they change little and the kernel has nothing against it.
    pub(crate) async fn run(mut self, mut active: Vec<u32>, mut repairs: PerFamily<Repairs>) -> Result<Outcome> {
        let whole = rebuilds(&repairs);
        let mut ahead = Ahead::Chains;
        loop {
            let room = if whole { Room::Enough } else { self.pace.room() };
            let Part { taken, result } = self.commit(&active, repairs.clone(), (room, ahead), Sweep::Delete).await?;
            match result {
                Ok(()) if taken == active.len() => return Ok(self.outcome),
                Ok(()) => {
                    active.drain(..taken);
                    repairs = split_off_later(&mut repairs);
                    ahead = Ahead::Nothing;
                }
                Err(refused) if refused.unexplained.is_none() => self.exclude(&mut active, refused)?,
                Err(refused) if taken == 0 => bail!("what belongs to no service port was refused: {refused}"),
                Err(refused) => {
                    debug!(%refused, services = taken, "the kernel does not say what it refuses: halving");
                    let later = split_off_later(&mut repairs);
                    let fixed = self.commit(&[], repairs, WHOLE, Sweep::Keep).await?;
                    fixed.result.context("the fixed chains were refused")?;
                    let rest = active.split_off(taken);
                    self.halve(active).await?;
                    (active, repairs) = (rest, later);
                }
            }
        }
    }

    async fn halve(&mut self, active: Vec<u32>) -> Result<()> {
        let mut parts = vec![active];
        while let Some(mut part) = parts.pop() {
            let committed = self.commit(&part, PerFamily::default(), WHOLE, Sweep::Keep).await?;
            let Err(refused) = committed.result else { continue };
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

    /// Commits as many as there is room for. An error: no part would fare better.
    async fn commit(
        &mut self,
        active: &[u32],
        repairs: PerFamily<Repairs>,
        room: (Room, Ahead),
        sweep: Sweep,
    ) -> Result<Part> {
        let plan = Plan::fill(self.present, (self.edits, active), repairs, room, sweep, self.effective);
        let writes = plan.writes();
        let Plan { operations, refs, taken } = plan;
        if !operations.is_empty() {
            match self.kernel.commit(operations).await {
                Ok(took) => self.pace.took(writes, took),
                Err(CommitError::Refused(refused)) => return Ok(Part { taken, result: Err(refused) }),
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        self.outcome.writes += writes;
        self.present.settle(refs);
        Ok(Part { taken, result: Ok(()) })
    }

    fn exclude(&mut self, active: &mut Vec<u32>, refused: Refused) -> Result<()> {
        let before = active.len();
        active.retain(|index| refused.blamed.iter().all(|(blamed, _)| blamed != index));
        if active.len() == before {
            bail!("the kernel refused what was not sent: {refused}");
        }
        for (index, reason) in refused.blamed {
            if let Some(edit) = self.edits.get(index as usize) {
                // Said aloud by the agent, when it is new.
                debug!(service = %edit.key, error = %reason, "the kernel refused a service port; left out");
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

/// Whether there is a table that is to be deleted and built anew: it stays in force until all of the new one is there.
pub(crate) fn rebuilds(repairs: &PerFamily<Repairs>) -> bool {
    repairs.iter().any(|(_, repairs)| repairs.first.contains(&Operation::DeleteTable))
}

/// Leaves what is to be done before or with the service ports.
fn split_off_later(repairs: &mut PerFamily<Repairs>) -> PerFamily<Repairs> {
    PerFamily::from_fn(|family| repairs[family].split_off_later())
}
