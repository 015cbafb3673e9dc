//! A kernel that is only read: what is to be written to it is kept instead.

use std::time::Duration;

use anyhow::Result;
use backend::Drift;
use proto::model::{IpFamily, PerFamily};

use super::{CommitError, Kernel};
use crate::{expected::Expected, plan::Operation, present::Listing};

/// Another kernel, and what it was not told.
#[derive(Debug)]
pub(crate) struct DryRun<K> {
    kernel: K,
    operations: Vec<(IpFamily, Operation)>,
}

impl<K> DryRun<K> {
    pub(crate) fn new(kernel: K) -> Self {
        Self { kernel, operations: Vec::new() }
    }

    /// What was to be written since the last call.
    pub(crate) fn take(&mut self) -> Vec<(IpFamily, Operation)> {
        std::mem::take(&mut self.operations)
    }
}

impl<K: Kernel> Kernel for DryRun<K> {
    async fn list(&mut self, expected: Expected) -> Result<PerFamily<Listing>> {
        self.kernel.list(expected).await
    }

    async fn tables(&mut self) -> Result<Vec<IpFamily>> {
        self.kernel.tables().await
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<Duration, CommitError> {
        self.operations.extend(operations);
        Ok(Duration::ZERO)
    }

    async fn drifted(&mut self) -> Drift {
        self.kernel.drifted().await
    }
}
