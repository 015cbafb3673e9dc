//! The interface to the kernel: list our tables, commit a transaction. Implemented over netlink, and for tests as
//! a fake that checks what the kernel checks.

mod encode;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests use all of it"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub(crate) mod fake;
mod listing;
mod netlink;

use std::{future::Future, time::Duration};

use anyhow::Result;
use backend::{Drift, driver::Rejection};
use proto::model::{IpFamily, PerFamily};

use crate::{desired::EndpointKeys, element::ForgottenClients, operation::Operation};
pub(crate) use listing::{Listing, serves};
pub(crate) use netlink::Netlink;

/// A ruleset.
pub(crate) trait Kernel: Send + 'static {
    /// Everything in our tables of this layout. `keys`: those that the endpoint maps should have, as a hint to list
    /// them faster.
    fn list(&mut self, keys: EndpointKeys) -> impl Future<Output = Result<PerFamily<Listing>>> + Send;

    /// The names of our tables, of any layout.
    fn tables(&mut self) -> impl Future<Output = Result<Vec<(IpFamily, String)>>> + Send;

    /// Whether no other process has changed our tables since they were listed. `false`: it may have.
    fn is_untouched(&mut self) -> bool {
        false
    }

    /// Executes all operations, or none. Returns how long that took in the kernel, or what it rejected: without that
    /// part it may accept the transaction. After an error, another transaction would fail as well.
    fn commit(
        &mut self,
        operations: Vec<(IpFamily, Operation)>,
    ) -> impl Future<Output = Result<Result<Duration, Rejection>>> + Send;

    /// Deletes stored clients, because a Service that is created again must not inherit those of the deleted one.
    /// Before Linux 6.16, which tells how many there are, they stay until their timeout.
    fn forget_clients(&mut self, _: Vec<ForgottenClients>) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns when another process has, or may have, changed our tables since they were listed. May be dropped before.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send;
}
