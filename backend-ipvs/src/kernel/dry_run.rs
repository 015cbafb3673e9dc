//! A kernel that is only read: it records what would be written.

use anyhow::Result;
use backend::{Difference, InstalledObject};
use netlink::ipvs::VirtualServerKey;
use proto::model::PerFamily;

use super::{Base, ConnectionCounts, Kernel, Listing, Netlink, Ours, Prepared, Rejected, Summary};
use crate::{desired::Rules, plan::Operation};

/// The real kernel, and the operations that it was not given.
#[derive(Debug)]
pub struct DryRun {
    kernel: Netlink,
    base: Vec<Difference>,
    operations: Vec<Operation>,
}

impl DryRun {
    pub(crate) fn new(kernel: Netlink) -> Self {
        Self { kernel, base: Vec::new(), operations: Vec::new() }
    }

    /// What would have been written since the last call: the base objects, and the operations.
    pub(crate) fn take(&mut self) -> (Vec<Difference>, Vec<Operation>) {
        (std::mem::take(&mut self.base), std::mem::take(&mut self.operations))
    }
}

impl Kernel for DryRun {
    async fn prepare(&mut self, base: Base) -> Result<Prepared> {
        let missing = self.kernel.run(move |worker| {
            let (missing, unusable) = worker.missing(&base)?;
            anyhow::Ok((missing.into_iter().map(|missing| missing.difference).collect::<Vec<_>>(), unusable))
        });
        let (missing, unusable) = missing.await??;
        let writes = missing.len();
        if unusable.is_empty() {
            self.base.extend(missing);
        }
        Ok(Prepared { writes, unusable })
    }

    async fn list(&mut self, ours: Ours) -> Result<Listing> {
        self.kernel.list(ours).await
    }

    async fn commit(&mut self, operations: Vec<Operation>) -> Result<Vec<Rejected>> {
        self.operations.extend(operations);
        Ok(Vec::new())
    }

    async fn connections(&mut self, servers: Vec<VirtualServerKey>) -> Result<ConnectionCounts> {
        self.kernel.connections(servers).await
    }

    async fn summary(&mut self) -> Result<Summary> {
        self.kernel.summary().await
    }

    async fn has_rules(&mut self, rules: PerFamily<Rules>) -> Result<bool> {
        self.kernel.has_rules(rules).await
    }

    async fn is_programmed(&mut self) -> Result<bool> {
        self.kernel.is_programmed().await
    }

    async fn installed_objects(&mut self, ours: Ours) -> Result<Vec<InstalledObject>> {
        self.kernel.installed_objects(ours).await
    }

    /// Nothing is removed.
    async fn cleanup(&mut self, _ours: Ours) -> Result<()> {
        Ok(())
    }
}
