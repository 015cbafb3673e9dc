//! What was measured, as a table or as JSON.

use std::time::Duration;

use serde_json::json;

/// A list of measurements.
#[derive(Debug, Default)]
pub(crate) struct Report {
    services: u32,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    services: u32,
    what: String,
    value: f64,
    unit: &'static str,
}

impl Report {
    /// With so many services.
    pub(crate) fn new(services: u32) -> Self {
        Self { services, lines: Vec::new() }
    }

    pub(crate) fn duration(&mut self, what: &str, duration: Duration) {
        self.push(what, duration.as_secs_f64() * 1e3, "ms");
    }

    pub(crate) fn bytes(&mut self, what: &str, bytes: u64) {
        self.push(what, bytes as f64 / f64::from(1 << 20), "MiB");
    }

    pub(crate) fn count(&mut self, what: &str, count: usize) {
        self.push(what, count as f64, "");
    }

    pub(crate) fn ratio(&mut self, what: &str, ratio: f64) {
        self.push(what, ratio, "x");
    }

    pub(crate) fn micros(&mut self, what: &str, micros: f64) {
        self.push(what, micros, "us");
    }

    pub(crate) fn number(&mut self, what: &str, number: f64) {
        self.push(what, number, "");
    }

    fn push(&mut self, what: &str, value: f64, unit: &'static str) {
        // Who waits sees how far it has got.
        eprintln!("{:>6}  {what}: {value:.3} {unit}", self.services);
        self.lines.push(Line { services: self.services, what: what.into(), value, unit });
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.lines.extend(other.lines);
    }

    /// A value that was measured, in its unit.
    pub(crate) fn last(&self, what: &str, services: u32) -> f64 {
        let found = self.lines.iter().rfind(|line| line.what == what && line.services == services);
        found.expect("it was measured").value
    }

    pub(crate) fn print(&self) {
        println!("{:>8}  {:<44} {:>12}", "services", "what", "");
        for Line { services, what, value, unit } in &self.lines {
            println!("{services:>8}  {what:<44} {value:>12.3} {unit}");
        }
    }

    pub(crate) fn print_json(&self) {
        let lines = self.lines.iter().map(|Line { services, what, value, unit }| {
            json!({ "services": services, "what": what, "value": value, "unit": unit })
        });
        println!("{}", json!({ "backend": "nft", "measurements": lines.collect::<Vec<_>>() }));
    }
}

/// The process's memory (`VmRSS`), in bytes.
pub(crate) fn rss() -> u64 {
    status("VmRSS:")
}

/// How much more memory than before the process had at most while it did this, in bytes.
pub(crate) fn extra_memory<T>(work: impl FnOnce() -> T) -> (T, u64) {
    // Forgets the peak: see proc(5).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = rss();
    let done = work();
    (done, status("VmHWM:").saturating_sub(before))
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
