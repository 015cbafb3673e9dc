//! The results of the scenarios.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::{Scenario, frontend::Deviation};

/// Whether the backend passed a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The backend follows the protocol.
    Pass,
    /// The backend violates the protocol.
    Fail,
    /// The backend does not support an optional part of the protocol, or its contents cannot be compared.
    Skip,
}

/// The result of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioResult {
    /// The name of the scenario.
    pub scenario: &'static str,
    /// Whether the backend passed.
    pub verdict: Verdict,
    /// What the backend did.
    pub observed: String,
    /// What the protocol requires.
    pub rule: &'static str,
    /// The section of the protocol with the rule.
    pub link: String,
    /// The duration of the scenario in seconds.
    pub seconds: f64,
}

/// The results of all scenarios, in the order they were run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TestReport {
    /// One result per scenario.
    pub results: Vec<ScenarioResult>,
}

impl ScenarioResult {
    pub(crate) fn new(scenario: &Scenario, outcome: Result<String, Deviation>, duration: Duration) -> Self {
        let (verdict, observed) = match outcome {
            Ok(observed) => (Verdict::Pass, observed),
            Err(Deviation::Violation(observed)) => (Verdict::Fail, observed),
            Err(Deviation::Unsupported(observed)) => (Verdict::Skip, observed),
        };
        Self {
            scenario: scenario.name,
            verdict,
            observed,
            rule: scenario.rule,
            link: scenario.link(),
            seconds: duration.as_secs_f64(),
        }
    }
}

impl TestReport {
    /// The number of scenarios with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.results.iter().filter(|result| result.verdict == verdict).count()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Skip => "SKIP",
        })
    }
}
