//! What was removed, for people and for scripts.

use anyhow::Result;
use serde::Serialize;

use super::Mode;
use crate::{cli::Output, print, table::Table};

/// What was removed, or would be.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    dry_run: bool,
    removed: Vec<Removed>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Removed {
    place: String,
    what: String,
    count: usize,
}

impl Report {
    pub(super) fn new(mode: Mode) -> Self {
        Self { dry_run: mode == Mode::DryRun, removed: Vec::new(), notes: Vec::new() }
    }

    pub(super) fn removed(&mut self, place: &str, what: String, count: usize) {
        self.removed.push(Removed { place: place.to_owned(), what, count });
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn print(&self, output: Output) -> Result<()> {
        print::value(output, self, || self.table())
    }

    fn table(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        if self.removed.is_empty() {
            return format!("There is nothing to remove.\n{notes}");
        }
        let mut table = Table::new(&[if self.dry_run { "WOULD REMOVE FROM" } else { "REMOVED FROM" }, "WHAT", "COUNT"]);
        for Removed { place, what, count } in &self.removed {
            table.row([place.clone(), what.clone(), count.to_string()]);
        }
        format!("{table}{notes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_and_what_else() {
        let mut report = Report::new(Mode::DryRun);
        report.note("mind the gap".to_owned());
        assert_eq!(report.table(), "There is nothing to remove.\nnote: mind the gap\n");
        report.removed("nf_tables", "table ip kube-proxy".to_owned(), 1);
        let expected = "\
WOULD REMOVE FROM   WHAT                  COUNT
nf_tables           table ip kube-proxy   1
note: mind the gap
";
        assert_eq!(report.table(), expected);
    }
}
