//! Rules of iptables; `eval` evaluates them.

mod eval;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use ::iptables::{Policy, Program, Rule, Ruleset, SavedRules, Table as TableName};
use anyhow::{Context as _, Result};
use netlink::nft::{ChainType, Hook};

pub(crate) use eval::base;

/// A table: `nat`, `filter`, ...
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) program: Program,
    pub(crate) table: TableName,
    /// The policies of the built-in chains.
    pub(crate) policies: HashMap<String, Policy>,
    pub(crate) rules: HashMap<String, Vec<Rule>>,
}

/// The tables with their priorities (`enum nf_ip_hook_priorities`) and hooks.
const HOOKS: [(TableName, i32, &[Hook]); 5] = [
    (TableName::Raw, -300, &[Hook::Prerouting, Hook::Output]),
    (TableName::Mangle, -150, &[Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting]),
    (TableName::Nat, -100, &[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting]),
    (TableName::Filter, 0, &[Hook::Input, Hook::Forward, Hook::Output]),
    (TableName::Security, 50, &[Hook::Input, Hook::Forward, Hook::Output]),
];
/// `NF_IP_PRI_NAT_SRC`.
const NAT_SRC: i32 = 100;

// === impl Table ===

/// The tables that one program has saved.
///
/// # Errors
/// When the rules cannot be read.
pub fn tables(saved: &SavedRules) -> Result<Vec<Table>> {
    let program = saved.program;
    let ruleset = Ruleset::parse(&saved.text).with_context(|| format!("read the rules of {program}"))?;
    let tables = ruleset.tables().map(|table| {
        let mut content = Table { program, table, policies: HashMap::new(), rules: HashMap::new() };
        for (name, chain) in ruleset.chains_of(table) {
            content.policies.extend(chain.policy.map(|policy| (name.to_owned(), policy)));
            content.rules.insert(name.to_owned(), ruleset.parsed_rules(table, name).collect());
        }
        content
    });
    Ok(tables.collect())
}

impl Table {
    /// The built-in chain that is called at a hook, with priority and kind.
    pub(crate) fn base(&self, hook: Hook) -> Option<(&'static str, i32, ChainType)> {
        let (_, priority, hooks) = HOOKS.iter().find(|(table, ..)| *table == self.table)?;
        let chain = match hook {
            _ if !hooks.contains(&hook) => return None,
            Hook::Prerouting => "PREROUTING",
            Hook::Input => "INPUT",
            Hook::Forward => "FORWARD",
            Hook::Output => "OUTPUT",
            Hook::Postrouting => "POSTROUTING",
            Hook::Other(_) => return None,
        };
        let is_there = self.policies.contains_key(chain);
        let kind = if self.table == TableName::Nat { ChainType::Nat } else { ChainType::Filter };
        let source = self.table == TableName::Nat && matches!(hook, Hook::Input | Hook::Postrouting);
        is_there.then_some((chain, if source { NAT_SRC } else { *priority }, kind))
    }

    /// A chain's name, after those of the program and the table.
    pub(crate) fn full_name(&self, chain: &str) -> String {
        format!("{} {} {chain}", self.program, self.table)
    }
}
