//! A kernel that is only read: scripts are executed on a copy of its rules, so that their effect can be shown.

use std::collections::BTreeMap;

use anyhow::Result;
use iptables::{RestoreError, Ruleset};
use proto::model::IpFamily;

use super::{Kernel, Localnet, Suspicion};
use crate::plan::Script;

/// Another kernel, and what it would contain.
#[derive(Debug)]
pub struct DryRun<K> {
    kernel: K,
    rules: BTreeMap<IpFamily, BeforeAfter>,
    localnet: Option<Localnet>,
}

/// The rules of a family, as they are and as they would be.
#[derive(Debug)]
pub(crate) struct BeforeAfter {
    pub(crate) before: Ruleset,
    pub(crate) after: Ruleset,
}

/// What would be written.
#[derive(Debug, Default)]
pub(crate) struct DryRunResult {
    pub(crate) rules: BTreeMap<IpFamily, BeforeAfter>,
    /// The new setting of `route_localnet`, if it would change.
    pub(crate) localnet: Option<Localnet>,
}

// === impl DryRun ===

impl<K> DryRun<K> {
    pub(crate) fn new(kernel: K) -> Self {
        Self { kernel, rules: BTreeMap::new(), localnet: None }
    }

    /// What would have been written since the last call.
    pub(crate) fn take(&mut self) -> DryRunResult {
        DryRunResult { rules: std::mem::take(&mut self.rules), localnet: self.localnet.take() }
    }
}

impl<K: Kernel> Kernel for DryRun<K> {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        if let Some(BeforeAfter { after, .. }) = self.rules.get(&family) {
            return Ok(Some(after.to_string()));
        }
        let saved = self.kernel.save(family).await?;
        if let Some(saved) = &saved {
            let before = Ruleset::parse(saved)?;
            self.rules.insert(family, BeforeAfter { after: before.clone(), before });
        }
        Ok(saved)
    }

    fn max_lines(&self) -> usize {
        self.kernel.max_lines()
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        if let Some(BeforeAfter { after, .. }) = self.rules.get_mut(&family) {
            after.execute(script.text());
        }
        Ok(())
    }

    fn route_localnet(&mut self, localnet: Localnet) -> Result<()> {
        if super::localnet::get()? != localnet {
            self.localnet = Some(localnet);
        }
        Ok(())
    }

    async fn program(&mut self, family: IpFamily) -> Result<String> {
        self.kernel.program(family).await
    }

    async fn suspect(&mut self) -> Suspicion {
        self.kernel.suspect().await
    }
}
