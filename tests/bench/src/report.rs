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
    rows: Vec<(String, Vec<f64>)>,
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
        let values = values.to_vec();
        eprintln!("    {}", Self::line(label, values.iter().map(|value| format!("{value:.2}"))));
        self.rows.push((label.to_owned(), values));
    }

    fn lines(&self) -> Vec<String> {
        let head = Self::line(&self.name, self.columns.iter().cloned());
        let rows =
            self.rows.iter().map(|(label, values)| Self::line(label, values.iter().map(|value| format!("{value:.2}"))));
        [String::new(), head].into_iter().chain(rows).collect()
    }

    fn line(label: &str, cells: impl Iterator<Item = String>) -> String {
        cells.fold(format!("{label:<36}"), |line, cell| format!("{line} {cell:>13}"))
    }

    fn json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|(label, values)| {
            let mut row = json!({ "what": label });
            for (column, value) in self.columns.iter().zip(values) {
                row[column.as_str()] = (*value).into();
            }
            row
        });
        json!({ "name": self.name, "rows": rows.collect::<Vec<_>>() })
    }
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
