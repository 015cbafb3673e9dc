//! The rules that `iptables-save` prints, and which of them are the backend's.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use anyhow::Result;
use iptables::{Hook, Ruleset, Table, target};

use crate::{
    desired::{hooks, localnet_guard},
    names,
    table::{SharedChain, TABLES},
};

/// The rules of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    rules: Ruleset,
    /// Chains of the backend that rules in other chains jump to, apart from the hooks.
    referenced: BTreeSet<(Table, String)>,
}

// === impl Observed ===

impl Observed {
    /// Reads the output of `iptables-save`.
    ///
    /// # Errors
    /// When it is incomplete: a chain that is not seen would be added once more.
    pub(crate) fn parse(saved: &str) -> Result<Self> {
        let rules = Ruleset::parse(saved)?;
        rules.ensure_readable(&TABLES)?;
        let hooks = hooks();
        let is_hook = |table, chain: &str, rule: &str| {
            hooks.iter().any(|hook| hook.table == table && hook.chain == chain && hook.rule == rule)
        };
        let mut referenced = BTreeSet::new();
        for (table, name, chain) in rules.chains().filter(|(_, name, _)| !names::is_ours(name)) {
            for rule in &chain.rules {
                let target = target(rule).filter(|target| names::is_ours(target) && !is_hook(table, name, rule));
                referenced.extend(target.map(|target| (table, target.to_owned())));
            }
        }
        Ok(Self { rules, referenced })
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
        self.referenced.contains(&(table, chain.to_owned()))
    }

    /// Whether `route_localnet` may be set: then there is a rule that protects loopback addresses.
    pub(crate) fn routes_localnet(&self) -> bool {
        let (table, chain) = (SharedChain::HealthPorts.table(), SharedChain::HealthPorts.chain());
        self.rules(table, chain).unwrap_or_default().contains(&localnet_guard())
    }

    /// How often a hook occurs.
    pub(crate) fn hook_count(&self, hook: &Hook) -> usize {
        let rules = self.rules(hook.table, hook.chain).unwrap_or_default();
        rules.iter().filter(|rule| **rule == hook.rule).count()
    }
}
