//! What is fed to `iptables-restore`, and on whose behalf each line is in it.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{Owner, Plan};
use crate::table::{Dispatch, Place, Table};

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
    New,
    All,
    Old,
}

// === impl Plan ===

impl Plan {
    /// In the order in which nothing is missing in between.
    pub(crate) fn script(&self) -> Script {
        let mut script = Script::default();
        self.part(&mut script, Table::Filter, Part::New);
        self.part(&mut script, Table::Nat, Part::All);
        self.part(&mut script, Table::Filter, Part::Old);
        script
    }

    fn part(&self, script: &mut Script, table: Table, part: Part) {
        let begin = script.end();
        script.push(None, format_args!("*{table}"));
        if part != Part::Old {
            self.push_new(script, table, part);
        } else {
            let gone = self.gone.iter().filter(|(of, _)| *of == table);
            gone.for_each(|(_, name)| script.push(None, format_args!(":{name} - [0:0]")));
        }
        if part != Part::New {
            self.push_old(script, table);
        }
        if script.owners.len() == begin.1 + 1 {
            script.truncate(begin);
            return;
        }
        script.push(None, format_args!("COMMIT"));
        script.parts += 1;
    }

    fn push_new(&self, script: &mut Script, table: Table, part: Part) {
        let chains: Vec<_> = self.chains.iter().filter(|(_, chain)| chain.table == table).collect();
        let dispatches: Vec<_> =
            self.dispatches.iter().filter(|(dispatch, _)| dispatch.table() == table).collect();
        // Sorted: iptables-nft keeps a sorted list, and puts each at its place from the end.
        let mut heads: BTreeSet<(&str, Owner)> = BTreeSet::new();
        heads.extend(chains.iter().map(|(owner, chain)| (&*chain.name, *owner)));
        heads.extend(dispatches.iter().map(|(dispatch, _)| (dispatch.chain(), None)));
        if part == Part::All {
            heads.extend(self.gone.iter().filter(|(of, _)| *of == table).map(|(_, name)| (&**name, None)));
        }
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
        let is_here = |dispatch: Dispatch| dispatch.table() == table;
        for (owner, place, dispatch, line) in self.add.iter().filter(|(_, _, dispatch, _)| is_here(*dispatch))
        {
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
        for (_, name) in self.gone.iter().filter(|(of, _)| *of == table) {
            script.push(None, format_args!("-X {name}"));
        }
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
