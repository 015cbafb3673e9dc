//! What is measured at intervals: written to a CSV file, and judged at the end.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use e2e::Process;

use super::slope::judge;
use crate::lab;

/// A measured number: its name, its value, and how much growth is noise.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    name: String,
    value: f64,
    tolerated: f64,
}

/// Writes samples, and keeps them.
#[derive(Debug)]
pub(super) struct Recorder {
    file: BufWriter<File>,
    columns: Vec<(Measured, Vec<f64>)>,
}

impl Measured {
    pub(super) fn new(name: impl Into<String>, value: f64, tolerated: f64) -> Self {
        Self { name: name.into(), value, tolerated }
    }
}

/// Memory, which may grow by this number of kB, open files and threads of a process.
pub(super) fn process(name: &str, process: &Process, growth: f64) -> Result<[Measured; 3]> {
    let proc = Path::new("/proc").join(process.pid().to_string());
    let count = |directory: &str| -> Result<f64> {
        let path = proc.join(directory);
        Ok(fs::read_dir(&path).with_context(|| path.display().to_string())?.count() as f64)
    };
    Ok([
        Measured::new(format!("{name} RSS kB"), lab::memory(process)?.resident as f64, growth),
        Measured::new(format!("{name} files"), count("fd")?, 8.0),
        Measured::new(format!("{name} threads"), count("task")?, 3.0),
    ])
}

/// The kernel's memory that cannot be reclaimed, of the whole machine.
pub(super) fn unreclaimable() -> Result<Measured> {
    Ok(Measured::new("machine SUnreclaim kB", lab::unreclaimable()? as f64, 32_768.0))
}

impl Recorder {
    pub(super) fn new(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self { file: BufWriter::new(file), columns: Vec::new() })
    }

    /// Adds a row. All samples have the same columns.
    pub(super) fn record(&mut self, at: Duration, sample: &[Measured]) -> Result<()> {
        if self.columns.is_empty() {
            self.columns = sample.iter().map(|measured| (measured.clone(), Vec::new())).collect();
            let names = sample.iter().map(|measured| measured.name.as_str());
            writeln!(self.file, "seconds,{}", names.collect::<Vec<_>>().join(","))?;
        }
        let values = sample.iter().map(|measured| measured.value.to_string());
        writeln!(self.file, "{},{}", at.as_secs(), values.collect::<Vec<_>>().join(","))?;
        self.file.flush()?;
        for ((_, values), measured) in self.columns.iter_mut().zip(sample) {
            values.push(measured.value);
        }
        Ok(())
    }

    /// Prints a table, and returns what grows after the first part of the time, which is `warm_up`.
    pub(super) fn print(&self, warm_up: f64) -> Vec<String> {
        println!("{:<40} {:>12} {:>12} {:>12}", "measured", "median", "growth", "limit");
        let mut growing = Vec::new();
        for (measured, values) in &self.columns {
            let judged = &values[(values.len() as f64 * warm_up) as usize..];
            let trend = judge(judged, measured.tolerated);
            let verdict = if trend.grows() { "  GROWS" } else { "" };
            println!(
                "{:<40} {:>12.0} {:>+12.0} {:>12.0}{verdict}",
                measured.name, trend.median, trend.growth, trend.limit
            );
            growing.extend(trend.grows().then(|| measured.name.clone()));
        }
        growing
    }
}
