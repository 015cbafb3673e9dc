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
        let chains = ruleset.chains_of(table);
        let rules = chains.map(|(name, _)| (name.to_owned(), ruleset.parsed_rules(table, name).collect()));
        Table {
            name: format!("{program} {table}"),
            family: Some(program.family),
            base_chains: base_chains(&ruleset, table),
            rules: Rules::Iptables(rules.collect()),
        }
    })
}

fn base_chains(ruleset: &Ruleset, table: TableName) -> Vec<(String, BaseChain)> {
    let mut base_chains = Vec::new();
    for (name, hook) in HOOKS {
        let Some(policy) = ruleset.chain(table, name).and_then(|chain| chain.policy) else { continue };
        let policy = match policy {
            Policy::Accept => nft::Policy::Accept,
            Policy::Drop => nft::Policy::Drop,
        };
        let kind = if table == TableName::Nat { ChainType::Nat } else { ChainType::Filter };
        base_chains.push((name.to_owned(), BaseChain { kind, hook, priority: priority(table, hook), policy }));
    }
    base_chains
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
