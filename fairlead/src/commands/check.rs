//! `fairlead check`: inspects everything that Services depend on, on a node and around it. Changes nothing.
//!
//! ```text
//!   kernel     features that the backend needs, probed in a network namespace
//!   sysctls    forwarding, conntrack, bridges
//!   rules      of kube-proxy, other backends, other programs            ──▶ findings ──▶ table | document, exit code
//!   node       ports, state directory, file limits
//!   frontend   certificates, tokens, a stream; with --kubeconfig its permissions
//! ```

mod certificate;
mod finding;
mod frontend;
mod kernel;
mod node;
mod rules;
mod sysctl;
#[cfg(test)]
mod tests;

use anyhow::Result;
use serde::Serialize;

use crate::{cli::CheckArgs, exit_code::ExitCode, print};
pub(crate) use finding::{Finding, Level};

/// When the check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before a frontend or backend runs.
    BeforeInstallation,
    Installed,
}

/// The result of all checks.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport {
    worst: Level,
    findings: Vec<Finding>,
}

/// Runs all checks, and prints their findings.
pub(crate) async fn run(args: CheckArgs) -> Result<ExitCode> {
    let report = inspect(&args).await?;
    print::value(args.output, &report, || report.text())?;
    Ok(ExitCode::of_check(report.worst < Level::Fail))
}

/// Runs all checks. A failed check is a finding.
pub(crate) async fn inspect(args: &CheckArgs) -> Result<CheckReport> {
    let stage = if args.pre { Stage::BeforeInstallation } else { Stage::Installed };
    let mut findings = kernel::check(args.here.backend);
    findings.extend(sysctl::check(args.here.backend));
    findings.extend(rules::check(args.here.backend, stage).await);
    findings.extend(node::check(&args.here.state_dir, stage));
    if stage == Stage::Installed {
        findings.extend(frontend::check(args).await?);
    }
    if let Some(kubeconfig) = &args.kubeconfig {
        findings.extend(frontend::permissions(kubeconfig).await);
    }
    Ok(CheckReport::new(findings))
}

// === impl CheckReport ===

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
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (warnings, failures) = (count(Level::Warn), count(Level::Fail));
        text + &match (warnings, failures) {
            (0, 0) => "all checks passed\n".to_owned(),
            _ => format!("{failures} FAIL, {warnings} WARN, {} OK\n", count(Level::Ok)),
        }
    }
}
