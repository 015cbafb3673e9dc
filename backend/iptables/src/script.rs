//! Scripts for `iptables-restore --noflush`.

use std::fmt::{self, Write as _};

use crate::Table;

/// Changes to tables, one transaction per table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    text: String,
    lines: usize,
    tables: usize,
    /// The length of the text before the open table.
    text_before: usize,
    /// The number of lines before the open table.
    lines_before: usize,
}

/// One change of a table. Rules are as `iptables-save` prints them after `-A CHAIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptLine<'a> {
    /// Creates a chain, or removes all rules of an existing one.
    Declare(&'a str),
    /// Adds a rule at the end of a chain.
    Append(&'a str, &'a str),
    /// Adds a rule at the beginning of a chain.
    Insert(&'a str, &'a str),
    /// Deletes the first rule with this text.
    Delete(&'a str, &'a str),
    /// Deletes a chain, which must be empty and unreferenced.
    DeleteChain(&'a str),
}

// === impl Script ===

impl Script {
    /// Begins the changes of a table.
    pub fn begin(&mut self, table: Table) {
        self.text_before = self.text.len();
        self.lines_before = self.lines;
        self.write(format_args!("*{table}"));
    }

    /// Adds a change of the table that was begun.
    pub fn push(&mut self, line: ScriptLine<'_>) {
        self.write(format_args!("{line}"));
    }

    /// Ends the table. A table without changes is omitted.
    pub fn commit(&mut self) {
        let is_empty = self.lines == self.lines_before + 1;
        if is_empty {
            self.text.truncate(self.text_before);
            self.lines = self.lines_before;
        } else {
            self.write(format_args!("COMMIT"));
            self.tables += 1;
        }
    }

    /// Deletes rules, given as (chain, rule), and chains of a table. The chains may refer to each other.
    pub fn remove<'a>(
        &mut self,
        table: Table,
        rules: impl IntoIterator<Item = (&'a str, &'a str)>,
        chains: impl IntoIterator<Item = &'a str> + Clone,
    ) {
        self.begin(table);
        chains.clone().into_iter().for_each(|chain| self.push(ScriptLine::Declare(chain)));
        for (chain, rule) in rules {
            // `iptables-restore` would execute the second line of a comment. Without this deletion, it rejects the
            // script.
            if !rule.contains('\n') {
                self.push(ScriptLine::Delete(chain, rule));
            }
        }
        chains.into_iter().for_each(|chain| self.push(ScriptLine::DeleteChain(chain)));
        self.commit();
    }

    /// The input of `iptables-restore`.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// The number of lines of the text.
    #[must_use]
    pub const fn lines(&self) -> usize {
        self.lines
    }

    /// The number of transactions.
    #[must_use]
    pub const fn tables(&self) -> usize {
        self.tables
    }

    /// The number of lines that change something.
    #[must_use]
    pub const fn commands(&self) -> usize {
        self.lines - 2 * self.tables
    }

    fn write(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
        self.lines += 1;
    }
}

impl fmt::Display for ScriptLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declare(chain) => write!(f, ":{chain} - [0:0]"),
            Self::Append(chain, rule) => write!(f, "-A {chain} {rule}"),
            Self::Insert(chain, rule) => write!(f, "-I {chain} {rule}"),
            Self::Delete(chain, rule) => write!(f, "-D {chain} {rule}"),
            Self::DeleteChain(chain) => write!(f, "-X {chain}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_changes_is_left_out() {
        let mut script = Script::default();
        script.begin(Table::Filter);
        script.commit();
        assert!(script.is_empty());
        script.remove(Table::Nat, [("PREROUTING", "-j A")], ["A"]);
        assert_eq!(script.text(), "*nat\n:A - [0:0]\n-D PREROUTING -j A\n-X A\nCOMMIT\n");
        assert_eq!((script.tables(), script.commands(), script.lines()), (1, 3, 5));
    }
}
