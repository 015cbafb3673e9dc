//! Prints measurements as a table or as JSON.

use std::time::Duration;

use iptables::Variant;
use serde_json::json;

/// A list of measurements.
#[derive(Debug, Default)]
pub(crate) struct Report {
    of: Option<(Variant, u32)>,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    variant: Variant,
    services: u32,
    what: String,
    value: f64,
    unit: &'static str,
}

impl Report {
    /// For a variant and a number of services.
    pub(crate) fn new(variant: Variant, services: u32) -> Self {
        Self { of: Some((variant, services)), lines: Vec::new() }
    }

    pub(crate) fn duration(&mut self, what: &str, duration: Duration) {
        self.push(what, duration.as_secs_f64() * 1e3, "ms");
    }

    pub(crate) fn count(&mut self, what: &str, count: usize) {
        self.push(what, count as f64, "");
    }

    /// The ratio of two durations.
    pub(crate) fn ratio(&mut self, what: &str, took: Duration, other: Duration) {
        self.push(what, took.as_secs_f64() / other.as_secs_f64(), "x");
    }

    fn push(&mut self, what: &str, value: f64, unit: &'static str) {
        let (variant, services) = self.of.expect("a report of something");
        // Shows progress.
        eprintln!("{variant:<6} {services:>6}  {what}: {value:.3} {unit}");
        self.lines.push(Line { variant, services, what: what.into(), value, unit });
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    pub(crate) fn print(&self) {
        println!("variant services  {:<48} {:>12}", "what", "");
        for Line { variant, services, what, value, unit } in &self.lines {
            println!("{:<7} {services:>8}  {what:<48} {value:>12.3} {unit}", variant.to_string());
        }
    }

    pub(crate) fn print_json(&self) {
        let lines = self.lines.iter().map(|Line { variant, services, what, value, unit }| {
            json!({
                "variant": variant.to_string(),
                "services": services,
                "what": what,
                "value": value,
                "unit": unit,
                "goal": goal(what),
            })
        });
        println!("{}", json!({ "backend": "iptables", "measurements": lines.collect::<Vec<_>>() }));
    }
}

/// The limit of a measurement, in its unit, as in docs/performance.md.
fn goal(what: &str) -> Option<f64> {
    match what {
        "one endpoint replaced, lines" => Some(20.0),
        "one endpoint replaced, to iptables-restore" => Some(1.2),
        "cold load, to iptables-restore" => Some(1.1),
        "reconcile, nothing changed" => Some(10_000.0),
        _ => None,
    }
}
