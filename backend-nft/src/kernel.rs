//! The seam to the kernel: list what is there, commit a transaction. A real one, and for tests a fake that checks what
//! the kernel checks.

mod dry_run;
mod encode;
#[cfg(test)]
pub(crate) mod fake;
mod netlink;
mod watch;

use std::{future::Future, time::Duration};

use anyhow::Result;
use backend::Drift;
use proto::model::{IpFamily, PerFamily};

use crate::{expected::Expected, plan::Operation, present::Listing};
pub(crate) use dry_run::DryRun;
pub(crate) use netlink::Netlink;

/// What holds tables.
pub(crate) trait Kernel: Send + 'static {
    /// Everything in our tables. That it should be as `expected` is only a hint, for the sake of time.
    fn list(&mut self, expected: Expected) -> impl Future<Output = Result<PerFamily<Listing>>> + Send;

    /// The families in which there is a table of ours.
    fn tables(&mut self) -> impl Future<Output = Result<Vec<IpFamily>>> + Send;

    /// Executes all operations, or none. Says how long that took in the kernel.
    fn commit(
        &mut self,
        operations: Vec<(IpFamily, Operation)>,
    ) -> impl Future<Output = Result<Duration, CommitError>> + Send;

    /// Returns when somebody else has changed our tables since they were listed, or may have. May be dropped before.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send;
}

/// Why a transaction is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// Some of it was refused; without that, the rest may be accepted.
    #[error("{0}")]
    Refused(Refused),
    /// No part of it would fare better.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// Who is to blame for a refused transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .blamed.iter().map(|(_, reason)| reason).chain(.unexplained.as_ref()).next().map_or("refused", |reason| reason))]
pub(crate) struct Refused {
    /// Edits, each with the reason.
    pub(crate) blamed: Vec<(u32, String)>,
    /// A refusal that could not be traced to an edit.
    pub(crate) unexplained: Option<String>,
}
