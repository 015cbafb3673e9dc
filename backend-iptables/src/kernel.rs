//! The interface to the kernel: save the rules, restore a script. Implemented with the iptables programs, and for
//! tests as a fake that makes the checks of the kernel.

#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests use all of it"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub(crate) mod fake;
mod programs;

use std::{future::Future, time::Duration};

use anyhow::Result;
use backend::Drift;
use iptables::RestoreError;
use proto::model::IpFamily;

use crate::plan::Script;
pub(crate) use programs::{BeforeAfter, DryRun, IptablesKernel};

/// The rules of both families.
pub(crate) trait Kernel: Send + 'static {
    /// The rules in the tables of a family, as `iptables-save` prints them; `None`: iptables is not installed for it.
    fn save(&mut self, family: IpFamily) -> impl Future<Output = Result<Option<String>>> + Send;

    /// The most lines of one transaction of a script.
    fn max_lines(&self) -> usize;

    /// The most lines of a script, if the larger family contains this many rules: a script takes at most about three
    /// times as long as the smallest one, or 50 ms.
    fn script_lines(&self, rules: usize) -> usize;

    /// Executes the parts of a script in order, each completely or not at all, until one is rejected.
    fn restore(&mut self, family: IpFamily, script: &Script) -> impl Future<Output = Result<(), RestoreError>> + Send;

    /// Sets whether packets between loopback addresses and other hosts are routed.
    fn route_localnet(&mut self, _is_routed: bool) -> Result<()> {
        Ok(())
    }

    /// The program that shows the rules of a family: `iptables-nft`.
    fn program(&mut self, family: IpFamily) -> impl Future<Output = Result<String>> + Send;

    /// How long locks of other processes were waited for since the last call.
    fn lock_wait(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Returns when another process may have changed our rules since they were saved. May be dropped before.
    fn suspect(&mut self) -> impl Future<Output = Suspicion> + Send;
}

/// The result of [`Kernel::suspect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// Our rules have changed, or may have.
    Drift(Drift),
    /// It is time to compare a family with the applied state: the kernel sends no notifications.
    Compare(IpFamily),
}
