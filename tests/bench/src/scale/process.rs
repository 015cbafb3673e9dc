//! CPU time of processes.

use std::fs;

use anyhow::{Context as _, Result};
use e2e::Process;

/// The unit of CPU times in `/proc`: `USER_HZ`, which is 100 on all architectures that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The CPU time that a process has used, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage(f64);

impl Usage {
    pub(crate) fn of(process: &Process) -> Result<Self> {
        Self::read(&process.pid().to_string())
    }

    /// The CPU time of this process.
    pub(crate) fn of_this() -> Result<Self> {
        Self::read("self")
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0
    }

    /// The CPU time that the same process has used since.
    pub(crate) fn since(self, process: &Process) -> Result<f64> {
        Ok(Self::of(process)?.0 - self.0)
    }

    pub(crate) fn since_this(self) -> Result<f64> {
        Ok(Self::of_this()?.0 - self.0)
    }

    /// `utime` and `stime`, the 14th and 15th field of `/proc/PID/stat`.
    fn read(pid: &str) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The name, in parentheses, may contain anything.
        let (_, fields) = text.rsplit_once(')').with_context(|| format!("read {path}"))?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        Ok(Self(ticks.sum::<Result<f64, _>>().context("a number of ticks")? / TICKS_PER_SECOND))
    }
}
