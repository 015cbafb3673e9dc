//! What is fed to `iptables-restore`, and on whose behalf each line is in it.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{Owner, Plan};
use crate::{
    names,
    table::{Chain, Dispatch, Place, Table},
};

/// Some lines for each table, in force at once or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    text: String,
    owners: Vec<Owner>,
    /// Of how many parts it is.
    parts: usize,
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
    chains: Vec<&'a (Owner, Chain)>,
    gone: Vec<&'a str>,
}

// === impl Plan ===

impl Plan {
    /// In the order in which nothing is missing in between. With more than `at_once` lines, chains of service ports are in parts of about
    /// that many: filled before something leads there, and deleted after.
    pub(crate) fn script(&self, at_once: usize) -> Script {
        let mut script = Script::default();
        let [filter, nat] = Table::ALL.map(|table| self.piece(table));
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
        let begin = script.end();
        script.push(None, format_args!("*{table}"));
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
        heads.into_iter().for_each(|(name, owner)| script.push(owner, format_args!(":{name} - [0:0]")));
        for (owner, chain) in chains {
            let name = &chain.name;
            chain.rules.iter().for_each(|rule| script.push(*owner, format_args!("-A {name} {rule}")));
        }
        for (dispatch, lines) in dispatches {
            let name = dispatch.chain();
            lines.iter().for_each(|(owner, line)| script.push(*owner, format_args!("-A {name} {line}")));
        }
        if new {
            self.push_new(script, table);
        }
        if old {
            self.push_old(script, table);
        }
        gone.iter().for_each(|name| script.push(None, format_args!("-X {name}")));
        if script.owners.len() == begin.1 + 1 {
            script.truncate(begin);
            return;
        }
        script.push(None, format_args!("COMMIT"));
        script.parts += 1;
    }

    fn push_new(&self, script: &mut Script, table: Table) {
        for (owner, place, dispatch, line) in self.add.iter().filter(|(_, _, of, _)| of.table() == table) {
            let verb = match place {
                Place::First => "-I",
                Place::Last => "-A",
            };
            script.push(*owner, format_args!("{verb} {} {line}", dispatch.chain()));
        }
        for hook in self.hook.iter().filter(|hook| hook.table == table) {
            script.push(None, format_args!("-I {} {}", hook.chain, hook.rule));
        }
    }

    fn push_old(&self, script: &mut Script, table: Table) {
        for (owner, dispatch, line) in self.remove.iter().filter(|(_, of, _)| of.table() == table) {
            script.push(*owner, format_args!("-D {} {line}", dispatch.chain()));
        }
        for (dispatch, line) in self.behind.iter().filter(|(of, _)| of.table() == table) {
            script.push(None, format_args!("-A {} {line}", dispatch.chain()));
        }
        for hook in self.unhook.iter().filter(|hook| hook.table == table) {
            script.push(None, format_args!("-D {} {}", hook.chain, hook.rule));
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
    /// What is fed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The lines that change something.
    pub(crate) fn writes(&self) -> usize {
        self.owners.len() - 2 * self.parts
    }

    /// Each is in force at once or not at all.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// On whose behalf a line is there; the first one is 1.
    pub(crate) fn owner(&self, line: usize) -> Owner {
        self.owners.get(line.checked_sub(1)?).copied().flatten()
    }

    fn push(&mut self, owner: Owner, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
        self.owners.push(owner);
    }

    fn end(&self) -> (usize, usize) {
        (self.text.len(), self.owners.len())
    }

    fn truncate(&mut self, (bytes, lines): (usize, usize)) {
        self.text.truncate(bytes);
        self.owners.truncate(lines);
    }
}
