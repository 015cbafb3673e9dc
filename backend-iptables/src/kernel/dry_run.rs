//! A kernel that is only read: scripts are executed on a copy of its rules, so that their effect can be shown.

use std::collections::BTreeMap;

use anyhow::Result;
use iptables::{RestoreError, Ruleset};
use proto::model::IpFamily;

use super::{IptablesKernel, Kernel, Suspicion, programs::routes_localnet};
use crate::plan::Script;

/// The real kernel, and what it would contain.
#[derive(Debug)]
pub struct DryRun {
    kernel: IptablesKernel,
    result: DryRunResult,
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
    pub(crate) localnet: Option<bool>,
}

// === impl DryRun ===

impl DryRun {
    pub(crate) fn new(kernel: IptablesKernel) -> Self {
        Self { kernel, result: DryRunResult::default() }
    }

    /// What would have been written since the last call.
    pub(crate) fn take(&mut self) -> DryRunResult {
        std::mem::take(&mut self.result)
    }
}

impl Kernel for DryRun {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        if let Some(BeforeAfter { after, .. }) = self.result.rules.get(&family) {
            return Ok(Some(after.to_string()));
        }
        let saved = self.kernel.save(family).await?;
        if let Some(saved) = &saved {
            let before = Ruleset::parse(saved)?;
            self.result.rules.insert(family, BeforeAfter { after: before.clone(), before });
        }
        Ok(saved)
    }

    fn max_lines(&self) -> usize {
        self.kernel.max_lines()
    }

    fn script_lines(&self, rules: usize) -> usize {
        self.kernel.script_lines(rules)
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        if let Some(BeforeAfter { after, .. }) = self.result.rules.get_mut(&family) {
            after.execute(script.text());
        }
        Ok(())
    }

    fn route_localnet(&mut self, is_routed: bool) -> Result<()> {
        if routes_localnet()? != is_routed {
            self.result.localnet = Some(is_routed);
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
