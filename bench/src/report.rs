//! The measurements and their goals, as a table or as JSON.

use std::time::Duration;

use serde_json::json;

/// A list of measurements.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Measurement>);

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

    pub(crate) fn print(&self) {
        self.0.iter().for_each(|measurement| println!("{}", measurement.text()));
    }

    pub(crate) fn print_json(&self) {
        let measurements = self.0.iter().map(
            |Measurement { what, value, unit, goal }| json!({ "what": what, "value": value, "unit": unit, "goal": goal }),
        );
        println!("{}", json!({ "measurements": measurements.collect::<Vec<_>>() }));
    }
}

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
