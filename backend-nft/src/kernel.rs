//! The interface to the kernel: list our tables, commit a transaction. Implemented over netlink, as a dry run, and for
//! tests as a fake that checks what the kernel checks.

mod dry_run;
mod encode;
#[cfg(test)]
pub(crate) mod fake;
mod netlink;

use std::{future::Future, time::Duration};

use anyhow::Result;
use backend::{Drift, driver::CommitError};
use proto::model::{IpFamily, PerFamily};

use crate::{desired::EndpointKeys, observed::Listing, plan::Operation};
pub(crate) use dry_run::DryRun;
pub(crate) use netlink::Netlink;

/// A ruleset.
pub(crate) trait Kernel: Send + 'static {
    /// Everything in our tables. `keys`: those that the endpoint maps should have, as a hint to list them faster.
    fn list(&mut self, keys: EndpointKeys) -> impl Future<Output = Result<PerFamily<Listing>>> + Send;

    /// The families that have a table of ours.
    fn tables(&mut self) -> impl Future<Output = Result<Vec<IpFamily>>> + Send;

    /// Executes all operations, or none. Returns how long that took in the kernel.
    fn commit(
        &mut self,
        operations: Vec<(IpFamily, Operation)>,
    ) -> impl Future<Output = Result<Duration, CommitError>> + Send;

    /// Returns when another process has, or may have, changed our tables since they were listed. May be dropped before.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send;
}
