//! The rules, which are the same for all Services: compared as text with what `iptables-save` prints, and written where
//! they differ. This happens at the start and when facts of the node or the cluster change.

use anyhow::Result;
use backend::read_rules;
use iptables::{ChainSpec, Program, Ruleset, SavedRules, Script, Table, Tools, VariantSelection, block_on, save_all};
use proto::model::{IpFamily, PerFamily};

use crate::desired::{TABLES, hooks, is_ours};

/// The iptables of a node. Blocks; belongs to a thread without an async runtime.
#[derive(Debug)]
pub(super) struct Iptables(Tools);

// === impl Iptables ===

impl Iptables {
    pub(super) fn new(variant: VariantSelection) -> Self {
        Self(Tools::new(variant))
    }

    /// What makes the rules of a family what they should be; `None` without iptables for this family.
    pub(super) fn script(&mut self, family: IpFamily, rules: &[ChainSpec]) -> Result<Option<Script>> {
        let Some(saved) = block_on(self.0.save(family))? else { return Ok(None) };
        let observed = Ruleset::parse(&saved)?;
        observed.ensure_readable(&TABLES)?;
        Ok(Some(observed.script_to(rules, &hooks())))
    }

    pub(super) fn restore(&mut self, family: IpFamily, script: &Script) -> Result<()> {
        block_on(async { Ok(self.0.restore(family, script).await?) })
    }

    /// Whether the variant is to be detected again, because the kernel does not support it.
    pub(super) fn has_lost_variant(&self) -> bool {
        self.0.detected().is_none()
    }

    /// Whether the rules are what they should be. Those of a family without rules may be any.
    pub(super) fn has(&mut self, rules: &PerFamily<Vec<ChainSpec>>) -> Result<bool> {
        for (family, rules) in rules.iter().filter(|(_, rules)| !rules.is_empty()) {
            if !self.script(family, rules)?.is_some_and(|script| script.is_empty()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The number of our chains, by program and family; of programs that are installed.
pub(crate) fn count() -> Result<Vec<(&'static str, IpFamily, usize)>> {
    let mut counts = Vec::new();
    for saved in block_on(save_all())? {
        counts.push((saved.program.name, saved.program.family, count_chains(&saved)?));
    }
    Ok(counts)
}

/// The number of chains of this backend among these rules.
///
/// # Errors
/// When the rules cannot be read.
pub fn count_chains(saved: &SavedRules) -> Result<usize> {
    let rules = read_rules(saved, &TABLES, is_ours)?;
    Ok(rules.chains().filter(|(_, chain, _)| is_ours(chain)).count())
}

/// Removes our rules and chains, of both variants.
pub(super) fn remove() -> Result<()> {
    block_on(async {
        for saved in save_all().await? {
            remove_chains(&saved).await?;
        }
        Ok(())
    })
}

/// As [`remove`], except for the rules that masquerade.
pub(super) fn remove_marks() -> Result<()> {
    block_on(async {
        for saved in save_all().await? {
            let mut rules = read_rules(&saved, &TABLES, is_ours)?;
            rules.forget(Table::Nat);
            restore(saved.program, &rules).await?;
        }
        Ok(())
    })
}

/// Removes the chains of this backend from these rules: those of one family and variant.
///
/// # Errors
/// When they cannot be removed.
pub async fn remove_chains(saved: &SavedRules) -> Result<()> {
    restore(saved.program, &read_rules(saved, &TABLES, is_ours)?).await
}

async fn restore(program: Program, rules: &Ruleset) -> Result<()> {
    let script = rules.script_without(is_ours);
    if !script.is_empty() {
        program.restore(&script).await?;
    }
    Ok(())
}
