//! The evaluation of chains, the same for tables of nf_tables and of iptables.

use std::collections::HashMap;

use ::iptables::Rule;
use anyhow::{Result, bail};
use netlink::nft::{BaseChain, Hook, priority};
use proto::model::IpFamily;

use crate::{
    iptables, nft,
    traversal::{ChainVerdict, Traversal},
};

/// The deepest nesting of chains; the kernel allows 16 in nf_tables.
const MAX_DEPTH: usize = 32;

/// A table with its chains.
#[derive(Debug)]
pub(crate) struct Table {
    /// As the tool shows it: `ip fairlead1`, `iptables-nft nat`.
    pub(crate) name: String,
    /// The family of its packets; `None`: both.
    pub(crate) family: Option<IpFamily>,
    /// The chains that are called at hooks.
    pub(crate) base_chains: Vec<(String, BaseChain)>,
    pub(crate) rules: Rules,
}

/// The rules of a table.
#[derive(Debug)]
pub(crate) enum Rules {
    Nft(nft::TableRules),
    /// By chain.
    Iptables(HashMap<String, Vec<Rule>>),
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

impl Table {
    /// A chain's name after that of the table: `ip fairlead1 services`.
    pub(crate) fn full_name(&self, chain: &str) -> String {
        format!("{} {chain}", self.name)
    }

    /// The number of rules of a chain.
    pub(crate) fn rule_count(&self, chain: &str) -> usize {
        match &self.rules {
            Rules::Nft(nft::TableRules { rules, .. }) => rules.get(chain).map_or(0, Vec::len),
            Rules::Iptables(rules) => rules.get(chain).map_or(0, Vec::len),
        }
    }

    /// Evaluates a chain. `None`: the calling chain continues, or the policy of a base chain applies.
    pub(crate) fn evaluate(
        &self,
        traversal: &mut Traversal<'_>,
        chain: &str,
        depth: usize,
    ) -> Result<Option<ChainVerdict>> {
        let name = self.full_name(chain);
        if depth > MAX_DEPTH {
            bail!("{name}: chains jump to each other in a cycle");
        }

        for rule in 0..self.rule_count(chain) {
            let result = match &self.rules {
                Rules::Nft(nft) => nft::eval::evaluate(traversal, nft, &name, chain, rule),
                Rules::Iptables(rules) => iptables::eval::evaluate(traversal, &name, &rules[chain][rule]),
            };
            match result? {
                RuleResult::Continue => {}
                RuleResult::Return => return Ok(None),
                RuleResult::Decided(verdict) => return Ok(Some(verdict)),
                RuleResult::Call { to, is_goto, reason } => {
                    traversal.jumped_by.push(reason);
                    let verdict = self.evaluate(traversal, &to, depth + 1)?;
                    traversal.jumped_by.pop();
                    if is_goto || verdict.is_some() {
                        return Ok(verdict);
                    }
                }
            }
        }
        Ok(None)
    }
}
