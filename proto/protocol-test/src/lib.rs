//! The protocol test: acts as a frontend to a backend in any language, and checks its messages against the protocol.
//!
//! ```text
//!   scenarios ──▶ frontend: sends messages, checks responses ──▶ server ──gRPC──▶ the backend under test
//!                   │ ▲                                                              ▲
//!                   │ └── state: what the backend must have committed                │
//!                   └───▶ backend_process: starts and stops it, reads what it has programmed
//! ```
//!
//! The rules are those of `docs/protocol.md`; each scenario names the one that it checks. To be independent of the code
//! under test, this crate shares only the `proto` crate with it.

mod backend_process;
mod drains;
mod frontend;
mod report;
mod samples;
mod scenarios;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod wire;

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, timeout};

use self::{
    backend_process::BackendProcess,
    frontend::{ScriptedFrontend, violation},
};
pub use self::{
    report::{ScenarioResult, TestReport, Verdict},
    scenarios::{SCENARIOS, Scenario},
    server::Server,
};

/// The maximum duration of a scenario. Each waits for only a few messages, and at most `patience` for each of them.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(240);

/// The backend under test, and how to test it.
#[derive(Clone, Debug)]
pub struct TestOptions {
    /// The node name that the backend must send.
    pub node: Arc<str>,
    /// The names of the scenarios to run; empty: all.
    pub scenarios: Vec<String>,
    /// How long to wait for a response.
    pub patience: Duration,
    /// The command of the backend, in which `{address}` and `{node}` are replaced; empty: the user starts it.
    pub command: Vec<String>,
    /// A shell command that prints what the backend has programmed.
    pub state_command: Option<String>,
    /// The file for the output of the backend.
    pub log: Option<std::path::PathBuf>,
}

/// Runs the scenarios one after the other, and passes each result to `on_result`.
///
/// # Errors
/// If a scenario is unknown, or the backend cannot be started.
pub async fn run(
    mut server: Server,
    options: TestOptions,
    mut on_result: impl FnMut(&ScenarioResult),
) -> Result<TestReport> {
    let TestOptions { node, scenarios: names, patience, command, state_command, log } = options;
    let scenarios = select(&names)?;
    let mut backend = BackendProcess::new(command, state_command, log, server.address(), &node);
    let mut report = TestReport::default();
    for scenario in scenarios {
        let started = Instant::now();
        backend.start()?;
        let frontend = ScriptedFrontend::new(&mut server, &mut backend, node.clone(), patience);
        let outcome = match timeout(SCENARIO_TIMEOUT, frontend.run(scenario)).await {
            Ok(outcome) => outcome,
            Err(_) => violation(format!("has not finished the scenario within {SCENARIO_TIMEOUT:?}")),
        };
        backend.stop().await;

        let result = ScenarioResult::new(scenario, outcome, started.elapsed());
        on_result(&result);
        report.results.push(result);
    }
    Ok(report)
}

fn select(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if let Some(unknown) = names.iter().find(|name| SCENARIOS.iter().all(|scenario| scenario.name != **name)) {
        bail!("unknown scenario {unknown:?}: --list prints all");
    }
    let is_selected = |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    Ok(SCENARIOS.iter().filter(is_selected).collect())
}
