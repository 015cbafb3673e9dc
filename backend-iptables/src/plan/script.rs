//! The script for `iptables-restore`, and for which service port each of its lines is there.

use std::collections::BTreeSet;

use iptables::{ChainSpec, ScriptLine, Table};

use super::{Owner, Plan};
use crate::{
    names,
    table::{Position, SharedChain, TABLES},
};

/// A script, and the owner of each of its lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    script: iptables::Script,
    owners: Vec<Owner>,
}

/// Which changes of a table are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Only additions.
    New,
    /// All changes.
    All,
    /// Only deletions.
    Old,
    /// Only chains, without the rules that jump to them.
    Chains,
}

/// Chains that are filled and deleted in one transaction.
#[derive(Clone, Debug, Default)]
struct ChainGroup<'a> {
    chains: Vec<&'a (Owner, ChainSpec)>,
    deleted: Vec<&'a str>,
}

// === impl Plan ===

impl Plan {
    /// Renders the changes in an order that never leaves a served VIP without rules. With more than `max_lines` lines,
    /// chains of service ports are written in transactions of about that size: filled before rules jump to them, and
    /// deleted afterwards.
    pub(crate) fn script(&self, max_lines: usize) -> Script {
        let mut script = Script::default();
        let [filter, nat] = TABLES.map(|table| self.group(table));
        let (fill, nat, delete) =
            if nat.lines() > max_lines { nat.split(max_lines) } else { (Vec::new(), nat, Vec::new()) };
        self.write(&mut script, Table::Filter, Phase::New, &filter);
        fill.iter().for_each(|group| self.write(&mut script, Table::Nat, Phase::Chains, group));
        self.write(&mut script, Table::Nat, Phase::All, &nat);
        delete.iter().for_each(|group| self.write(&mut script, Table::Nat, Phase::Chains, group));
        self.write(&mut script, Table::Filter, Phase::Old, &filter);
        script
    }

    fn group(&self, table: Table) -> ChainGroup<'_> {
        let chains = self.chains.iter().filter(|(_, chain)| chain.table == table).collect();
        let deleted = self.delete_chains.iter().filter(|(of, _)| *of == table).map(|(_, name)| &**name).collect();
        ChainGroup { chains, deleted }
    }

    fn write(&self, script: &mut Script, table: Table, phase: Phase, group: &ChainGroup<'_>) {
        script.script.begin(table);
        let chains = if phase == Phase::Old { &[][..] } else { &group.chains };
        let deleted = if phase == Phase::New { &[][..] } else { &group.deleted };
        let (new, old) = (matches!(phase, Phase::New | Phase::All), matches!(phase, Phase::All | Phase::Old));
        let shared_chains: Vec<_> =
            self.shared_chains.iter().filter(|(shared, _)| new && shared.table() == table).collect();
        let mut heads: BTreeSet<(&str, Owner)> = BTreeSet::new();
        heads.extend(chains.iter().map(|(owner, chain)| (&*chain.name, *owner)));
        heads.extend(shared_chains.iter().map(|(shared, _)| (shared.chain(), None)));
        heads.extend(deleted.iter().map(|name| (*name, None)));
        // Declaring a chain creates it, or empties it.
        heads.into_iter().for_each(|(name, owner)| script.push(owner, ScriptLine::Declare(name)));
        for (owner, chain) in chains {
            let name = &chain.name;
            chain.rules.iter().for_each(|rule| script.push(*owner, ScriptLine::Append(name, rule)));
        }
        for (shared, lines) in shared_chains {
            let name = shared.chain();
            lines.iter().for_each(|(owner, line)| script.push(*owner, ScriptLine::Append(name, line)));
        }
        if new {
            self.push_new(script, table);
        }
        if old {
            self.push_old(script, table);
        }
        deleted.iter().for_each(|name| script.push(None, ScriptLine::DeleteChain(name)));
        script.script.commit();
    }

    fn push_new(&self, script: &mut Script, table: Table) {
        for (owner, position, shared, line) in self.add_rules.iter().filter(|(_, _, of, _)| of.table() == table) {
            let line = match position {
                Position::First => ScriptLine::Insert(shared.chain(), line),
                Position::Last => ScriptLine::Append(shared.chain(), line),
            };
            script.push(*owner, line);
        }
        for hook in self.add_hooks.iter().filter(|hook| hook.table == table) {
            script.push(None, ScriptLine::Insert(hook.chain, &hook.rule));
        }
    }

    fn push_old(&self, script: &mut Script, table: Table) {
        for (owner, shared, line) in self.delete_rules.iter().filter(|(_, of, _)| of.table() == table) {
            script.push(*owner, ScriptLine::Delete(shared.chain(), line));
        }
        for (shared, line) in self.append_last.iter().filter(|(of, _)| of.table() == table) {
            script.push(None, ScriptLine::Append(shared.chain(), line));
        }
        for hook in self.delete_hooks.iter().filter(|hook| hook.table == table) {
            script.push(None, ScriptLine::Delete(hook.chain, &hook.rule));
        }
    }
}

// === impl Piece ===

impl ChainGroup<'_> {
    fn lines(&self) -> usize {
        // One line declares each chain, and one deletes it.
        self.chains.iter().map(|(_, chain)| 1 + chain.rules.len()).sum::<usize>() + 2 * self.deleted.len()
    }

    /// The groups to fill first, the remaining changes, and the groups to delete last.
    fn split(mut self, max_lines: usize) -> (Vec<Self>, Self, Vec<Self>) {
        self.chains.sort_by_key(|(_, chain)| (names::depth(&chain.name), &*chain.name));
        self.deleted.sort_by_key(|name| std::cmp::Reverse(names::depth(name)));
        let (mut fill, mut delete) = (Vec::new(), Vec::new());
        let mut group = Self::default();
        for chain in self.chains {
            // The base chains are written in one transaction.
            if names::depth(&chain.1.name) > 0 && group.lines() >= max_lines {
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
        (fill, Self { chains: Vec::new(), deleted: shared }, delete)
    }
}

// === impl Script ===

impl Script {
    pub(crate) fn script(&self) -> &iptables::Script {
        &self.script
    }

    /// The input of `iptables-restore`.
    pub(crate) fn text(&self) -> &str {
        self.script.text()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.script.is_empty()
    }

    /// The number of lines that change something.
    pub(crate) fn writes(&self) -> usize {
        self.script.commands()
    }

    /// The number of transactions.
    pub(crate) fn tables(&self) -> usize {
        self.script.tables()
    }

    /// The owner of a line; the first line is 1.
    pub(crate) fn owner(&self, line: usize) -> Owner {
        self.owners.get(line.checked_sub(1)?).copied().flatten()
    }

    fn push(&mut self, owner: Owner, line: ScriptLine<'_>) {
        // Lines that begin and commit tables have no owner.
        self.owners.resize(self.script.lines(), None);
        self.script.push(line);
        self.owners.push(owner);
    }
}
