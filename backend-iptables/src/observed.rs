//! The rules that `iptables-save` prints, and which of their chains are the backend's.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::Result;
use iptables::{HookRule, Ruleset, Table, target};

use crate::{
    desired::{hooks, localnet_guard},
    names,
    table::{SharedChain, TABLES},
};

/// The rules of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    rules: Ruleset,
    /// Chains of the backend that rules of other programs jump to, and the chain of such a rule. Hooks do not count.
    users: BTreeMap<(Table, String), String>,
}

// === impl Observed ===

impl Observed {
    /// Reads the output of `iptables-save`.
    ///
    /// # Errors
    /// If it is incomplete, because a chain that is not seen would be added once more.
    pub(crate) fn parse(saved: &str) -> Result<Self> {
        let rules = Ruleset::parse(saved)?;
        rules.ensure_readable(&TABLES)?;
        Ok(Self::new(rules))
    }

    pub(crate) fn new(rules: Ruleset) -> Self {
        let hooks = hooks();
        let is_hook = |table, chain: &str, rule: &str| {
            hooks.iter().any(|hook| hook.table == table && hook.chain == chain && hook.rule == rule)
        };
        let mut users = BTreeMap::new();
        for (table, name, chain) in rules.chains().filter(|(_, name, _)| !names::is_ours(name)) {
            for rule in &chain.rules {
                if let Some(target) = target(rule)
                    && names::is_ours(target)
                    && !is_hook(table, name, rule)
                {
                    users.insert((table, target.to_owned()), name.to_owned());
                }
            }
        }
        Self { rules, users }
    }

    /// The rules of a chain, if it exists.
    pub(crate) fn rules(&self, table: Table, chain: &str) -> Option<&[String]> {
        self.rules.chain(table, chain).map(|chain| &chain.rules[..])
    }

    /// All chains with names of the backend.
    pub(crate) fn ours(&self) -> impl Iterator<Item = (Table, &str, &[String])> {
        let chains = self.rules.chains().filter(|(table, name, _)| TABLES.contains(table) && names::is_ours(name));
        chains.map(|(table, name, chain)| (table, name, &chain.rules[..]))
    }

    /// Whether it contains a chain that only Fairlead creates.
    pub(crate) fn is_programmed(&self) -> bool {
        self.ours().any(|(_, name, _)| names::is_only_ours(name))
    }

    /// Whether rules in chains of other programs jump to a chain, apart from the hooks.
    pub(crate) fn is_used(&self, table: Table, chain: &str) -> bool {
        self.user(table, chain).is_some()
    }

    /// A chain of another program that jumps to a chain, apart from the hooks.
    pub(crate) fn user(&self, table: Table, chain: &str) -> Option<&str> {
        self.users.get(&(table, chain.to_owned())).map(String::as_str)
    }

    /// Whether `route_localnet` may be set: then there is a rule that protects loopback addresses.
    pub(crate) fn routes_localnet(&self) -> bool {
        let guarded = SharedChain::HealthPorts;
        self.rules(guarded.table(), guarded.chain()).unwrap_or_default().contains(&localnet_guard())
    }

    /// How often a hook occurs.
    pub(crate) fn hook_count(&self, hook: &HookRule) -> usize {
        let rules = self.rules(hook.table, hook.chain).unwrap_or_default();
        rules.iter().filter(|rule| **rule == hook.rule).count()
    }
}
