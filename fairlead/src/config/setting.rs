//! What a file says, field by field: what becomes of it, or why nothing does.

use std::fmt;

/// What one field says of one flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Where it is in the file, with dots between the names.
    pub(crate) field: String,
    /// The flag's long name, without dashes.
    pub(crate) flag: String,
    pub(crate) values: Values,
}

/// What a flag is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// It takes no value, and is given.
    Switch,
    One(String),
    /// It may be given several times, or takes a list.
    Many(Vec<String>),
}

/// A field that has no effect, or another one than in kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) field: String,
    /// Why, and what to do instead.
    pub(crate) reason: String,
}

/// A field that cannot be what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    pub(crate) field: String,
    pub(crate) reason: String,
}

/// All that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct Problems(pub(crate) Vec<Invalid>);

// === impl Setting ===

impl Setting {
    pub(crate) fn new(field: impl Into<String>, flag: impl Into<String>, values: Values) -> Self {
        Self { field: field.into(), flag: flag.into(), values }
    }

    /// As it is given on a command line.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let flag = &self.flag;
        match &self.values {
            Values::Switch => vec![format!("--{flag}")],
            Values::One(value) => vec![format!("--{flag}={value}")],
            Values::Many(values) => values.iter().map(|value| format!("--{flag}={value}")).collect(),
        }
    }
}

impl Warning {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

impl Invalid {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

// === Display ===

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&problems.join("; "))
    }
}
