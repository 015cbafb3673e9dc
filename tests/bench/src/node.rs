//! One node in a large cluster: duration, kernel writes and memory of cold starts and restarts.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use e2e::Process;

use crate::{
    lab::{DEADLINE, Lab, Memory, commit, field, memory, stop},
    latency,
    manifests::Manifests,
    report::{Goal, Report},
};

const SERVICES: u32 = 10_000;
const EACH: u32 = 10;
const MANY_SERVICES: u32 = 50_000;
const MANY_EACH: u32 = 5;

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    Report::progress(&format!("writing {SERVICES} manifests"));
    let manifests = Manifests::write(&lab.path("large"), SERVICES, EACH)?;

    Report::progress("starting a frontend");
    let started = Instant::now();
    let frontend = lab.spawn_frontend(&manifests);
    frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
    report.duration("frontend, start to serving, 10,000 x 10", started.elapsed(), Goal::None);

    Report::progress("starting a backend on an empty kernel");
    let (backend, started) = first_vip(report, lab, "backend, cold start", Goal::None, Lab::spawn_backend)?;
    reconciled(report, &backend, (started, SERVICES), "backend, cold start", Goal::AtMost(500.0))?;
    let Memory { resident, peak } = memory(&backend)?;
    report.memory("backend, memory after the cold start", resident, Goal::AtMost(40.0));
    report.memory("backend, peak memory", peak, Goal::AtMost(40.0));
    let Memory { resident, peak } = memory(&frontend)?;
    report.memory("frontend, memory with one stream", resident, Goal::None);
    report.memory("frontend, peak memory", peak, Goal::None);

    Report::progress("editing endpoints");
    latency::edits(report, lab, &manifests, "edit to kernel, frontend and backend, 10,000 x 10", 0)?;
    report.memory("backend, memory after 200 edits", memory(&backend)?.resident, Goal::AtMost(40.0));
    stop(backend)?;

    Report::progress("restarting the backend");
    let backend = restart(report, lab, "backend, restart, nothing changed")?;
    let Memory { resident, peak } = memory(&backend)?;
    report.memory("backend, memory after the restart", resident, Goal::AtMost(40.0));
    report.memory("backend, peak memory after the restart", peak, Goal::AtMost(40.0));
    stop(backend)?;

    lab.remove_state()?;
    let backend = restart(report, lab, "backend, restart without its state file")?;
    stop(backend)?;
    stop(frontend)?;
    start_from_state_file(report, lab, "10,000 x 10", SERVICES, Goal::AtMost(100.0))?;
    lab.clean()
}

/// The first VIPs of many services: over a stream, and from the state file.
pub(crate) fn measure_many(report: &mut Report, lab: &Lab) -> Result<()> {
    Report::progress(&format!("writing {MANY_SERVICES} manifests"));
    let manifests = Manifests::write(&lab.path("many"), MANY_SERVICES, MANY_EACH)?;
    let frontend = lab.spawn_frontend(&manifests);
    frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);

    Report::progress("starting a backend on an empty kernel");
    let what = "backend, cold start, 50,000 x 5";
    let (backend, started) = first_vip(report, lab, what, Goal::None, Lab::spawn_backend)?;
    reconciled(report, &backend, (started, MANY_SERVICES), what, Goal::None)?;
    report.memory(&format!("{what}: memory"), memory(&backend)?.resident, Goal::None);
    stop(backend)?;
    stop(frontend)?;
    start_from_state_file(report, lab, "50,000 x 5", MANY_SERVICES, Goal::AtMost(300.0))
}

/// Starts the backend after a reboot, while no frontend answers.
fn start_from_state_file(report: &mut Report, lab: &Lab, size: &str, services: u32, goal: Goal) -> Result<()> {
    Report::progress("starting the backend from its state file");
    lab.netns().output("nft", &["flush", "ruleset"]);
    let what = format!("backend, start from the state file, {size}");
    let (backend, started) = first_vip(report, lab, &what, goal, Lab::spawn_backend_after_reboot)?;
    reconciled(report, &backend, (started, services), &what, Goal::None)?;
    stop(backend)
}

/// Starts the backend, and waits for its first transaction, which contains the first VIPs.
fn first_vip(
    report: &mut Report,
    lab: &Lab,
    what: &str,
    goal: Goal,
    spawn: impl FnOnce(&Lab) -> Process,
) -> Result<(Process, Instant)> {
    let mut kernel = lab.monitor()?;
    let started = Instant::now();
    let backend = spawn(lab);
    commit(&mut kernel, DEADLINE)?;
    report.duration(&format!("{what}: first VIPs"), started.elapsed(), goal);
    Ok((backend, started))
}

/// Starts the backend on a kernel that is already programmed. It must not write.
fn restart(report: &mut Report, lab: &Lab, what: &str) -> Result<Process> {
    let before = lab.generation()?;
    let started = Instant::now();
    let backend = lab.spawn_backend();
    let writes = reconciled(report, &backend, (started, SERVICES), what, Goal::AtMost(300.0))?;
    backend.wait_for_line("following a frontend", 0, DEADLINE);
    let transactions = lab.generation()?.wrapping_sub(before);
    report.add(&format!("{what}: writes"), writes, "", Goal::AtMost(0.0));
    report.add(&format!("{what}: transactions"), transactions.into(), "", Goal::AtMost(0.0));
    Ok(backend)
}

/// Waits until the first state is programmed, with this number of services, and returns the number of kernel writes.
fn reconciled(
    report: &mut Report,
    backend: &Process,
    (started, services): (Instant, u32),
    what: &str,
    goal: Goal,
) -> Result<f64> {
    let line = backend.wait_for_line("reconciled", 0, DEADLINE);
    report.duration(&format!("{what}: from the start of the program"), started.elapsed(), goal);
    let number = |name| -> Result<f64> { field(&line, name)?.parse().with_context(|| line.clone()) };
    report.add(&format!("{what}: of that to reconcile"), number("took_ms")?, "ms", Goal::None);
    ensure!(number("service_ports")? == f64::from(services), "not all services are programmed: {line}");
    number("writes")
}
