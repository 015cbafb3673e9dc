//! The evaluation of chains, the same for tables of nf_tables and of iptables.

use std::fmt::Debug;

use anyhow::{Result, bail};
use netlink::nft::{BaseChain, Hook, priority};
use proto::model::IpFamily;

use crate::traversal::{ChainVerdict, Traversal};

/// The deepest nesting of chains; the kernel allows 16 in nf_tables.
const MAX_DEPTH: usize = 32;

/// A table with its chains.
pub(crate) trait RuleTable: Debug {
    /// Whether it handles packets of a family.
    fn handles(&self, family: IpFamily) -> bool;

    /// The chains that are called at hooks.
    fn base_chains(&self) -> Vec<(&str, BaseChain)>;

    /// A chain's name, after that of the table as the tool shows it: `ip fairlead1 services`.
    fn full_name(&self, chain: &str) -> String;

    /// The number of rules of a chain.
    fn rule_count(&self, chain: &str) -> usize;

    /// Evaluates a rule of a chain; records a step if it matches.
    fn evaluate(&self, traversal: &mut Traversal<'_>, chain: &str, rule: usize) -> Result<RuleResult>;
}

/// The result of a rule.
#[derive(Debug)]
pub(crate) enum RuleResult {
    /// It did not match, or does not decide: the next rule is evaluated.
    Continue,
    /// The calling chain continues.
    Return,
    /// A chain is evaluated; then the next rule or, after a goto, the calling chain.
    Call {
        to: String,
        is_goto: bool,
        /// The comment of the rule, or its chain.
        reason: String,
    },
    /// The base chain ends.
    Decided(ChainVerdict),
}

/// The priority at which the kernel translates addresses at a hook.
pub(crate) fn nat_priority(hook: Hook) -> i32 {
    match hook {
        Hook::Prerouting | Hook::Output => priority::DSTNAT,
        _ => priority::SRCNAT,
    }
}

/// Evaluates a chain. `None`: the calling chain continues, or the policy of a base chain applies.
pub(crate) fn evaluate(
    table: &dyn RuleTable,
    traversal: &mut Traversal<'_>,
    name: &str,
    depth: usize,
) -> Result<Option<ChainVerdict>> {
    if depth > MAX_DEPTH {
        bail!("{}: chains jump to each other in a cycle", table.full_name(name));
    }
    for rule in 0..table.rule_count(name) {
        match table.evaluate(traversal, name, rule)? {
            RuleResult::Continue => {}
            RuleResult::Return => return Ok(None),
            RuleResult::Decided(verdict) => return Ok(Some(verdict)),
            RuleResult::Call { to, is_goto, reason } => {
                traversal.jumped_by.push(reason);
                let verdict = evaluate(table, traversal, &to, depth + 1)?;
                traversal.jumped_by.pop();
                if is_goto || verdict.is_some() {
                    return Ok(verdict);
                }
            }
        }
    }
    Ok(None)
}
