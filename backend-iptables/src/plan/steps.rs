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
//! to a VIP is inserted before the one that it replaces.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use iptables::{ChainSpec, Table};

use crate::{
    content::{ChainKey, Content, Installed, LineKey},
    desired::{Base, Desired},
    names::ChainKind,
    table::SharedChain,
};

/// One change.
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

/// The steps from what a service port has to what it should have.
pub(super) fn steps<'a>(
    old: Option<&Installed>,
    new: Option<&'a Desired>,
    content: &Content,
) -> Vec<(StepOrder, Step<'a>)> {
    let mut steps = Vec::new();
    let (old_chains, old_lines) = old.map(|old| (&*old.chains, &*old.lines)).unwrap_or_default();
    let (new_chains, new_lines) = new.map(|new| (&*new.chains, &*new.lines)).unwrap_or_default();
    let mut removed: BTreeSet<ChainKey> = old_chains.iter().cloned().collect();
    for chain in new_chains {
        let key: ChainKey = (chain.table, Arc::from(&*chain.name));
        removed.remove(&key);
        let observed = content.chain(&key);
        let order = write_order(&key, observed.is_some());
        match observed.filter(|observed| observed.has(&chain.rules)) {
            Some(observed) if observed.is_needed => {}
            Some(_) => steps.push((order, Step::KeepChain(key))),
            None => steps.push((order, Step::WriteChain(key, chain))),
        }
    }
    steps.extend(removed.into_iter().map(delete_chain));
    let mut removed: BTreeSet<LineKey> = old_lines.iter().cloned().collect();
    for (shared, line) in new_lines {
        let key: LineKey = (*shared, Arc::from(&**line));
        if !removed.remove(&key) {
            steps.push((line_order(*shared, 1, 4), Step::AddLine(key)));
        }
    }
    steps.extend(removed.into_iter().map(delete_line));
    steps
}

/// The steps that delete what no service port needs, except for what these service ports will claim, and for chains of
/// the base ruleset.
pub(super) fn unneeded_steps<'a>(
    content: &Content,
    base: &Base,
    desired: impl Iterator<Item = &'a Desired>,
) -> Vec<(StepOrder, Step<'a>)> {
    let mut chains: BTreeSet<_> = base.chains.iter().map(|chain| (chain.table, &*chain.name)).collect();
    let mut lines = BTreeSet::new();
    for desired in desired {
        chains.extend(desired.chains.iter().map(|chain| (chain.table, &*chain.name)));
        lines.extend(desired.lines.iter().map(|(shared, line)| (*shared, &**line)));
    }
    let mut steps = Vec::new();
    for key in content.unneeded_chains().filter(|(table, name)| !chains.contains(&(*table, &**name))) {
        let (order, step) = delete_chain(key.clone());
        let is_used = content.chain(key).is_some_and(|chain| chain.is_used);
        steps.push((order, if is_used { Step::EmptyChain(key.clone()) } else { step }));
    }
    for key in content.unneeded_lines() {
        let (shared, line) = key;
        let found = content.line(key);
        let is_needed = found.users > 0 || lines.contains(&(*shared, &**line));
        (u32::from(is_needed)..found.count).for_each(|_| steps.push(delete_line(key.clone())));
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
    (if shared.table() == Table::Filter { filter } else { nat }, Reverse(None), None)
}

fn delete_line<'a>(key: LineKey) -> (StepOrder, Step<'a>) {
    (line_order(key.0, 7, 5), Step::DeleteLine(key))
}

fn delete_chain<'a>(key: ChainKey) -> (StepOrder, Step<'a>) {
    let number = if key.0 == Table::Filter { 8 } else { 6 };
    ((number, Reverse(ChainKind::of(&key.1)), None), Step::DeleteChain(key))
}
