//! The script for `iptables-restore`, and the service port of each of its lines.

use std::{cmp::Reverse, collections::BTreeSet, ops::Deref};

use iptables::{ChainSpec, ScriptLine, Table};

use super::{Owner, Plan, RuleEdit};
use crate::{names::ChainKind, table::SharedChain};

/// A script, and the owner of each of its lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    script: iptables::Script,
    owners: Vec<Owner>,
}

/// The changes of nat as several transactions.
#[derive(Clone, Debug, Default)]
struct NatTransactions<'a> {
    /// Chains that are filled before rules jump to them.
    fill: Vec<ChainGroup<'a>>,
    /// The remaining changes.
    change: ChainGroup<'a>,
    /// Chains that are deleted after no rule jumps to them any more.
    delete: Vec<ChainGroup<'a>>,
}

/// Chains that are filled and deleted in one transaction.
#[derive(Clone, Debug, Default)]
struct ChainGroup<'a> {
    chains: Vec<&'a (Owner, ChainSpec)>,
    /// Shared chains to create, or to empty.
    declared: Vec<&'static str>,
    deleted: Vec<&'a str>,
}

// === impl Plan ===

impl Plan {
    /// Renders the changes in an order that never leaves a served VIP without rules. With more than `max_lines` lines,
    /// chains of service ports are written in transactions of about that size: filled before rules jump to them, and
    /// deleted afterwards.
    pub(crate) fn script(&self, max_lines: usize) -> Script {
        let mut first = self.group(Table::Filter);
        let deleted = std::mem::take(&mut first.deleted);
        let last = ChainGroup { deleted, declared: self.rewritten_chains(Table::Filter).collect(), chains: Vec::new() };
        let mut change = self.group(Table::Nat);
        change.declared.extend(self.rewritten_chains(Table::Nat));
        let nat = if change.lines() > max_lines {
            change.split(max_lines)
        } else {
            NatTransactions { change, ..NatTransactions::default() }
        };

        let mut script = Script::default();
        script.write(Table::Filter, &first, &[&self.additions]);
        for group in &nat.fill {
            script.write(Table::Nat, group, &[]);
        }
        script.write(Table::Nat, &nat.change, &[&self.additions, &self.deletions]);
        for group in &nat.delete {
            script.write(Table::Nat, group, &[]);
        }
        script.write(Table::Filter, &last, &[&self.deletions]);
        script
    }

    /// The shared chains that are emptied and written anew.
    fn rewritten_chains(&self, table: Table) -> impl Iterator<Item = &'static str> {
        self.rewritten.iter().filter(move |shared| shared.table() == table).map(|shared| shared.chain())
    }

    fn group(&self, table: Table) -> ChainGroup<'_> {
        let chains = self.chains.iter().filter(|(_, chain)| chain.table == table).collect();
        let declared = self.declare_shared.iter().filter(|shared| shared.table() == table);
        let deleted = self.delete_chains.iter().filter(|(of, _)| *of == table).map(|(_, name)| &**name).collect();
        ChainGroup { chains, declared: declared.map(|shared| shared.chain()).collect(), deleted }
    }
}

// === impl ChainGroup ===

impl<'a> ChainGroup<'a> {
    fn lines(&self) -> usize {
        // One line declares each chain, and one deletes it.
        self.chains.iter().map(|(_, chain)| 1 + chain.rules.len()).sum::<usize>() + 2 * self.deleted.len()
    }

    /// Splits the chains of service ports into groups of about `max_lines` lines.
    fn split(mut self, max_lines: usize) -> NatTransactions<'a> {
        // Chains without a kind come first.
        self.chains.sort_by_key(|(_, chain)| (ChainKind::of(&chain.name), &*chain.name));
        self.deleted.sort_by_key(|name| Reverse(ChainKind::of(name)));

        let mut fill = Vec::new();
        let mut group = Self::default();
        for chain in self.chains {
            // The base chains are written in one transaction.
            if ChainKind::of(&chain.1.name).is_some() && group.lines() >= max_lines {
                fill.push(std::mem::take(&mut group));
            }
            group.chains.push(chain);
        }
        fill.push(std::mem::take(&mut group));

        // Shared chains are deleted first, because they jump to the chains of service ports.
        let (shared, deleted): (Vec<_>, Vec<_>) =
            self.deleted.into_iter().partition(|name| SharedChain::of(Table::Nat, name).is_some());
        let mut delete = Vec::new();
        for name in deleted {
            if group.lines() >= max_lines {
                delete.push(std::mem::take(&mut group));
            }
            group.deleted.push(name);
        }
        delete.push(group);

        let change = Self { chains: Vec::new(), declared: self.declared, deleted: shared };
        NatTransactions { fill, change, delete }
    }
}

// === impl Script ===

impl Script {
    /// The owner of a line; the first line is 1.
    pub(crate) fn owner(&self, line: usize) -> Owner {
        self.owners.get(line.checked_sub(1)?).copied().flatten()
    }

    /// Adds the changes of a table as one transaction.
    fn write(&mut self, table: Table, group: &ChainGroup<'_>, edits: &[&[RuleEdit]]) {
        self.script.begin(table);
        // Declaring a chain creates it, or empties it.
        let mut declared: BTreeSet<(&str, Owner)> = BTreeSet::new();
        declared.extend(group.chains.iter().map(|(owner, chain)| (&*chain.name, *owner)));
        declared.extend(group.declared.iter().chain(&group.deleted).map(|name| (*name, None)));
        for (name, owner) in declared {
            self.push(owner, ScriptLine::Declare(name));
        }

        for (owner, chain) in &group.chains {
            for rule in &chain.rules {
                self.push(*owner, ScriptLine::Append(&chain.name, rule));
            }
        }
        for edit in edits.iter().copied().flatten().filter(|edit| edit.table == table) {
            self.push(edit.owner, edit.line());
        }

        for name in &group.deleted {
            self.push(None, ScriptLine::DeleteChain(name));
        }
        self.script.commit();
    }

    fn push(&mut self, owner: Owner, line: ScriptLine<'_>) {
        // Lines that begin and commit tables have no owner.
        self.owners.resize(self.script.lines(), None);
        self.script.push(line);
        self.owners.push(owner);
    }
}

impl Deref for Script {
    type Target = iptables::Script;

    fn deref(&self) -> &iptables::Script {
        &self.script
    }
}
