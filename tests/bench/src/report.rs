//! The measurements and their goals, as a table or as JSON.

use std::time::Duration;

use serde_json::json;

/// A list of measurements, and tables.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Measurement>, Vec<Table>);

/// Measurements of several sizes of several things.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    label: String,
    /// One for each column; not a number where there is none.
    values: Vec<f64>,
    unit: &'static str,
}

#[derive(Debug)]
struct Measurement {
    what: String,
    value: f64,
    unit: &'static str,
    /// The limit, in the same unit.
    goal: Option<f64>,
}

/// The limit of a measurement, in its unit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// No goal.
    None,
    /// At most this.
    AtMost(f64),
}

impl Report {
    /// Prints progress to stderr.
    pub(crate) fn progress(text: &str) {
        eprintln!("... {text}");
    }

    /// Adds a duration, in milliseconds.
    pub(crate) fn duration(&mut self, what: &str, duration: Duration, goal: Goal) {
        self.add(what, duration.as_secs_f64() * 1e3, "ms", goal);
    }

    /// Adds the median, the 99th percentile and the maximum.
    pub(crate) fn spread(&mut self, what: &str, mut durations: Vec<Duration>, goal: Goal) {
        durations.sort_unstable();
        let at = |percent: usize| durations.get((durations.len() * percent).div_ceil(100).saturating_sub(1));
        for (name, percent, goal) in [("p50", 50, Goal::None), ("p99", 99, goal), ("max", 100, Goal::None)] {
            if let Some(duration) = at(percent) {
                self.duration(&format!("{what}, {name}"), *duration, goal);
            }
        }
    }

    /// Adds an amount of memory, from kB.
    pub(crate) fn memory(&mut self, what: &str, kilobytes: u64, goal: Goal) {
        self.add(what, kilobytes as f64 * 1024.0 / 1e6, "MB", goal);
    }

    /// Adds a measurement.
    pub(crate) fn add(&mut self, what: &str, value: f64, unit: &'static str, goal: Goal) {
        let goal = match goal {
            Goal::None => None,
            Goal::AtMost(goal) => Some(goal),
        };
        let measurement = Measurement { what: what.to_owned(), value, unit, goal };
        eprintln!("    {}", measurement.text());
        self.0.push(measurement);
    }

    /// Adds a table.
    pub(crate) fn table(&mut self, table: Table) {
        self.1.push(table);
    }

    pub(crate) fn print(&self) {
        self.0.iter().for_each(|measurement| println!("{}", measurement.text()));
        self.1.iter().flat_map(Table::lines).for_each(|line| println!("{line}"));
    }

    pub(crate) fn print_json(&self) {
        let measurements = self.0.iter().map(|Measurement { what, value, unit, goal }| {
            json!({ "what": what, "value": value, "unit": unit, "goal": goal })
        });
        let tables = self.1.iter().map(Table::json);
        let (measurements, tables) = (measurements.collect::<Vec<_>>(), tables.collect::<Vec<_>>());
        println!("{}", json!({ "measurements": measurements, "tables": tables }));
    }
}

// === impl Table ===

impl Table {
    pub(crate) fn new(name: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(ToString::to_string).collect();
        Self { name: name.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row, with a value for each column.
    pub(crate) fn row(&mut self, label: &str, values: &[f64]) {
        let row = Row { label: label.to_owned(), values: values.to_vec(), unit: "" };
        eprintln!("    {}", row.line());
        self.rows.push(row);
    }

    /// Sets the value of a column in the row with this label, which is added if it is the first one.
    pub(crate) fn set(&mut self, column: usize, label: &str, value: f64, unit: &'static str) {
        eprintln!("    {label}: {}", cell(value, unit));
        let number = self.rows.iter().position(|row| row.label == label).unwrap_or_else(|| {
            self.rows.push(Row { label: label.to_owned(), values: vec![f64::NAN; self.columns.len()], unit });
            self.rows.len() - 1
        });
        self.rows[number].values[column] = value;
    }

    /// As Markdown, below its name.
    fn lines(&self) -> Vec<String> {
        let head = format!("| | {} |", self.columns.join(" | "));
        let line = format!("|---|{}", "---|".repeat(self.columns.len()));
        [String::new(), self.name.clone(), String::new(), head, line]
            .into_iter()
            .chain(self.rows.iter().map(Row::line))
            .collect()
    }

    fn json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|Row { label, values, unit }| {
            let mut row = json!({ "what": label, "unit": unit });
            for (column, value) in self.columns.iter().zip(values) {
                row[column.as_str()] = (*value).into();
            }
            row
        });
        json!({ "name": self.name, "rows": rows.collect::<Vec<_>>() })
    }
}

// === impl Row ===

impl Row {
    fn line(&self) -> String {
        let cells: Vec<_> = self.values.iter().map(|value| cell(*value, self.unit)).collect();
        format!("| {} | {} |", self.label, cells.join(" | "))
    }
}

/// A value for people: short times in smaller units, and not more digits than mean something.
fn cell(value: f64, unit: &str) -> String {
    let (value, unit) = match unit {
        "s" if value < 0.001 => (value * 1e6, "us"),
        "s" if value < 1.0 => (value * 1e3, "ms"),
        unit => (value, unit),
    };
    let digits = match value.abs() {
        _ if value.is_nan() => return "–".to_owned(),
        _ if value.fract() == 0.0 => 0,
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

// === impl Measurement ===

impl Measurement {
    fn text(&self) -> String {
        let Self { what, value, unit, goal } = self;
        let goal = match goal {
            None => String::new(),
            Some(goal) if value <= goal => format!("  goal {goal}: met"),
            Some(goal) => format!("  goal {goal}: missed"),
        };
        format!("{what:<72} {value:>12.2} {unit:<5}{goal}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_few_digits_and_short_units() {
        let cells = [(0.000_052_4, "s"), (0.007_12, "s"), (5.801, "s"), (131.6, "s"), (2.0, ""), (f64::NAN, "MB")];
        let cells: Vec<_> = cells.into_iter().map(|(value, unit)| cell(value, unit)).collect();
        assert_eq!(cells, ["52.4 us", "7.12 ms", "5.80 s", "132 s", "2", "–"]);
    }

    #[test]
    fn tables_are_markdown_with_a_gap_where_a_column_has_no_value() {
        let mut table = Table::new("size", &["a", "b"]);
        table.set(0, "memory", 47.0, "MB");
        table.set(1, "start", 1.5, "s");

        let lines = table.lines().join("\n");

        assert_eq!(lines, "\nsize\n\n| | a | b |\n|---|---|---|\n| memory | 47 MB | – |\n| start | – | 1.50 s |");
    }
}
