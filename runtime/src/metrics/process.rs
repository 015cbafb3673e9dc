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
            let (user, system) = (usage.user_time(), usage.system_time());
            let micros = 1_000_000 * (user.tv_sec() + system.tv_sec()) + user.tv_usec() + system.tv_usec();
            let text = "Total user and system CPU time spent.";
            writer.seconds_counter("process_cpu", text, micros as f64 / 1e6)?;
        }
        if let Some(bytes) = resident() {
            let text = "Resident memory size.";
            writer.gauge("process_resident_memory", text, Some(Unit::Bytes), bytes)?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            let text = "Number of open file descriptors.";
            // One of them is the directory that is being read.
            writer.gauge("process_open_fds", text, None, files.count().saturating_sub(1) as f64)?;
        }
        if let Ok(threads) = fs::read_dir("/proc/self/task") {
            let text = "Number of threads.";
            writer.gauge("process_threads", text, None, threads.count() as f64)?;
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
