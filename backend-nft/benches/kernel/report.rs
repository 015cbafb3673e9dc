//! Prints measurements as a table or as JSON.

use std::time::Duration;

use serde_json::json;

/// A list of measurements.
#[derive(Debug, Default)]
pub(crate) struct BenchReport {
    services: u32,
    measurements: Vec<Measurement>,
}

#[derive(Debug)]
struct Measurement {
    services: u32,
    what: String,
    value: f64,
    unit: &'static str,
}

impl BenchReport {
    /// For this number of services.
    pub(crate) fn new(services: u32) -> Self {
        Self { services, measurements: Vec::new() }
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
        // Progress.
        eprintln!("{:>6}  {what}: {value:.3} {unit}", self.services);
        self.measurements.push(Measurement { services: self.services, what: what.into(), value, unit });
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.measurements.extend(other.measurements);
    }

    /// The last value of a measurement.
    pub(crate) fn last(&self, what: &str, services: u32) -> f64 {
        let found =
            self.measurements.iter().rfind(|measurement| measurement.what == what && measurement.services == services);
        found.expect("measured before").value
    }

    pub(crate) fn print(&self) {
        println!("{:>8}  {:<44} {:>12}", "services", "what", "");
        for Measurement { services, what, value, unit } in &self.measurements {
            println!("{services:>8}  {what:<44} {value:>12.3} {unit}");
        }
    }

    pub(crate) fn print_json(&self) {
        let measurements = self.measurements.iter().map(|Measurement { services, what, value, unit }| {
            json!({ "services": services, "what": what, "value": value, "unit": unit, "goal": goal(*services, what) })
        });
        println!("{}", json!({ "backend": "nftables", "measurements": measurements.collect::<Vec<_>>() }));
    }
}

/// The limit of a measurement, in its unit, as in docs/performance.md.
fn goal(services: u32, what: &str) -> Option<f64> {
    let goal = match (services, what) {
        (_, "one endpoint replaced, longest") => 5.0,
        (_, "100,000 connections, one in a hundred to an endpoint that is gone: handled") => 300.0,
        (10_000, "cold load, in all") => 500.0,
        (10_000, "cold load, inside sendmsg") => 300.0,
        (10_000, "cold load, longest transaction") => 50.0,
        (10_000, "one endpoint replaced, median") => 1.0,
        (10_000, "one endpoint added, median") => 2.0,
        (10_000, "two added, the only pool of that size, median") => 20.0,
        (10_000, "restart, nothing changed") => 300.0,
        (10_000, "reconcile, nothing changed") => 100.0,
        (10_000, "snapshot: until everything is programmed") => 2_000.0,
        (50_000, "snapshot: until everything is programmed") => 3_000.0,
        (_, "snapshot: until default/kubernetes answers") => 200.0,
        (_, "100,000 UDP flows, one in ten stale: deleted") => 300.0,
        _ => return None,
    };
    Some(goal)
}

/// The resident memory of the process (`VmRSS`), in bytes.
pub(crate) fn rss() -> u64 {
    status("VmRSS:")
}

/// The peak of the process memory during `work`, beyond that before it, in bytes.
pub(crate) fn extra_memory<T>(work: impl FnOnce() -> T) -> (T, u64) {
    // Resets the peak: see proc(5).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = rss();
    let result = work();
    (result, status("VmHWM:").saturating_sub(before))
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
