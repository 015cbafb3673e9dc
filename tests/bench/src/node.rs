//! One node in a large cluster: duration, kernel writes and memory of cold starts and restarts.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use e2e::Process;

use crate::{
    lab::{DEADLINE, Lab, Memory, field, memory, stop},
    latency,
    manifests::Manifests,
    report::{Goal, Report},
};

const SERVICES: u32 = 10_000;
const EACH: u32 = 10;

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    Report::progress(&format!("writing {SERVICES} manifests"));
    let manifests = Manifests::write(&lab.path("large"), SERVICES, EACH)?;

    Report::progress("starting a frontend");
    let started = Instant::now();
    let frontend = lab.spawn_frontend(&manifests);
    frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
    report.duration("frontend, start to serving, 10,000 x 10", started.elapsed(), Goal::None);

    Report::progress("starting a backend on an empty kernel");
    let started = Instant::now();
    let backend = lab.spawn_backend();
    reconciled(report, &backend, started, "backend, cold start", Goal::AtMost(500.0))?;
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
    stop(frontend)
}

/// Starts the backend on a kernel that is already programmed. It must not write.
fn restart(report: &mut Report, lab: &Lab, what: &str) -> Result<Process> {
    let before = lab.generation()?;
    let started = Instant::now();
    let backend = lab.spawn_backend();
    let writes = reconciled(report, &backend, started, what, Goal::AtMost(300.0))?;
    backend.wait_for_line("following a frontend", 0, DEADLINE);
    let transactions = lab.generation()?.wrapping_sub(before);
    report.add(&format!("{what}: writes"), writes, "", Goal::AtMost(0.0));
    report.add(&format!("{what}: transactions"), transactions.into(), "", Goal::AtMost(0.0));
    Ok(backend)
}

/// Waits until the first state is programmed, and returns the number of kernel writes.
fn reconciled(report: &mut Report, backend: &Process, started: Instant, what: &str, goal: Goal) -> Result<f64> {
    let line = backend.wait_for_line("reconciled", 0, DEADLINE);
    report.duration(&format!("{what}: from the start of the program"), started.elapsed(), goal);
    let number = |name| -> Result<f64> { field(&line, name)?.parse().with_context(|| line.clone()) };
    report.add(&format!("{what}: of that to reconcile"), number("took_ms")?, "ms", Goal::None);
    ensure!(number("service_ports")? == f64::from(SERVICES), "not all services are programmed: {line}");
    number("writes")
}
