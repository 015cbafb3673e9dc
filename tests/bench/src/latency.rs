//! The time from the edit of a manifest to the commit in the kernel.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{
    lab::{DEADLINE, Lab, commit, stop},
    manifests::Manifests,
    report::{Goal, Report},
};

/// The number of edits.
const EDITS: u32 = 200;
const SERVICES: u32 = 1_000;
const EACH: u32 = 10;
/// Pause between edits, so that each is a separate change.
const PAUSE: Duration = Duration::from_millis(30);
/// In milliseconds, of the 99th percentile.
const GOAL: Goal = Goal::AtMost(50.0);

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    let manifests = Manifests::write(&lab.path("small"), SERVICES, EACH)?;

    Report::progress(&format!("{EDITS} edits through `fairlead local`, {SERVICES} x {EACH}"));
    let local = lab.spawn_local(&manifests);
    local.wait_for_line("reconciled", 0, DEADLINE);
    edits(report, lab, &manifests, "edit to kernel, local, 1,000 x 10", 0).context("local")?;
    stop(local)?;
    lab.clean()?;

    Report::progress(&format!("{EDITS} edits through a frontend and a backend, {SERVICES} x {EACH}"));
    let frontend = lab.spawn_frontend(&manifests);
    frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
    let backend = lab.spawn_backend();
    backend.wait_for_line("reconciled", 0, DEADLINE);
    edits(report, lab, &manifests, "edit to kernel, frontend and backend, 1,000 x 10", EDITS).context("gRPC")?;
    stop(backend)?;
    stop(frontend)
}

/// Edits one endpoint at a time, and reports the time from each rename to the kernel's notification of the commit.
/// `first` is the number of the first edit; a repeated number would change nothing.
pub(crate) fn edits(report: &mut Report, lab: &Lab, manifests: &Manifests, what: &str, first: u32) -> Result<()> {
    let mut kernel = lab.monitor()?;
    let mut times = Vec::new();
    for number in first..first + EDITS {
        let edit = manifests.stage(number)?;
        thread::sleep(PAUSE);
        let started = Instant::now();
        edit.apply()?;
        commit(&mut kernel, DEADLINE).with_context(|| format!("edit {number}"))?;
        times.push(started.elapsed());
    }
    report.spread(what, times, GOAL);
    Ok(())
}
