//! What the kernel contains and no service port is known to need: after the rules were read, each service port claims
//! what it needs of them. What is left at the end is deleted.

use std::collections::{BTreeMap, BTreeSet};

use iptables::Table;

use crate::{
    desired::Base,
    observed::Observed,
    size::Size,
    table::{ContentHash, SharedChain},
};

/// The chains, and the rules of shared chains, of one family that no service port has claimed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unclaimed {
    chains: BTreeMap<Table, BTreeMap<Box<str>, UnclaimedChain>>,
    /// How often each rule occurs.
    lines: BTreeMap<SharedChain, BTreeMap<Box<str>, u32>>,
    size: Size,
}

/// A chain that no service port has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnclaimedChain {
    pub(crate) hash: ContentHash,
    /// The number of its rules.
    pub(crate) rules: u32,
    /// Whether rules of other programs jump to it.
    pub(crate) is_used: bool,
}

/// What a transaction takes from [`Unclaimed`], because a service port needs it or because it is deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    pub(crate) chains: BTreeSet<(Table, String)>,
    pub(crate) lines: BTreeMap<(SharedChain, String), u32>,
}

// === impl Unclaimed ===

impl Unclaimed {
    /// Everything of ours but the base ruleset.
    pub(crate) fn of(observed: &Observed, base: &Base) -> Self {
        let mut unclaimed = Self::default();
        let fixed: BTreeSet<(Table, &str)> = base.chains.iter().map(|chain| (chain.table, &*chain.name)).collect();
        for (table, name, rules) in observed.ours() {
            if let Some(shared) = SharedChain::of(table, name) {
                let fixed_rules = base.fixed_rules(shared);
                let lines = unclaimed.lines.entry(shared).or_default();
                for rule in rules.iter().filter(|rule| !fixed_rules.lines().any(|fixed| fixed == *rule)) {
                    *lines.entry(rule.as_str().into()).or_default() += 1;
                    unclaimed.size.add_line(shared);
                }
            } else if !fixed.contains(&(table, name)) {
                let is_used = observed.is_used(table, name);
                let hash = ContentHash::of(table, name, rules);
                unclaimed.add_chain(table, name, UnclaimedChain { hash, rules: rules.len() as u32, is_used });
            }
        }
        unclaimed
    }

    pub(crate) fn add_chain(&mut self, table: Table, name: &str, chain: UnclaimedChain) {
        self.size.rules += 1 + chain.rules as usize;
        self.chains.entry(table).or_default().insert(name.into(), chain);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chains().next().is_none() && self.lines().next().is_none()
    }

    pub(crate) fn chain(&self, table: Table, name: &str) -> Option<&UnclaimedChain> {
        self.chains.get(&table)?.get(name)
    }

    /// How often a shared chain contains a rule.
    pub(crate) fn line(&self, shared: SharedChain, line: &str) -> u32 {
        self.lines.get(&shared).and_then(|lines| lines.get(line)).copied().unwrap_or_default()
    }

    pub(crate) fn chains(&self) -> impl Iterator<Item = (Table, &str, &UnclaimedChain)> {
        let tables = self.chains.iter();
        tables.flat_map(|(table, chains)| chains.iter().map(|(name, chain)| (*table, &**name, chain)))
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = (SharedChain, &str, u32)> {
        let shared = self.lines.iter();
        shared.flat_map(|(shared, lines)| lines.iter().map(|(line, count)| (*shared, &**line, *count)))
    }

    /// Removes what a transaction has taken.
    pub(crate) fn remove(&mut self, claims: &Claims) {
        claims.chains.iter().for_each(|(table, name)| self.remove_chain(*table, name));
        claims.lines.iter().for_each(|((shared, line), count)| self.remove_line(*shared, line, *count));
    }

    pub(crate) fn remove_chain(&mut self, table: Table, name: &str) {
        let chain = self.chains.get_mut(&table).and_then(|chains| chains.remove(name));
        self.size.rules -= chain.map_or(0, |chain| 1 + chain.rules as usize);
    }

    /// Removes occurrences of a rule, as many as there are.
    pub(crate) fn remove_line(&mut self, shared: SharedChain, line: &str, count: u32) {
        let Some(lines) = self.lines.get_mut(&shared) else { return };
        let Some(left) = lines.get_mut(line) else { return };
        self.size.remove_lines(shared, count.min(*left) as usize);
        *left = left.saturating_sub(count);
        if *left == 0 {
            lines.remove(line);
        }
    }

    /// The number of its chains and rules.
    pub(crate) fn size(&self) -> Size {
        self.size
    }
}
