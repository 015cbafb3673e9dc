//! A finding of a check: its severity, why it matters, and how to fix it.

use std::fmt;

use serde::Serialize;

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
    /// The name of the check, such as `kernel` or `ports`.
    pub(crate) check: &'static str,
    /// What was observed.
    pub(crate) what: String,
    /// Why it matters; empty for [`Level::Ok`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) why: &'static str,
    /// How to fix it; empty for [`Level::Ok`].
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
