//! What came of the scenarios.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::{Scenario, script::Stop};

/// How a scenario ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The backend did what the protocol says.
    Pass,
    /// It did not.
    Fail,
    /// It is about something that a backend may leave out, and this one does.
    Skip,
}

/// One scenario that was played.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioResult {
    /// Its name.
    pub scenario: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What the backend did.
    pub seen: String,
    /// What the protocol says.
    pub rule: &'static str,
    /// Where it says so.
    pub link: String,
    /// How long it took.
    pub seconds: f64,
}

/// All of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TestReport {
    /// In the order in which they were played.
    pub outcomes: Vec<ScenarioResult>,
}

impl ScenarioResult {
    pub(crate) fn new(scenario: &Scenario, played: Result<String, Stop>, took: Duration) -> Self {
        let (verdict, seen) = match played {
            Ok(seen) => (Verdict::Pass, seen),
            Err(Stop::Broken(seen)) => (Verdict::Fail, seen),
            Err(Stop::Missing(seen)) => (Verdict::Skip, seen),
        };
        let seconds = took.as_secs_f64();
        Self { scenario: scenario.name, verdict, seen, rule: scenario.says, link: scenario.link(), seconds }
    }
}

impl TestReport {
    /// How many ended so.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.verdict == verdict).count()
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
