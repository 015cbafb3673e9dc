//! The CPU time of a node, by thread of its backend, while pods change: a pass over the conntrack table costs as much
//! as the table, however small the change is that it follows. So it is measured with tables of three sizes. With the
//! largest, also how long `fairlead connections` reads it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use e2e::{Netns, Process};
use proto::model::Protocol;

use crate::{
    lab::{DEADLINE, Lab, memory, stop},
    manifests::{Manifests, NODE},
    report::{Goal, Report},
    scale::process::thread_times,
};

const SERVICES: u32 = 10_000;
const EACH: u32 = 10;
/// Replaced pods per second.
const CHANGES_PER_SECOND: u32 = 20;
/// How long it is measured. The thread for flows rests at most 7 s.
const DURATION: Duration = Duration::from_secs(30);
/// How long pods change before, so that what follows from the first state and the first change is not measured.
const WARM_UP: Duration = Duration::from_secs(8);
/// The numbers of entries in the conntrack table.
const ENTRIES: [u32; 3] = [0, 100_000, 1_000_000];
/// The goals hold up to this number of entries.
const GOAL_ENTRIES: u32 = 100_000;
/// How long `fairlead connections` may take with the largest table, in milliseconds.
const LISTING_GOAL: Goal = Goal::AtMost(2_000.0);
/// How often the memory of a program is read that ends by itself.
const MEMORY_POLL: Duration = Duration::from_millis(10);
/// A thread with less CPU time than this is not reported, in percent of a core.
const SHOWN: f64 = 0.05;

const FLOWS_THREAD: &str = "flows";
const MAX_ENTRIES: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// The CPU time of the threads of a process, by name.
type CpuTimes = BTreeMap<String, Duration>;

/// Restores the limit of the conntrack table.
struct MaxEntries(String);

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let _limit = MaxEntries::raise()?;
    for (protocol, goal) in [(Protocol::Tcp, 1.0), (Protocol::Udp, 5.0)] {
        for entries in ENTRIES {
            let goal = if entries > GOAL_ENTRIES { Goal::None } else { Goal::AtMost(goal) };
            measure_one(report, &Lab::new()?, protocol, entries, goal)?;
        }
    }
    Ok(())
}

fn measure_one(report: &mut Report, lab: &Lab, protocol: Protocol, entries: u32, goal: Goal) -> Result<()> {
    Report::progress(&format!("{protocol}, {entries} conntrack entries"));
    let manifests = Manifests::write_protocol(&lab.path("changes"), SERVICES, EACH, protocol)?;
    fill(lab.netns(), protocol, entries, &manifests);
    let frontend = lab.spawn_frontend(&manifests);
    frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
    let backend = lab.spawn_backend();
    backend.wait_for_line("reconciled", 0, DEADLINE);
    let first = replace_pods(&manifests, 0, WARM_UP)?;

    let before = cpu_times(&backend)?;
    let begun = Instant::now();
    let changes = replace_pods(&manifests, first, DURATION)?;
    let seconds = begun.elapsed().as_secs_f64();
    let after = cpu_times(&backend)?;
    stop(backend)?;
    stop(frontend)?;

    let what = format!("{:.0} {protocol} pods/s, {entries} entries", f64::from(changes) / seconds);
    let mut all = 0.0;
    for (thread, time) in after {
        let used = time.saturating_sub(before.get(&thread).copied().unwrap_or_default());
        let percent = used.as_secs_f64() / seconds * 100.0;
        all += percent;
        let is_flows = thread == FLOWS_THREAD;
        if is_flows || percent >= SHOWN {
            let goal = if is_flows { goal } else { Goal::None };
            report.add(&format!("{what}: thread {thread}"), percent, "%", goal);
        }
    }
    report.add(&format!("{what}: backend, all threads"), all, "%", Goal::None);
    if entries > GOAL_ENTRIES {
        list_connections(report, lab, &format!("{entries} {protocol} entries"))?;
    }
    Ok(())
}

/// Runs `fairlead connections` with the state that the backend has left.
fn list_connections(report: &mut Report, lab: &Lab, what: &str) -> Result<()> {
    let state = lab.path("state");
    let state = state.to_str().context("the path of the state is not UTF-8")?;
    for by in ["service", "client"] {
        let what = format!("{what}: fairlead connections --by {by}");
        let arguments =
            ["connections", "--by", by, "--state-dir", state, "--node-name", NODE, "--backend-address=none"];
        let begun = Instant::now();
        let program = lab.spawn_program(&arguments, &format!("connections-{by}.log"));

        let mut peak = 0;
        let status = loop {
            if let Some(status) = program.exited() {
                break status;
            }
            // A program that has just ended has no memory.
            peak = memory(&program).map_or(peak, |memory| memory.peak);
            thread::sleep(MEMORY_POLL);
        };

        ensure!(status.success(), "{what}: {status}");
        report.duration(&what, begun.elapsed(), LISTING_GOAL);
        report.memory(&format!("{what}: peak memory"), peak, Goal::None);
    }
    Ok(())
}

/// Replaces pods, each of another service, for this time. Returns their number. `first`: the number of the first edit.
fn replace_pods(manifests: &Manifests, first: u32, duration: Duration) -> Result<u32> {
    let begun = Instant::now();
    let mut changes = 0;
    while begun.elapsed() < duration {
        manifests.stage(first + changes)?.apply()?;
        changes += 1;
        let next = begun + Duration::from_secs(changes.into()) / CHANGES_PER_SECOND;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(changes)
}

/// Adds open connections or flows to a pod that no edit replaces.
fn fill(netns: &Netns, protocol: Protocol, entries: u32, manifests: &Manifests) {
    let (vip, pod) = manifests.unchanged();
    let state = if protocol == Protocol::Tcp { "--state ESTABLISHED -u SEEN_REPLY,ASSURED" } else { "" };
    let name = protocol.lower();
    let mut commands = String::new();
    for n in 0..entries {
        let client = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 32, 0, 1)) + n / 10_000);
        let port = 10_000 + n % 10_000;
        // Writing to a String cannot fail.
        let _ = writeln!(
            commands,
            "-I -p {name} -s {client} -d {vip} --sport {port} --dport 80 --timeout 3600 {state} -r {pod} -q {client} \
             --reply-port-src 8080 --reply-port-dst {port}"
        );
    }
    netns.run_with_input("conntrack", &["-R", "-"], &commands);
}

fn cpu_times(process: &Process) -> Result<CpuTimes> {
    let mut times = CpuTimes::new();
    for (name, time) in thread_times(process)?.into_values() {
        *times.entry(name).or_default() += time;
    }
    Ok(times)
}

// === impl MaxEntries ===

impl MaxEntries {
    /// Lets the table have as many entries as are measured.
    fn raise() -> Result<Self> {
        let before = fs::read_to_string(MAX_ENTRIES).with_context(|| format!("read {MAX_ENTRIES}"))?;
        let needed = ENTRIES.into_iter().max().unwrap_or_default() * 2;
        fs::write(MAX_ENTRIES, needed.to_string()).with_context(|| format!("set {MAX_ENTRIES} to {needed}"))?;
        Ok(Self(before))
    }
}

impl Drop for MaxEntries {
    fn drop(&mut self) {
        if let Err(error) = fs::write(MAX_ENTRIES, &self.0) {
            eprintln!("cannot restore {MAX_ENTRIES} to {}: {error}", self.0.trim_end());
        }
    }
}
