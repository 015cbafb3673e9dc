//! The rules, which are the same for all Services: compared as text with what `iptables-save` prints, and written where
//! they differ. This happens at the start and when facts of the node or the cluster change.

use anyhow::{Context as _, Result};
use iptables::{Ruleset, Script, Tools, Variant, block_on, save_all};
use proto::model::IpFamily;

use super::RulesFound;
use crate::desired::{Rules, TABLES, is_ours};

/// The iptables of a node. Blocks; belongs to a thread without an async runtime.
#[derive(Debug)]
pub(super) struct Iptables(Tools);

// === impl Iptables ===

impl Iptables {
    pub(super) fn new(wanted: Option<Variant>) -> Self {
        Self(Tools::new(wanted))
    }

    /// Makes the rules of a family what they should be. Returns the number of lines written.
    pub(super) fn apply(&mut self, family: IpFamily, rules: &Rules) -> Result<usize> {
        let script = self.script(family, rules)?.context("iptables is not installed")?;
        if !script.is_empty() {
            block_on(async { Ok(self.0.restore(family, &script).await?) })?;
        }
        Ok(script.commands())
    }

    /// How many lines [`Self::apply`] would write.
    pub(super) fn missing(&mut self, family: IpFamily, rules: &Rules) -> Result<usize> {
        Ok(self.script(family, rules)?.context("iptables is not installed")?.commands())
    }

    /// Whether the rules of a family are what they should be.
    pub(super) fn check(&mut self, family: IpFamily, rules: &Rules) -> Result<RulesFound> {
        let script = self.script(family, rules)?;
        let is_right = script.is_some_and(|script| script.is_empty());
        Ok(if is_right { RulesFound::Right } else { RulesFound::Wrong })
    }

    /// `None` when there is no iptables for this family.
    fn script(&mut self, family: IpFamily, rules: &Rules) -> Result<Option<Script>> {
        let Some(saved) = block_on(self.0.save(family))? else { return Ok(None) };
        let observed = Ruleset::parse(&saved)?;
        observed.ensure_readable(&TABLES)?;
        Ok(Some(observed.script_to(&rules.chains, &rules.hooks)))
    }
}

/// The number of our chains, by program and family; of programs that are installed.
pub(super) fn count() -> Result<Vec<(&'static str, IpFamily, usize)>> {
    let mut counts = Vec::new();
    for saved in block_on(save_all())? {
        let rules = Ruleset::parse(&saved.text)?;
        let chains = rules.chains().filter(|(_, chain, _)| is_ours(chain)).count();
        counts.push((saved.program.name, saved.program.family, chains));
    }
    Ok(counts)
}

/// The families with rules of ours.
pub(super) fn families() -> Result<Vec<IpFamily>> {
    let counts = count()?;
    let has_rules = |family: &IpFamily| counts.iter().any(|(_, of, chains)| of == family && *chains > 0);
    Ok(IpFamily::ALL.into_iter().filter(has_rules).collect())
}

/// Removes our rules and chains, of both variants.
pub(super) fn remove() -> Result<()> {
    block_on(async {
        for saved in save_all().await? {
            let script = Ruleset::parse(&saved.text)?.script_without(is_ours);
            if !script.is_empty() {
                saved.program.restore(&script).await?;
            }
        }
        Ok(())
    })
}
