//! The changes of one service port as steps, and their order:
//!
//! ```text
//!   0. filter: chains, 1. rules that reject or drop             5. nat: removed rules of shared chains
//!   2. nat: new chains, each before those that jump to it       6. nat: removed chains, each after those that jump
//!   3. nat: chains with other rules                             7. filter: removed rules, 8. removed chains
//!   4. nat: new rules of shared chains
//! ```
//!
//! After each step every VIP has the old or the new rules: a chain is written in one transaction, and a rule that leads
//! to a VIP is inserted before the rule that it replaces.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use iptables::{ChainSpec, Table};

use crate::{
    content::{ChainKey, Content, Installed, LineKey},
    desired::{Base, Desired},
    names::ChainKind,
    table::SharedChain,
};

/// One change of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Creates a chain, or replaces its rules.
    WriteChain(ChainKey, &'a ChainSpec),
    /// The kernel contains the chain with its rules; it belongs to this service port from now on.
    KeepChain(ChainKey),
    AddLine(LineKey),
    DeleteLine(LineKey),
    DeleteChain(ChainKey),
    /// Removes the rules of a chain that rules of other programs jump to.
    EmptyChain(ChainKey),
}

/// The position of a step: a number of the list above, and the kind of the chain.
pub(super) type StepOrder = (u8, Reverse<Option<ChainKind>>, Option<ChainKind>);

/// The steps from the chains and rules of a service port to its desired chains and rules.
pub(super) fn steps<'a>(
    old: Option<&Installed>,
    new: Option<&'a Desired>,
    content: &Content,
) -> Vec<(StepOrder, Step<'a>)> {
    let mut steps = Vec::new();
    let mut removed_chains: BTreeSet<ChainKey> = old.iter().flat_map(|old| &old.chains).cloned().collect();
    for chain in new.iter().flat_map(|new| &new.chains) {
        let key: ChainKey = (chain.table, Arc::from(&*chain.name));
        removed_chains.remove(&key);
        let observed = content.chain(&key);
        let order = write_order(&key, observed.is_some());
        match observed {
            Some(observed) if observed.has(&chain.rules) => {
                if !observed.is_needed {
                    steps.push((order, Step::KeepChain(key)));
                }
            }
            _ => steps.push((order, Step::WriteChain(key, chain))),
        }
    }
    steps.extend(removed_chains.into_iter().map(delete_chain));

    let mut removed_lines: BTreeSet<LineKey> = old.iter().flat_map(|old| &old.lines).cloned().collect();
    for (shared, line) in new.iter().flat_map(|new| &new.lines) {
        let key: LineKey = (*shared, Arc::from(&**line));
        if !removed_lines.remove(&key) {
            steps.push((line_order(*shared, 1, 4), Step::AddLine(key)));
        }
    }
    steps.extend(removed_lines.into_iter().map(delete_line));
    steps
}

/// The steps that delete unneeded chains and rules, except for those that these service ports will claim, and for
/// chains of the base ruleset.
pub(super) fn unneeded_steps<'a>(
    content: &Content,
    base: &Base,
    desired: impl Iterator<Item = &'a Desired>,
) -> Vec<(StepOrder, Step<'a>)> {
    let mut kept_chains: BTreeSet<_> = base.chains.iter().map(|chain| (chain.table, &*chain.name)).collect();
    let mut kept_lines = BTreeSet::new();
    for desired in desired {
        kept_chains.extend(desired.chains.iter().map(|chain| (chain.table, &*chain.name)));
        kept_lines.extend(desired.lines.iter().map(|(shared, line)| (*shared, &**line)));
    }

    let mut steps = Vec::new();
    for key in content.unneeded_chains().filter(|(table, name)| !kept_chains.contains(&(*table, &**name))) {
        let (order, delete) = delete_chain(key.clone());
        let is_used = content.chain(key).is_some_and(|chain| chain.is_used);
        steps.push((order, if is_used { Step::EmptyChain(key.clone()) } else { delete }));
    }
    for key in content.unneeded_lines() {
        let (shared, line) = key;
        let found = content.line(key);
        let is_needed = found.users > 0 || kept_lines.contains(&(*shared, &**line));
        for _ in u32::from(is_needed)..found.count {
            steps.push(delete_line(key.clone()));
        }
    }
    steps
}

fn write_order((table, name): &ChainKey, exists: bool) -> StepOrder {
    let number = match table {
        Table::Filter => 0,
        _ if exists => 3,
        _ => 2,
    };
    (number, Reverse(None), ChainKind::of(name))
}

fn line_order(shared: SharedChain, filter: u8, nat: u8) -> StepOrder {
    let number = if shared.table() == Table::Filter { filter } else { nat };
    (number, Reverse(None), None)
}

fn delete_line<'a>(key: LineKey) -> (StepOrder, Step<'a>) {
    (line_order(key.0, 7, 5), Step::DeleteLine(key))
}

fn delete_chain<'a>(key: ChainKey) -> (StepOrder, Step<'a>) {
    let number = if key.0 == Table::Filter { 8 } else { 6 };
    ((number, Reverse(ChainKind::of(&key.1)), None), Step::DeleteChain(key))
}
