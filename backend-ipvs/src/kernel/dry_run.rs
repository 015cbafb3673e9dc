//! A kernel that is only read: what is to be written to it is kept instead.

use anyhow::Result;
use backend::Difference;
use ipnet::IpNet;
use netlink::ipvs::VirtualServerKey;
use proto::model::PerFamily;

use super::{Base, ConnectionCounts, Kernel, Listing, Netlink, Ours, Refused, RulesFound, Survey};
use crate::{desired::Rules, plan::Operation};

/// The real kernel, and what it was not told.
#[derive(Debug)]
pub(crate) struct DryRun {
    kernel: Netlink,
    base: Vec<Difference>,
    operations: Vec<Operation>,
}

impl DryRun {
    pub(crate) fn new(kernel: Netlink) -> Self {
        Self { kernel, base: Vec::new(), operations: Vec::new() }
    }

    /// What was to be written since the last call: what has to be there before anything else, and the rest.
    pub(crate) fn take(&mut self) -> (Vec<Difference>, Vec<Operation>) {
        (std::mem::take(&mut self.base), std::mem::take(&mut self.operations))
    }
}

impl Kernel for DryRun {
    async fn prepare(&mut self, base: Base) -> Result<usize> {
        let missing = self.kernel.missing(base).await?;
        let count = missing.len();
        self.base.extend(missing);
        Ok(count)
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        self.kernel.list_loaded(ours).await
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<Vec<Refused>> {
        self.operations.extend(operations);
        Ok(Vec::new())
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        self.kernel.connections(servers).await
    }

    async fn survey(&mut self) -> Result<Survey> {
        self.kernel.survey().await
    }

    async fn check(&mut self, rules: PerFamily<Rules>) -> Result<RulesFound> {
        self.kernel.check(rules).await
    }

    /// Nothing is removed.
    async fn cleanup(&mut self, _exclude: Vec<IpNet>) -> Result<()> {
        Ok(())
    }
}
