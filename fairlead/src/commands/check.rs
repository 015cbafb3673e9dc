//! `fairlead check`: inspects everything that Services depend on, on a node and around it. Changes nothing.
//!
//! ```text
//!   kernel     features that the mode needs, probed in a network namespace
//!   sysctls    forwarding, conntrack, bridges; source ports     ──▶ findings ──▶ table | document, exit code
//!   rules      of kube-proxy, other modes, other programs
//!   nft        its version, and sets on which older versions crash
//!   frontend   certificates, a stream
//! ```

mod frontend;
mod kernel;
pub(super) mod nft;
mod rules;
mod source_ports;
mod sysctl;
#[cfg(test)]
mod tests;

use std::fmt;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::{
    cli::{CheckArgs, InspectedNodeArgs},
    exit_code::ExitCode,
    print,
    running_backend::RunningBackend,
};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Level {
    Ok,
    /// It works, but perhaps not as expected.
    Warn,
    /// Something does not work.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The name of the check, such as `kernel` or `sysctl`.
    pub(crate) check: &'static str,
    /// What was observed.
    pub(crate) what: String,
    /// Why it matters; empty for [`Level::Ok`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) why: &'static str,
    /// How to fix it; empty for [`Level::Ok`], and if `what` says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) fix: String,
}

/// The result of all checks.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport {
    worst: Level,
    findings: Vec<Finding>,
}

/// Runs all checks, and prints their findings.
pub(crate) async fn run(args: CheckArgs, running: Option<RunningBackend>) -> Result<ExitCode> {
    let report = inspect(&args.inspected, !args.pre, running.as_ref()).await?;
    print::value(args.output, &report, || report.text())?;
    Ok(ExitCode::of_check(report.worst < Level::Fail))
}

/// Runs all checks. A failed check is a finding.
pub(crate) async fn inspect(
    inspected: &InspectedNodeArgs,
    is_installed: bool,
    running: Option<&RunningBackend>,
) -> Result<CheckReport> {
    let mode = inspected.backend;
    let probed = spawn_blocking(move || kernel::check(mode)).await.context("the probe was cancelled")?;

    let mut findings = vec![probed];
    findings.extend(sysctl::check());
    findings.push(spawn_blocking(source_ports::check).await.context("the count was cancelled")?);
    findings.extend(rules::check(mode, is_installed).await);
    findings.extend(nft::check());
    if is_installed {
        findings.extend(frontend::check(inspected, running).await?);
    }
    Ok(CheckReport::new(findings))
}

impl CheckReport {
    fn new(findings: Vec<Finding>) -> Self {
        let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
        Self { worst, findings }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Finding { level, check, what, why, fix } in &self.findings {
            text += &format!("{level:<5} {check:<13} {what}\n");
            for (label, detail) in [("why", *why), ("fix", fix)] {
                if !detail.is_empty() {
                    text += &format!("{:20}{label}: {detail}\n", "");
                }
            }
        }

        let [failures, warnings, passed] = [Level::Fail, Level::Warn, Level::Ok].map(|level| self.count(level));
        if failures + warnings == 0 {
            text + "all checks passed\n"
        } else {
            text + &format!("{failures} FAIL, {warnings} WARN, {passed} OK\n")
        }
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

impl Finding {
    /// What was observed: no problem, unless `warn` or `fail` follows.
    pub(crate) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, what: what.into(), why: "", fix: String::new() }
    }

    /// The same observation as a problem of this level.
    pub(crate) fn at_level(self, level: Level, why: &'static str, fix: impl Into<String>) -> Self {
        Self { level, why, fix: fix.into(), ..self }
    }

    pub(crate) fn warn(self, why: &'static str, fix: impl Into<String>) -> Self {
        self.at_level(Level::Warn, why, fix)
    }

    pub(crate) fn fail(self, why: &'static str, fix: impl Into<String>) -> Self {
        self.at_level(Level::Fail, why, fix)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "OK",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        })
    }
}
