//! What was found: how grave it is, why it matters, and what to do.

use std::fmt;

use serde::Serialize;

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Level {
    Ok,
    /// It may surprise.
    Warn,
    /// Something will not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// A word to look for: `kernel`, `ports`.
    pub(crate) check: &'static str,
    /// What is so.
    pub(crate) what: String,
    /// Why that matters; empty when all is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) why: &'static str,
    /// What to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) fix: String,
}

// === impl Finding ===

impl Finding {
    pub(crate) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, what: what.into(), why: "", fix: String::new() }
    }

    pub(crate) fn warn(
        check: &'static str,
        what: impl Into<String>,
        why: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warn, check, what: what.into(), why, fix: fix.into() }
    }

    pub(crate) fn fail(
        check: &'static str,
        what: impl Into<String>,
        why: &'static str,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Fail, ..Self::warn(check, what, why, fix) }
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
