//! The script for `iptables-restore`, and for which service port each of its lines is there.

use std::{cmp::Reverse, collections::BTreeSet, ops::Deref};

use iptables::{ChainSpec, ScriptLine, Table};

use super::{Owner, Plan, RuleEdit};
use crate::{
    names::ChainKind,
    table::{SharedChain, TABLES},
};

/// A script, and the owner of each of its lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    script: iptables::Script,
    owners: Vec<Owner>,
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
        let mut script = Script::default();
        let [filter, mut nat] = TABLES.map(|table| self.group(table));
        let rewritten = |table| {
            let of_table = self.rewritten.iter().filter(move |shared| shared.table() == table);
            of_table.map(|shared| shared.chain())
        };
        nat.declared.extend(rewritten(Table::Nat));
        let declared = rewritten(Table::Filter).collect();
        let old_filter = ChainGroup { deleted: filter.deleted.clone(), declared, ..ChainGroup::default() };
        let new_filter = ChainGroup { deleted: Vec::new(), ..filter };
        let (fill, nat, delete) =
            if nat.lines() > max_lines { nat.split(max_lines) } else { (Vec::new(), nat, Vec::new()) };
        script.write(Table::Filter, &new_filter, &[&self.additions]);
        fill.iter().for_each(|group| script.write(Table::Nat, group, &[]));
        script.write(Table::Nat, &nat, &[&self.additions, &self.deletions]);
        delete.iter().for_each(|group| script.write(Table::Nat, group, &[]));
        script.write(Table::Filter, &old_filter, &[&self.deletions]);
        script
    }

    fn group(&self, table: Table) -> ChainGroup<'_> {
        let chains = self.chains.iter().filter(|(_, chain)| chain.table == table).collect();
        let declared = self.declare_shared.iter().filter(|shared| shared.table() == table);
        let deleted = self.delete_chains.iter().filter(|(of, _)| *of == table).map(|(_, name)| &**name).collect();
        ChainGroup { chains, declared: declared.map(|shared| shared.chain()).collect(), deleted }
    }
}

// === impl ChainGroup ===

impl ChainGroup<'_> {
    fn lines(&self) -> usize {
        // One line declares each chain, and one deletes it.
        self.chains.iter().map(|(_, chain)| 1 + chain.rules.len()).sum::<usize>() + 2 * self.deleted.len()
    }

    /// The groups to fill first, the remaining changes, and the groups to delete last.
    fn split(mut self, max_lines: usize) -> (Vec<Self>, Self, Vec<Self>) {
        // Chains without a kind come first.
        self.chains.sort_by_key(|(_, chain)| (ChainKind::of(&chain.name), &*chain.name));
        self.deleted.sort_by_key(|name| Reverse(ChainKind::of(name)));
        let (mut fill, mut delete) = (Vec::new(), Vec::new());
        let mut group = Self::default();
        for chain in self.chains {
            // The base chains are written in one transaction.
            if ChainKind::of(&chain.1.name).is_some() && group.lines() >= max_lines {
                fill.push(std::mem::take(&mut group));
            }
            group.chains.push(chain);
        }
        fill.push(std::mem::take(&mut group));
        // Shared chains, which jump to the others, are deleted first.
        let (shared, deleted): (Vec<_>, Vec<_>) =
            self.deleted.into_iter().partition(|name| SharedChain::of(Table::Nat, name).is_some());
        for name in deleted {
            if group.lines() >= max_lines {
                delete.push(std::mem::take(&mut group));
            }
            group.deleted.push(name);
        }
        delete.push(group);
        (fill, Self { chains: Vec::new(), declared: self.declared, deleted: shared }, delete)
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
        let mut heads: BTreeSet<(&str, Owner)> = BTreeSet::new();
        heads.extend(group.chains.iter().map(|(owner, chain)| (&*chain.name, *owner)));
        heads.extend(group.declared.iter().chain(&group.deleted).map(|name| (*name, None)));
        // Declaring a chain creates it, or empties it.
        heads.into_iter().for_each(|(name, owner)| self.push(owner, ScriptLine::Declare(name)));
        for (owner, chain) in &group.chains {
            chain.rules.iter().for_each(|rule| self.push(*owner, ScriptLine::Append(&chain.name, rule)));
        }
        let edits = edits.iter().copied().flatten().filter(|edit| edit.table == table);
        edits.for_each(|edit| self.push(edit.owner, edit.line()));
        group.deleted.iter().for_each(|name| self.push(None, ScriptLine::DeleteChain(name)));
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
