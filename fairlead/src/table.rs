//! Text tables for people: columns as wide as their widest cell.

use std::fmt::{Display, Write as _};

use proto::v1::Problem;
use runtime::printable;

/// A table with a header line.
#[derive(Debug)]
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Invalid objects: one per row.
    pub(crate) fn of_problems<'a>(problems: impl IntoIterator<Item = &'a Problem>) -> Self {
        let rows = problems.into_iter().map(|Problem { object, field, message }| [object, field, message]);
        Self::of(&["OBJECT", "FIELD", "PROBLEM"], rows)
    }

    /// A table with these rows.
    pub(crate) fn of<R>(header: &[&str], rows: impl IntoIterator<Item = R>) -> Self
    where
        R: IntoIterator<Item: Display>,
    {
        let mut table = Self::new(header);
        rows.into_iter().for_each(|row| table.row(row));
        table
    }

    /// Appends a row. An empty cell is printed as `-`, control characters as spaces, because users may
    /// have written the text.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Display>) {
        let mut row = Vec::new();
        for cell in cells {
            let text = printable(&cell.to_string());
            row.push(if text.is_empty() { "-".to_owned() } else { text });
        }
        self.rows.push(row);
    }
}

impl Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }

        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "{cell:<width$}   ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(&["NAME", "PORT"]);
        table.row(["default/web", "80"]);
        table.row(["a", ""]);
        table.row(["\u{1b}[2J\nb", "1"]);
        assert_eq!(table.to_string(), "NAME          PORT\ndefault/web   80\na             -\n [2J b        1\n");
    }
}
