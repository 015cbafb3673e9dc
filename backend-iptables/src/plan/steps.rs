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

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use iptables::{ChainSpec, Table};

use crate::{
    applied::{Installed, InstalledChain},
    desired::Desired,
    names::ChainKind,
    table::{ContentHash, SharedChain},
    unclaimed::{Unclaimed, UnclaimedChain},
};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// Creates a chain, or replaces its rules.
    WriteChain(&'a ChainSpec, ContentHash),
    /// The kernel contains the chain with these rules; it belongs to this service port from now on.
    KeepChain(&'a ChainSpec, ContentHash),
    AddLine(SharedChain, &'a str),
    DeleteLine(SharedChain, &'a str),
    DeleteChain(Table, &'a str),
    /// Removes the rules of a chain that rules of other programs jump to.
    EmptyChain(Table, &'a str),
}

/// The position of a step: a number of the list above, and the kind of the chain.
pub(super) type StepOrder = (u8, Reverse<Option<ChainKind>>, Option<ChainKind>);

/// The steps from what a service port has to what it should have.
pub(super) fn steps<'a>(
    old: Option<&'a Installed>,
    new: Option<&'a Desired>,
    unclaimed: &Unclaimed,
) -> Vec<(StepOrder, Step<'a>)> {
    let mut steps = Vec::new();
    let (old_chains, old_lines) = old.map(|old| (&*old.chains, &*old.lines)).unwrap_or_default();
    let (new_chains, new_lines) = new.map(|new| (&*new.chains, &*new.lines)).unwrap_or_default();
    let mut removed: BTreeMap<(Table, &str), ContentHash> =
        old_chains.iter().map(|InstalledChain { table, name, hash, .. }| ((*table, &**name), *hash)).collect();
    for chain in new_chains {
        let hash = ContentHash::of_chain(chain);
        let observed = removed.remove(&(chain.table, &*chain.name));
        let observed = observed.or_else(|| Some(unclaimed.chain(chain.table, &chain.name)?.hash));
        let step = if observed == Some(hash) { Step::KeepChain } else { Step::WriteChain };
        steps.push((write_order(chain.table, &chain.name, observed.is_some()), step(chain, hash)));
    }
    steps.extend(removed.into_keys().map(|(table, name)| delete_chain(table, name)));
    let mut removed: BTreeSet<(SharedChain, &str)> =
        old_lines.iter().map(|(shared, line)| (*shared, &**line)).collect();
    for (shared, line) in new_lines.iter().map(|(shared, line)| (*shared, &**line)) {
        if !removed.remove(&(shared, line)) {
            steps.push((line_order(shared, 1, 4), Step::AddLine(shared, line)));
        }
    }
    steps.extend(removed.into_iter().map(|(shared, line)| delete_line(shared, line)));
    steps
}

/// The steps that delete what is not claimed, except for what these service ports will claim.
pub(super) fn unneeded_steps<'a>(
    unclaimed: &'a Unclaimed,
    desired: impl Iterator<Item = &'a Desired>,
) -> Vec<(StepOrder, Step<'a>)> {
    let (mut chains, mut lines) = (BTreeSet::new(), BTreeMap::<_, u32>::new());
    for desired in desired {
        chains.extend(desired.chains.iter().map(|chain| (chain.table, &*chain.name)));
        lines.extend(desired.lines.iter().map(|(shared, line)| ((*shared, &**line), 1)));
    }
    let mut steps = Vec::new();
    for (table, name, UnclaimedChain { is_used, .. }) in unclaimed.chains() {
        let (order, step) = delete_chain(table, name);
        if !chains.contains(&(table, name)) {
            steps.push((order, if *is_used { Step::EmptyChain(table, name) } else { step }));
        }
    }
    for (shared, line, count) in unclaimed.lines() {
        let kept = lines.get(&(shared, line)).copied().unwrap_or_default();
        (kept..count).for_each(|_| steps.push(delete_line(shared, line)));
    }
    steps
}

fn write_order(table: Table, name: &str, exists: bool) -> StepOrder {
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

fn delete_line(shared: SharedChain, line: &str) -> (StepOrder, Step<'_>) {
    (line_order(shared, 7, 5), Step::DeleteLine(shared, line))
}

fn delete_chain(table: Table, name: &str) -> (StepOrder, Step<'_>) {
    let number = if table == Table::Filter { 8 } else { 6 };
    ((number, Reverse(ChainKind::of(name)), None), Step::DeleteChain(table, name))
}
