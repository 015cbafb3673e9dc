//! Commits many service ports to a kernel that accepts or rejects each transaction as a whole.
//!
//! ```text
//!   next batch ─┬─ accepted ─▶ next batch, until nothing is left
//!               ├─ rejected, and the kernel named the service ports ─▶ the same batch without them
//!               └─ rejected without a name ─▶ bisect the batch: the base ruleset first, then halves of halves
//! ```

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
};

use anyhow::{Result, bail};
use tracing::debug;

use super::ServicePortUpdate;

/// With more rejected service ports the cause is something else.
const MAX_REJECTED: usize = 64;

/// Why a transaction was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The kernel rejected a part of it; without that part it may be accepted.
    #[error("{0}")]
    Rejected(Rejection),
    /// Another transaction would fail as well.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// What the kernel rejected. Service ports are given by their index in the list of updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
pub struct Rejection {
    /// The service ports that the kernel named, each with the reason.
    pub named: Vec<(u32, String)>,
    /// The reason of a rejection that could not be traced to a service port.
    pub unnamed: Option<String>,
}

impl CommitError {
    /// The rejection.
    ///
    /// # Errors
    /// When it is none.
    pub fn into_rejection(self) -> Result<Rejection> {
        match self {
            Self::Rejected(rejection) => Ok(rejection),
            Self::Failed(error) => Err(error),
        }
    }
}

impl Rejection {
    /// The first reason.
    fn reason(&self) -> &str {
        let reasons = self.named.iter().map(|(_, reason)| reason).chain(&self.unnamed);
        reasons.map(String::as_str).next().unwrap_or("rejected")
    }
}

/// What a transaction does with objects that no service port in it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unneeded {
    /// It deletes them.
    Delete,
    /// It leaves them: a later transaction may need them.
    Keep,
}

/// What the kernel answered to a transaction.
pub type Answer = Result<(), Rejection>;

/// Transactions over a list of [`ServicePortUpdate`]s, which are given by their index.
pub trait Transactions: Send {
    /// Commits the base ruleset and as many of `remaining` as fit into one transaction; `committed` were committed
    /// before. With the last ones it removes what no service port needs. Returns how many of `remaining` were in the
    /// transaction, and the answer.
    ///
    /// # Errors
    /// When another transaction would fail as well.
    fn commit_next(
        &mut self,
        committed: &BTreeSet<u32>,
        remaining: &[u32],
    ) -> impl Future<Output = Result<(usize, Answer)>> + Send;

    /// Commits `part` in addition to `committed`, and removes nothing. An empty `part` stands for the base ruleset and
    /// comes first.
    ///
    /// # Errors
    /// When another transaction would fail as well.
    fn commit_part(&mut self, committed: &BTreeSet<u32>, part: &[u32]) -> impl Future<Output = Result<Answer>> + Send;
}

/// Commits the updates from the index `first` on. Returns those that the kernel rejected, each with the reason.
///
/// # Errors
/// When the kernel rejects the base ruleset or too many service ports, or a transaction fails for another reason.
pub async fn commit_all<D: Send + Sync>(
    transactions: &mut impl Transactions,
    updates: &[ServicePortUpdate<D>],
    first: u32,
) -> Result<BTreeMap<u32, String>> {
    let mut remaining: Vec<u32> = (first..updates.len() as u32).collect();
    let mut commit = Commit { updates, committed: BTreeSet::new(), rejected: BTreeMap::new() };
    loop {
        let (taken, answer) = transactions.commit_next(&commit.committed, &remaining).await?;
        match answer {
            Ok(()) if taken == remaining.len() => return Ok(commit.rejected),
            Ok(()) => commit.committed.extend(remaining.drain(..taken)),
            Err(rejection) if rejection.unnamed.is_none() => commit.exclude(&mut remaining, rejection)?,
            Err(rejection) if taken == 0 => bail!("the kernel rejected the base ruleset: {rejection}"),
            Err(rejection) => {
                debug!(
                    %rejection,
                    service_ports = taken,
                    "kernel did not name the rejected operation, bisecting the batch"
                );
                let rest = remaining.split_off(taken);
                commit.bisect(transactions, remaining).await?;
                remaining = rest;
            }
        }
    }
}

struct Commit<'a, D> {
    updates: &'a [ServicePortUpdate<D>],
    committed: BTreeSet<u32>,
    rejected: BTreeMap<u32, String>,
}

impl<D: Send + Sync> Commit<'_, D> {
    async fn bisect(&mut self, transactions: &mut impl Transactions, batch: Vec<u32>) -> Result<()> {
        let mut parts = vec![batch, Vec::new()];
        while let Some(mut part) = parts.pop() {
            let Err(rejection) = transactions.commit_part(&self.committed, &part).await? else {
                self.committed.extend(part);
                continue;
            };
            match (&part[..], &rejection.unnamed) {
                ([], _) => bail!("the kernel rejected the base ruleset: {rejection}"),
                ([only], _) => {
                    let rejection = Rejection { named: vec![(*only, rejection.to_string())], unnamed: None };
                    self.exclude(&mut part, rejection)?;
                }
                (_, None) => {
                    self.exclude(&mut part, rejection)?;
                    parts.push(part);
                }
                (_, Some(_)) => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
            }
        }
        Ok(())
    }

    fn exclude(&mut self, remaining: &mut Vec<u32>, rejection: Rejection) -> Result<()> {
        let before = remaining.len() + self.committed.len();
        let is_kept = |index: &u32| rejection.named.iter().all(|(named, _)| named != index);
        remaining.retain(is_kept);
        self.committed.retain(is_kept);
        if remaining.len() + self.committed.len() == before {
            bail!("the kernel rejected a service port that was not in the transaction: {rejection}");
        }
        for (index, reason) in rejection.named {
            if let Some(update) = self.updates.get(index as usize) {
                debug!(service_port = %update.key, error = reason, "kernel rejected a service port, leaving it out");
            }
            self.rejected.insert(index, reason);
        }
        if self.rejected.len() > MAX_REJECTED {
            let reason = self.rejected.values().next().map_or("", |reason| reason);
            bail!("the kernel rejected more than {MAX_REJECTED} service ports, the first one: {reason}");
        }
        Ok(())
    }
}
