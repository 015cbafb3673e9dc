//! Resource usage of this process, under the names that Prometheus client libraries use.

use std::{fmt, fs};

use nix::{
    sys::resource::{UsageWho, getrusage},
    unistd::{SysconfVar, sysconf},
};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};

use super::{Registry, Writer};

/// Reads the usage at each scrape.
#[derive(Debug)]
struct Process;

/// CPU time, memory, open files and threads of this process.
#[must_use]
pub fn process() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Process));
    registry
}

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let user = usage.user_time();
            let system = usage.system_time();
            let micros = 1_000_000 * (user.tv_sec() + system.tv_sec()) + user.tv_usec() + system.tv_usec();
            writer.seconds_counter("process_cpu", "Total user and system CPU time spent.", micros as f64 / 1e6)?;
        }
        if let Some(bytes) = resident() {
            writer.gauge("process_resident_memory", "Resident memory size.", Some(Unit::Bytes), bytes)?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            // The directory that is being read is open itself.
            let open = files.count().saturating_sub(1) as f64;
            writer.gauge("process_open_fds", "Number of open file descriptors.", None, open)?;
        }
        if let Ok(threads) = fs::read_dir("/proc/self/task") {
            writer.gauge("process_threads", "Number of threads.", None, threads.count() as f64)?;
        }
        Ok(())
    }
}

/// The second number of `/proc/self/statm`, in bytes.
fn resident() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * page as f64)
}
