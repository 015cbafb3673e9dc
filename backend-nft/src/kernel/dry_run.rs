//! A kernel that is only read: it records what would be written.

use std::time::Duration;

use anyhow::Result;
use backend::{Drift, driver::Rejection};
use proto::model::{IpFamily, PerFamily};

use super::{Kernel, Listing, Netlink};
use crate::{desired::EndpointKeys, operation::Operation};

/// The real kernel, and the operations that it was not given.
#[derive(Debug)]
pub struct DryRun {
    kernel: Netlink,
    operations: Vec<(IpFamily, Operation)>,
}

impl DryRun {
    pub(crate) fn new(kernel: Netlink) -> Self {
        Self { kernel, operations: Vec::new() }
    }

    /// The operations since the last call.
    pub(crate) fn take(&mut self) -> Vec<(IpFamily, Operation)> {
        std::mem::take(&mut self.operations)
    }
}

impl Kernel for DryRun {
    async fn list(&mut self, keys: EndpointKeys) -> Result<PerFamily<Listing>> {
        self.kernel.list(keys).await
    }

    async fn tables(&mut self) -> Result<Vec<(IpFamily, String)>> {
        self.kernel.tables().await
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<Result<Duration, Rejection>> {
        self.operations.extend(operations);
        Ok(Ok(Duration::ZERO))
    }

    async fn drifted(&mut self) -> Drift {
        self.kernel.drifted().await
    }
}
