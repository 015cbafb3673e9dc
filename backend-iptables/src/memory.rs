//! The kernel in memory under a real data plane, for simulations.

use std::collections::BTreeSet;

use anyhow::Result;
use backend::{
    Drift,
    dataplane::{DataplaneOptions, Vip},
    driver::Driver,
    testing::{ErrorDetail, Gate, MemoryKernel},
};
use iptables::RestoreError;
use proto::model::IpFamily;

use crate::{
    data_plane::IptablesDataPlane,
    kernel::{Kernel, Suspicion, fake::FakeKernel},
    plan::Script,
};

/// The rules of both families in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Memory(FakeKernel);

/// The fake kernel behind a gate, at which a simulation delays or fails each call.
#[derive(Debug)]
pub struct Gated {
    kernel: FakeKernel,
    gate: Gate,
}

impl MemoryKernel for Memory {
    type Backend = Driver<IptablesDataPlane<Gated>>;

    fn backend(&self, gate: Gate) -> Self::Backend {
        Driver::new(IptablesDataPlane::new(Gated { kernel: self.0.clone(), gate }, DataplaneOptions::default()))
    }

    fn content(&self) -> Vec<String> {
        // A rule that is restored is inserted first, so that the order in built-in chains depends on earlier removals.
        let mut content = Vec::new();
        for family in IpFamily::ALL {
            for chain in self.0.shape_but(family, |chain| chain.policy.is_some()) {
                content.push(format!("{family} {chain}"));
            }
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
        let mut addresses = BTreeSet::new();
        for vip in vips {
            if let Vip::AddressPort { address, .. } = vip {
                addresses.insert(format!("-d {address}/"));
            }
        }
        self.0.reject(addresses.iter().map(String::as_str), detail);
    }

    fn remove_any(&self, number: usize) -> bool {
        self.0.remove_any(number)
    }
}

impl Kernel for Gated {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        self.gate.pass().await?;
        self.kernel.save(family).await
    }

    fn max_lines(&self) -> usize {
        self.kernel.max_lines()
    }

    fn script_lines(&self, rules: usize) -> usize {
        self.kernel.script_lines(rules)
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        let Self { kernel, gate } = self;
        let restore = async {
            let restored = kernel.restore(family, script).await;
            kernel.take_restores();
            restored
        };
        gate.write(restore).await.map_err(RestoreError::Failed)?
    }

    async fn program(&mut self, family: IpFamily) -> Result<String> {
        self.kernel.program(family).await
    }

    async fn suspect(&mut self) -> Suspicion {
        self.gate.changed().await;
        Suspicion::Drift(Drift::Possible)
    }
}
