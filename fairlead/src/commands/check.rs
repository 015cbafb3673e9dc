//! `fairlead check`: looks at everything on a node, and around it, that Services depend on, and says what is wrong, why that matters and
//! what to do. Nothing is changed.
//!
//! ```text
//!   kernel     can it do what the backend does? (tried in a namespace of its own)
//!   sysctls    forwarding, connection tracking, bridges
//!   rules      kube-proxy's, other backends', other people's            ──▶ findings ──▶ table | document, exit code
//!   node       ports, state directory, file limits
//!   frontend   certificates, tokens, a stream; with --kubeconfig what it may do
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

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::{cli::CheckArgs, print};
pub(crate) use finding::{Finding, Level};

/// When the check is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing of ours runs yet.
    BeforeInstallation,
    Installed,
}

/// What `-o json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    worst: Level,
    findings: Vec<Finding>,
}

/// Looks at everything, prints, and says by the exit code how it is.
pub(crate) async fn run(args: CheckArgs) -> Result<ExitCode> {
    let report = look(&args).await?;
    print::value(args.output, &report, || report.text())?;
    Ok(report.exit_code())
}

/// All findings. What cannot be looked at is one.
pub(crate) async fn look(args: &CheckArgs) -> Result<Report> {
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
    Ok(Report::new(findings))
}

// === impl Report ===

impl Report {
    fn new(findings: Vec<Finding>) -> Self {
        let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
        Self { worst, findings }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Finding { level, check, what, why, fix } in &self.findings {
            text += &format!("{level:<5} {check:<13} {what}\n");
            for (word, said) in [("why", *why), ("fix", fix)] {
                if !said.is_empty() {
                    text += &format!("{:20}{word}: {said}\n", "");
                }
            }
        }
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (warnings, failures) = (count(Level::Warn), count(Level::Fail));
        text + &match (warnings, failures) {
            (0, 0) => "Everything is as it should be.\n".to_owned(),
            _ => format!("{failures} FAIL, {warnings} WARN, {} OK\n", count(Level::Ok)),
        }
    }

    fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.worst {
            Level::Ok => 0,
            Level::Fail => 1,
            Level::Warn => 2,
        })
    }
}
