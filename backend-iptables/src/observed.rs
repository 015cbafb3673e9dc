//! What is there: what `iptables-save` prints, as far as it concerns us.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use anyhow::Result;
use iptables::{Hook, Ruleset, Table, target};

use crate::{
    desired::localnet_guard,
    names,
    table::{Dispatch, Ends, Fingerprint, Mark, TABLES},
};

/// The rules of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    rules: Ruleset,
    /// Chains of ours that rules in chains of others lead to.
    referenced: BTreeSet<(Table, String)>,
}

/// The lines between the [`Ends`] of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Middle<'a> {
    /// Between the right ends.
    Lines(&'a [String]),
    /// There is no such chain, or it has other ends.
    Other,
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
        let others = rules.chains().filter(|(_, name, _)| !names::is_ours(name));
        let targets = others.flat_map(|(table, _, chain)| {
            chain.rules.iter().filter_map(move |rule| Some((table, target(rule)?.to_owned())))
        });
        let referenced = targets.filter(|(_, target)| names::is_ours(target)).collect();
        Ok(Self { rules, referenced })
    }

    /// The rules of a chain, if it is there.
    pub(crate) fn rules(&self, table: Table, chain: &str) -> Option<&[String]> {
        self.rules.chain(table, chain).map(|chain| &chain.rules[..])
    }

    /// All chains with names that we give.
    pub(crate) fn ours(&self) -> impl Iterator<Item = (Table, &str, &[String])> {
        let chains = self.rules.chains().filter(|(table, name, _)| TABLES.contains(table) && names::is_ours(name));
        chains.map(|(table, name, chain)| (table, name, &chain.rules[..]))
    }

    /// Whether it contains a chain that only Fairlead creates.
    pub(crate) fn is_programmed(&self) -> bool {
        self.ours().any(|(_, name, _)| names::is_only_ours(name))
    }

    /// Whether rules in chains of others lead to a chain, other than `hooks`.
    pub(crate) fn is_used(&self, table: Table, chain: &str, hooks: &[Hook]) -> bool {
        if !self.referenced.contains(&(table, chain.to_owned())) {
            return false;
        }
        let is_hook = |name: &str, rule: &str| {
            hooks.iter().any(|hook| hook.table == table && hook.chain == name && hook.rule == rule)
        };
        let mut others = self.rules.chains_of(table).filter(|(name, _)| !names::is_ours(name));
        others.any(|(name, others)| others.rules.iter().any(|rule| target(rule) == Some(chain) && !is_hook(name, rule)))
    }

    /// Whether the kernel may have been told to route loopback addresses: then there is what protects them.
    pub(crate) fn routes_localnet(&self) -> bool {
        let (table, chain) = (Dispatch::HealthPorts.table(), Dispatch::HealthPorts.chain());
        self.rules(table, chain).unwrap_or_default().contains(&localnet_guard())
    }

    /// How often a jump is there.
    pub(crate) fn count(&self, hook: &Hook) -> usize {
        let rules = self.rules(hook.table, hook.chain).unwrap_or_default();
        rules.iter().filter(|rule| **rule == hook.rule).count()
    }

    /// What service ports have added to a chain.
    pub(crate) fn middle(&self, dispatch: Dispatch, ends: &Ends) -> Middle<'_> {
        let Some(rules) = self.rules(dispatch.table(), dispatch.chain()) else { return Middle::Other };
        let middle = rules.strip_prefix(&ends.head[..]).and_then(|rules| rules.strip_suffix(&ends.tail[..]));
        middle.map_or(Middle::Other, Middle::Lines)
    }

    /// What stands for everything of ours.
    pub(crate) fn fingerprint(&self, hooks: &[Hook]) -> Fingerprint {
        let chains = self.ours().flat_map(|(table, name, rules)| {
            let lines = Dispatch::of(table, name).map(|dispatch| {
                let lines = rules.iter().map(|line| dispatch.mark(line));
                lines.chain([Mark::of::<&str>(table, name, &[])]).collect::<Vec<_>>()
            });
            lines.unwrap_or_else(|| vec![Mark::of(table, name, rules)])
        });
        let hooks = hooks.iter().filter(|hook| self.count(hook) == 1).map(Mark::of_hook);
        chains.chain(hooks).collect()
    }
}
