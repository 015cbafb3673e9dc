//! The script for `iptables-restore`, and for which service port each of its lines is there.

use std::collections::BTreeSet;

use iptables::{ChainSpec, ScriptLine, Table};

use super::{Owner, Plan};
use crate::{
    names,
    table::{Dispatch, Place, TABLES},
};

/// A script, and the owner of each of its lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    script: iptables::Script,
    owners: Vec<Owner>,
}

/// Which part of a table's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// What there is more.
    New,
    /// All of it.
    All,
    /// What there is less.
    Old,
    /// Chains, without the lines and jumps that lead there.
    Chains,
}

/// Chains that are filled and deleted together.
#[derive(Clone, Debug, Default)]
struct Piece<'a> {
    chains: Vec<&'a (Owner, ChainSpec)>,
    gone: Vec<&'a str>,
}

// === impl Plan ===

impl Plan {
    /// In the order in which nothing is missing in between. With more than `at_once` lines, chains of service ports are in parts of about
    /// that many: filled before something leads there, and deleted after.
    pub(crate) fn script(&self, at_once: usize) -> Script {
        let mut script = Script::default();
        let [filter, nat] = TABLES.map(|table| self.piece(table));
        let (fill, nat, delete) =
            if nat.lines() > at_once { nat.split(at_once) } else { (Vec::new(), nat, Vec::new()) };
        self.part(&mut script, Table::Filter, Part::New, &filter);
        fill.iter().for_each(|piece| self.part(&mut script, Table::Nat, Part::Chains, piece));
        self.part(&mut script, Table::Nat, Part::All, &nat);
        delete.iter().for_each(|piece| self.part(&mut script, Table::Nat, Part::Chains, piece));
        self.part(&mut script, Table::Filter, Part::Old, &filter);
        script
    }

    fn piece(&self, table: Table) -> Piece<'_> {
        let chains = self.chains.iter().filter(|(_, chain)| chain.table == table).collect();
        let gone = self.gone.iter().filter(|(of, _)| *of == table).map(|(_, name)| &**name).collect();
        Piece { chains, gone }
    }

    fn part(&self, script: &mut Script, table: Table, part: Part, piece: &Piece<'_>) {
        script.script.begin(table);
        let chains = if part == Part::Old { &[][..] } else { &piece.chains };
        let gone = if part == Part::New { &[][..] } else { &piece.gone };
        let (new, old) = (matches!(part, Part::New | Part::All), matches!(part, Part::All | Part::Old));
        let dispatches: Vec<_> =
            self.dispatches.iter().filter(|(dispatch, _)| new && dispatch.table() == table).collect();
        let mut heads: BTreeSet<(&str, Owner)> = BTreeSet::new();
        heads.extend(chains.iter().map(|(owner, chain)| (&*chain.name, *owner)));
        heads.extend(dispatches.iter().map(|(dispatch, _)| (dispatch.chain(), None)));
        heads.extend(gone.iter().map(|name| (*name, None)));
        // Naming a chain makes it, or empties it.
        heads.into_iter().for_each(|(name, owner)| script.push(owner, ScriptLine::Declare(name)));
        for (owner, chain) in chains {
            let name = &chain.name;
            chain.rules.iter().for_each(|rule| script.push(*owner, ScriptLine::Append(name, rule)));
        }
        for (dispatch, lines) in dispatches {
            let name = dispatch.chain();
            lines.iter().for_each(|(owner, line)| script.push(*owner, ScriptLine::Append(name, line)));
        }
        if new {
            self.push_new(script, table);
        }
        if old {
            self.push_old(script, table);
        }
        gone.iter().for_each(|name| script.push(None, ScriptLine::DeleteChain(name)));
        script.script.commit();
    }

    fn push_new(&self, script: &mut Script, table: Table) {
        for (owner, place, dispatch, line) in self.add.iter().filter(|(_, _, of, _)| of.table() == table) {
            let line = match place {
                Place::First => ScriptLine::Insert(dispatch.chain(), line),
                Place::Last => ScriptLine::Append(dispatch.chain(), line),
            };
            script.push(*owner, line);
        }
        for hook in self.hook.iter().filter(|hook| hook.table == table) {
            script.push(None, ScriptLine::Insert(hook.chain, &hook.rule));
        }
    }

    fn push_old(&self, script: &mut Script, table: Table) {
        for (owner, dispatch, line) in self.remove.iter().filter(|(_, of, _)| of.table() == table) {
            script.push(*owner, ScriptLine::Delete(dispatch.chain(), line));
        }
        for (dispatch, line) in self.behind.iter().filter(|(of, _)| of.table() == table) {
            script.push(None, ScriptLine::Append(dispatch.chain(), line));
        }
        for hook in self.unhook.iter().filter(|hook| hook.table == table) {
            script.push(None, ScriptLine::Delete(hook.chain, &hook.rule));
        }
    }
}

// === impl Piece ===

impl Piece<'_> {
    fn lines(&self) -> usize {
        // A head for each, and a line that deletes it.
        self.chains.iter().map(|(_, chain)| 1 + chain.rules.len()).sum::<usize>() + 2 * self.gone.len()
    }

    /// What is filled first, what is left, and what is deleted last.
    fn split(mut self, at_once: usize) -> (Vec<Self>, Self, Vec<Self>) {
        self.chains.sort_by_key(|(_, chain)| (names::depth(&chain.name), &*chain.name));
        self.gone.sort_by_key(|name| std::cmp::Reverse(names::depth(name)));
        let (mut fill, mut delete) = (Vec::new(), Vec::new());
        let mut piece = Self::default();
        for chain in self.chains {
            // What is fixed belongs together.
            if names::depth(&chain.1.name) > 0 && piece.lines() >= at_once {
                fill.push(std::mem::take(&mut piece));
            }
            piece.chains.push(chain);
        }
        fill.push(std::mem::take(&mut piece));
        // What leads to the others goes before them.
        let (ways, gone): (Vec<_>, Vec<_>) =
            self.gone.into_iter().partition(|name| Dispatch::of(Table::Nat, name).is_some());
        for name in gone {
            if piece.lines() >= at_once {
                delete.push(std::mem::take(&mut piece));
            }
            piece.gone.push(name);
        }
        delete.push(piece);
        (fill, Self { chains: Vec::new(), gone: ways }, delete)
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
