//! The seam to the kernel: save what is there, restore a script. A real one, and for tests a fake that checks what the kernel checks.

mod dry_run;
#[cfg(test)]
pub(crate) mod fake;
mod localnet;
mod real;
mod watch;

use std::{future::Future, time::Duration};

use anyhow::Result;
use backend::Drift;
use iptables::RestoreError;
use proto::model::IpFamily;

use crate::plan::Script;
pub(crate) use dry_run::{BeforeAfter, DryRun, DryRunResult};
pub(crate) use localnet::Localnet;
pub(crate) use real::IptablesKernel;

/// What holds tables.
pub(crate) trait Kernel: Send + 'static {
    /// Everything in the tables of a family, as `iptables-save` prints it; `None` when there is no iptables for it.
    fn save(&mut self, family: IpFamily) -> impl Future<Output = Result<Option<String>>> + Send;

    /// How many lines of a part it takes without taking longer for each.
    fn at_once(&self) -> usize;

    /// Executes the parts of a script in their order, each as a whole or not at all, up to the first that is refused.
    fn restore(&mut self, family: IpFamily, script: &Script) -> impl Future<Output = Result<(), RestoreError>> + Send;

    /// Whether packets may pass between loopback addresses and other hosts. Of no meaning without a network.
    fn route_localnet(&mut self, _localnet: Localnet) -> Result<()> {
        Ok(())
    }

    /// How long others were waited for since this was asked last.
    fn waited(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Returns when somebody may have changed what is ours since it was saved. May be dropped before.
    fn suspect(&mut self) -> impl Future<Output = Suspicion> + Send;
}

/// What [`Kernel::suspect`] has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// Somebody did, or nobody can tell.
    Drift(Drift),
    /// It is time to look at a family: nobody announces changes here.
    Look(IpFamily),
}
