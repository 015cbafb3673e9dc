//! Rules of iptables.

pub(crate) mod eval;
#[cfg(test)]
mod tests;

use ::iptables::{Policy, Program, Ruleset, SavedRules, Table as TableName};
use anyhow::{Context as _, Result};
use netlink::nft::{self, BaseChain, ChainType, Hook};

use crate::table::{Rules, Table, nat_priority};

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
pub(crate) fn tables(program: Program, ruleset: Ruleset) -> impl Iterator<Item = Table> {
    let tables: Vec<_> = ruleset.tables().collect();
    tables.into_iter().map(move |table| {
        let parsed = |(name, _): (&str, _)| (name.to_owned(), ruleset.parsed_rules(table, name).collect());
        let rules = ruleset.chains_of(table).map(parsed).collect();
        let base = |(name, hook): (&str, _)| {
            let policy = match ruleset.chain(table, name)?.policy? {
                Policy::Accept => nft::Policy::Accept,
                Policy::Drop => nft::Policy::Drop,
            };
            let kind = if table == TableName::Nat { ChainType::Nat } else { ChainType::Filter };
            Some((name.to_owned(), BaseChain { kind, hook, priority: priority(table, hook), policy }))
        };
        let base_chains = HOOKS.into_iter().filter_map(base).collect();
        let name = format!("{program} {table}");
        Table { name, family: Some(program.family), base_chains, rules: Rules::Iptables(rules) }
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
