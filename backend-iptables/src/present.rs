//! What is there: what `iptables-save` prints, as far as it concerns us.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    names,
    table::{Dispatch, Ends, Fingerprint, Hook, Mark, Table},
};

/// The chains of both tables of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present {
    chains: BTreeMap<(Table, String), Found>,
    /// Chains that rules of others lead to, but for the built-in chains.
    used: BTreeSet<(Table, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Those that somebody has made have no policy.
    built_in: bool,
    rules: Vec<String>,
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
    /// Reads what was saved. Lines that are none of ours to understand, and other tables, are left out.
    pub(crate) fn parse(saved: &str) -> Self {
        let mut present = Self::default();
        let mut table = None;
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name);
            }
            let Some(table) = table else { continue };
            if let Some(chain) = line.strip_prefix(':') {
                let mut words = chain.split(' ');
                if let (Some(name), Some(policy)) = (words.next(), words.next()) {
                    let found = Found { built_in: policy != "-", rules: Vec::new() };
                    present.chains.insert((table, name.to_owned()), found);
                }
            } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(split) {
                present.add(table, chain, rule);
            }
        }
        present
    }

    fn add(&mut self, table: Table, chain: &str, rule: &str) {
        let found = self.chains.entry((table, chain.to_owned())).or_default();
        if let (Some(target), false) = (target(rule), names::is_ours(chain))
            && names::is_ours(target)
        {
            self.used.insert((table, target.to_owned()));
        }
        found.rules.push(rule.to_owned());
    }

    /// The rules of a chain, if it is there.
    pub(crate) fn rules(&self, table: Table, chain: &str) -> Option<&[String]> {
        self.chains.get(&(table, chain.to_owned())).map(|found| &found.rules[..])
    }

    /// All chains with names that we give.
    pub(crate) fn ours(&self) -> impl Iterator<Item = (Table, &str, &[String])> {
        let ours = self.chains.iter().filter(|((_, name), _)| names::is_ours(name));
        ours.map(|((table, name), found)| (*table, &**name, &found.rules[..]))
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
        chains.any(|((_, name), found)| found.rules.iter().any(|rule| of_others(name, rule)))
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

/// The first word and the rest.
fn split(line: &str) -> Option<(&str, &str)> {
    line.split_once(' ').or(Some((line, "")))
}

/// Where a rule leads: the word behind the last `-j` or `-g`. Comments come before.
fn target(rule: &str) -> Option<&str> {
    let at = rule.rfind("-j ").max(rule.rfind("-g "))?;
    rule[at + 3..].split(' ').next()
}
