//! The rules, which are the same for all Services: compared as text with the output of `iptables-save`, and written
//! where they differ. This happens at the start and when facts of the node or the cluster change.

use anyhow::Result;
use backend::read_rules;
use iptables::{ChainSpec, Program, Ruleset, SavedRules, Script, Table, Tools, block_on, save_all};
use proto::model::{IpFamily, PerFamily};

use crate::desired::{TABLES, hooks, is_ours};

/// The script that gives a family these rules; `None`: iptables is not installed for it. Blocks; belongs on a thread
/// without an async runtime.
pub(super) fn script(tools: &mut Tools, family: IpFamily, rules: &[ChainSpec]) -> Result<Option<Script>> {
    let Some(saved) = block_on(tools.save(family))? else { return Ok(None) };
    let observed = Ruleset::parse(&saved)?;
    observed.ensure_readable(&TABLES)?;
    Ok(Some(observed.script_to(rules, &hooks())))
}

/// Whether the kernel has these rules. A family without rules is not compared.
pub(super) fn are_complete(tools: &mut Tools, rules: &PerFamily<Vec<ChainSpec>>) -> Result<bool> {
    for (family, rules) in rules.iter().filter(|(_, rules)| !rules.is_empty()) {
        if !script(tools, family, rules)?.is_some_and(|script| script.is_empty()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The number of our chains, by program and family, of the programs that are installed.
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
/// If the rules cannot be read.
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

/// Removes the chains of this backend from these rules, which are of one family and variant.
///
/// # Errors
/// If the chains cannot be removed.
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
