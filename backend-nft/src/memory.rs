//! The kernel in memory under a real data plane, for simulations.

use std::collections::BTreeSet;

use anyhow::Result;
use backend::{
    Drift,
    dataplane::{DataplaneOptions, Vip},
    driver::Driver,
    testing::{ErrorDetail, Gate, MemoryKernel},
};
use proto::model::{IpFamily, PerFamily};

use crate::{
    data_plane::NftDataPlane,
    desired::EndpointKeys,
    kernel::{Kernel, Listing, TransactionOutcome, fake::Fake},
    operation::Operation,
};

/// nf_tables in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Memory(Fake);

/// The fake kernel behind a gate, at which a simulation delays or fails each call.
#[derive(Debug)]
pub struct Gated {
    kernel: Fake,
    gate: Gate,
}

impl MemoryKernel for Memory {
    type Backend = Driver<NftDataPlane<Gated>>;

    fn backend(&self, gate: Gate) -> Self::Backend {
        Driver::new(NftDataPlane::new(Gated { kernel: self.0.clone(), gate }, DataplaneOptions::default()))
    }

    fn content(&self) -> Vec<String> {
        let tables = self.0.tables();
        let mut content: Vec<_> = tables.iter().flat_map(|(_, table)| table).map(|table| table.shape()).collect();
        if self.0.has_others() {
            content.push("a table of another layout".to_owned());
        }
        content.sort_unstable();
        content
    }

    fn reboot(&self) {
        self.0.clear();
    }

    fn set_unsupported(&self, family: Option<IpFamily>) {
        self.0.set_unsupported(family);
    }

    fn reject(&self, vips: &BTreeSet<Vip>, detail: ErrorDetail) {
        self.0.reject(vips.iter().copied(), detail);
    }

    fn remove_any(&self, number: usize) -> bool {
        self.0.remove_any(number)
    }
}

impl Kernel for Gated {
    async fn list(&mut self, keys: EndpointKeys) -> Result<PerFamily<Listing>> {
        self.gate.pass().await?;
        self.kernel.list(keys).await
    }

    async fn tables(&mut self) -> Result<Vec<(IpFamily, String)>> {
        self.gate.pass().await?;
        Kernel::tables(&mut self.kernel).await
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<TransactionOutcome> {
        self.gate.write(self.kernel.commit(operations)).await?
    }

    fn is_untouched(&mut self) -> bool {
        self.kernel.is_untouched()
    }

    async fn drifted(&mut self) -> Drift {
        self.gate.changed().await;
        Drift::Possible
    }
}
