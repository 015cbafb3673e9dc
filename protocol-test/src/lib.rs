//! Plays a frontend to a backend that somebody else wrote, in whatever language, and says what it does wrong.
//!
//! ```text
//!   scenarios ──▶ script: what a frontend says, what a client may answer ──▶ server ──gRPC──▶ the backend
//!                   │ ▲                                                                          ▲
//!                   │ └── state: what was committed, with its digests                            │
//!                   └───▶ subject: starts and ends the backend, asks what it holds ──────────────┘
//! ```
//!
//! The rules are those of `docs/protocol.md`, and each scenario names the one that it is about. Nothing here is shared with the agent or
//! the frontend but the contract itself.

mod report;
mod samples;
mod scenarios;
mod script;
mod server;
mod state;
mod subject;
#[cfg(test)]
mod tests;
mod wire;

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, timeout};

pub use self::{
    report::{ScenarioResult, TestReport, Verdict},
    scenarios::{SCENARIOS, Scenario},
    server::Server,
};
use self::{
    script::{Script, Stop},
    subject::Subject,
};

/// The longest that a scenario may take, whatever happens in it. None waits for more than a few things, each for as long as patience lasts.
const SCENARIO_LIMIT: Duration = Duration::from_secs(240);

/// What is tried, and how.
#[derive(Clone, Debug)]
pub struct TestOptions {
    /// The name of the node that the backend must say.
    pub node: Arc<str>,
    /// The names of the scenarios to play; empty: all.
    pub scenarios: Vec<String>,
    /// How long an answer may take.
    pub patience: Duration,
    /// The program of the backend with its arguments, in which `{address}` and `{node}` are replaced; empty: somebody else starts it.
    pub command: Vec<String>,
    /// A command for the shell that prints what the backend has programmed.
    pub state_command: Option<String>,
    /// Where the output of the backend goes.
    pub log: Option<std::path::PathBuf>,
}

/// Plays the scenarios one after the other, and tells `told` of each as it ends.
///
/// # Errors
/// When a scenario is unknown, or the backend cannot be started.
pub async fn run(
    mut server: Server,
    options: TestOptions,
    mut told: impl FnMut(&ScenarioResult),
) -> Result<TestReport> {
    let TestOptions { node, scenarios: names, patience, command, state_command, log } = options;
    let wanted = chosen(&names)?;
    let mut subject = Subject::new(command, state_command, log, &server.address(), &node);
    let mut report = TestReport::default();
    for scenario in wanted {
        let begun = Instant::now();
        subject.start()?;
        let script = Script::new(&mut server, &mut subject, node.clone(), patience);
        let played = match timeout(SCENARIO_LIMIT, script.play(scenario)).await {
            Ok(played) => played,
            Err(_) => Err(Stop::Broken(format!("not over after {SCENARIO_LIMIT:?}"))),
        };
        subject.stop().await;
        let outcome = ScenarioResult::new(scenario, played, begun.elapsed());
        told(&outcome);
        report.outcomes.push(outcome);
    }
    Ok(report)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if let Some(unknown) = names.iter().find(|name| SCENARIOS.iter().all(|scenario| scenario.name != **name)) {
        bail!("there is no scenario {unknown:?}; --list shows all");
    }
    let is_wanted = |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    Ok(SCENARIOS.iter().filter(is_wanted).collect())
}
