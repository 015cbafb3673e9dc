//! Rules of iptables.

mod eval;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use ::iptables::{Policy, Program, Rule, Ruleset, SavedRules, Table as TableName};
use anyhow::{Context as _, Result};
use netlink::nft::{self, BaseChain, ChainType, Hook};
use proto::model::IpFamily;

use crate::{
    table::{RuleResult, RuleTable, nat_priority},
    traversal::Traversal,
};

/// A table: `nat`, `filter`, ...
#[derive(Debug)]
struct Table {
    program: Program,
    table: TableName,
    base_chains: Vec<(&'static str, BaseChain)>,
    rules: HashMap<String, Vec<Rule>>,
}

/// The built-in chains.
const HOOKS: [(&str, Hook); 5] = [
    ("PREROUTING", Hook::Prerouting),
    ("INPUT", Hook::Input),
    ("FORWARD", Hook::Forward),
    ("OUTPUT", Hook::Output),
    ("POSTROUTING", Hook::Postrouting),
];

/// The rules that one program has saved.
pub(crate) fn read(saved: &SavedRules) -> Result<(Program, Ruleset)> {
    let ruleset = Ruleset::parse(&saved.text).with_context(|| format!("read the rules of {}", saved.program))?;
    Ok((saved.program, ruleset))
}

/// The tables of one program.
pub(crate) fn tables(program: Program, ruleset: Ruleset) -> impl Iterator<Item = Box<dyn RuleTable>> {
    let tables: Vec<_> = ruleset.tables().collect();
    tables.into_iter().map(move |table| {
        let parsed = |(name, _): (&str, _)| (name.to_owned(), ruleset.parsed_rules(table, name).collect());
        let rules = ruleset.chains_of(table).map(parsed).collect();
        let base = |(name, hook)| {
            let policy = match ruleset.chain(table, name)?.policy? {
                Policy::Accept => nft::Policy::Accept,
                Policy::Drop => nft::Policy::Drop,
            };
            let kind = if table == TableName::Nat { ChainType::Nat } else { ChainType::Filter };
            Some((name, BaseChain { kind, hook, priority: priority(table, hook), policy }))
        };
        let base_chains = HOOKS.into_iter().filter_map(base).collect();
        Box::new(Table { program, table, base_chains, rules }) as Box<dyn RuleTable>
    })
}

/// `enum nf_ip_hook_priorities`.
fn priority(table: TableName, hook: Hook) -> i32 {
    match table {
        TableName::Raw => -300,
        TableName::Mangle => -150,
        TableName::Nat => nat_priority(hook),
        TableName::Filter => 0,
        TableName::Security => 50,
    }
}

impl RuleTable for Table {
    fn handles(&self, family: IpFamily) -> bool {
        self.program.family == family
    }

    fn base_chains(&self) -> Vec<(&str, BaseChain)> {
        self.base_chains.clone()
    }

    fn full_name(&self, chain: &str) -> String {
        format!("{} {} {chain}", self.program, self.table)
    }

    fn rule_count(&self, chain: &str) -> usize {
        self.rules.get(chain).map_or(0, Vec::len)
    }

    fn evaluate(&self, traversal: &mut Traversal<'_>, chain: &str, rule: usize) -> Result<RuleResult> {
        eval::evaluate(traversal, &self.full_name(chain), &self.rules[chain][rule])
    }
}
