//! The report of `fairlead cleanup`.

use anyhow::Result;
use serde::Serialize;

use super::Mode;
use crate::{cli::OutputArgs, print, table::Table};

/// The objects that were removed, or would be with `--dry-run`.
#[derive(Debug, Serialize)]
pub(super) struct CleanupReport {
    dry_run: bool,
    removed: Vec<RemovedObjects>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RemovedObjects {
    subsystem: String,
    object: String,
    count: usize,
}

impl CleanupReport {
    pub(super) fn new(mode: Mode) -> Self {
        Self { dry_run: mode == Mode::DryRun, removed: Vec::new(), notes: Vec::new() }
    }

    pub(super) fn removed(&mut self, subsystem: &str, object: String, count: usize) {
        self.removed.push(RemovedObjects { subsystem: subsystem.to_owned(), object, count });
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn print(&self, output: OutputArgs) -> Result<()> {
        print::value(output, self, || self.table())
    }

    fn table(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        if self.removed.is_empty() {
            return format!("nothing to remove\n{notes}");
        }
        let mut table = Table::new(&[if self.dry_run { "WOULD REMOVE FROM" } else { "REMOVED FROM" }, "WHAT", "COUNT"]);
        for RemovedObjects { subsystem, object, count } in &self.removed {
            table.row([subsystem.clone(), object.clone(), count.to_string()]);
        }
        format!("{table}{notes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_objects_and_notes_are_printed() {
        let mut report = CleanupReport::new(Mode::DryRun);
        report.note("one note".to_owned());
        assert_eq!(report.table(), "nothing to remove\nnote: one note\n");
        report.removed("nf_tables", "table ip kube-proxy".to_owned(), 1);
        let expected = "\
WOULD REMOVE FROM   WHAT                  COUNT
nf_tables           table ip kube-proxy   1
note: one note
";
        assert_eq!(report.table(), expected);
    }
}
