//! What is there: what `iptables-save` prints, as far as it concerns us.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    desired::localnet_guard,
    names,
    table::{Dispatch, Ends, Fingerprint, Hook, Mark, Table},
};

/// How the remark ends that `iptables-nft-save` makes instead of a table.
const INCOMPATIBLE: &str = "' is incompatible, use 'nft' tool.";

/// The chains of both tables of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present {
    /// Each with its rules.
    chains: BTreeMap<(Table, String), Vec<String>>,
    /// Chains that rules of others lead to, but for the built-in chains.
    used: BTreeSet<(Table, String)>,
}

/// The lines between the [`Ends`] of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Middle<'a> {
    /// Between the right ends.
    Lines(&'a [String]),
    /// There is no such chain, or it has other ends.
    Other,
}

// === impl Present ===

impl Present {
    /// Reads what was saved. Other tables are left out.
    ///
    /// # Errors
    /// When it is not all that there is: it breaks off, or has lines that no `iptables-save` prints, or leaves out a table of which
    /// iptables-nft does not understand a rule that `nft` has made. What is not seen would be added once more.
    pub(crate) fn parse(saved: &str) -> Result<Self> {
        let mut present = Self::default();
        let mut table = None;
        for (number, line) in (1..).zip(saved.lines()) {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name);
            } else if line.starts_with('#') {
                let name = line.strip_prefix("# Table `").and_then(|rest| rest.strip_suffix(INCOMPATIBLE));
                let ours = Table::ALL.into_iter().find(|table| Some(table.name()) == name);
                if let Some(table) = ours {
                    bail!("iptables cannot read the {table} table: it holds a rule that was made by nft");
                }
            } else if line == "COMMIT" {
                table = None;
            } else if let Some(table) = table {
                present.line(table, line).with_context(|| format!("line {number}, {line:?}"))?;
            }
        }
        ensure!(table.is_none(), "the list of rules breaks off");
        Ok(present)
    }

    /// A chain or a rule; `None` when it is neither.
    fn line(&mut self, table: Table, line: &str) -> Option<()> {
        if let Some(chain) = line.strip_prefix(':') {
            let (name, _) = chain.split_once(' ')?;
            self.chains.insert((table, name.to_owned()), Vec::new());
            return Some(());
        }
        let rest = line.strip_prefix("-A ")?;
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        self.chains.get_mut(&(table, chain.to_owned()))?.push(rule.to_owned());
        if let (Some(target), false) = (target(rule), names::is_ours(chain))
            && names::is_ours(target)
        {
            self.used.insert((table, target.to_owned()));
        }
        Some(())
    }

    /// The rules of a chain, if it is there.
    pub(crate) fn rules(&self, table: Table, chain: &str) -> Option<&[String]> {
        self.chains.get(&(table, chain.to_owned())).map(|rules| &rules[..])
    }

    /// All chains with names that we give.
    pub(crate) fn ours(&self) -> impl Iterator<Item = (Table, &str, &[String])> {
        let ours = self.chains.iter().filter(|((_, name), _)| names::is_ours(name));
        ours.map(|((table, name), rules)| (*table, &**name, &rules[..]))
    }

    /// Whether something in it is nobody's but ours.
    pub(crate) fn is_programmed(&self) -> bool {
        self.chains.keys().any(|(_, name)| names::is_only_ours(name))
    }

    /// Whether rules of others lead to a chain, other than `hooks`.
    pub(crate) fn is_used(&self, table: Table, chain: &str, hooks: &[Hook]) -> bool {
        if !self.used.contains(&(table, chain.to_owned())) {
            return false;
        }
        let of_others = |name: &str, rule: &str| {
            !names::is_ours(name)
                && target(rule) == Some(chain)
                && !hooks.iter().any(|hook| hook.table == table && hook.chain == name && hook.rule == rule)
        };
        let mut chains = self.chains.iter().filter(|((of, _), _)| *of == table);
        chains.any(|((_, name), rules)| rules.iter().any(|rule| of_others(name, rule)))
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
        let hooks = hooks.iter().filter(|hook| self.count(hook) == 1).map(Hook::mark);
        chains.chain(hooks).collect()
    }
}

/// Where a rule leads: the word behind the last `-j` or `-g`. Comments come before.
fn target(rule: &str) -> Option<&str> {
    let at = rule.rfind("-j ").max(rule.rfind("-g "))?;
    rule[at + 3..].split(' ').next()
}
