//! What a backend would write, for people to read: its own reconcile, over a kernel that is only read.

use std::{fmt, future::Future};

use anyhow::Result;
use proto::model::{ServicePortFailure, ServicePortKey};
use serde::Serialize;

use crate::{Drift, NodeState};

/// A backend that writes nothing, and says what it would write.
pub trait Preview: Send + 'static {
    /// What the backend is called on the wire and in logs: `nft`, `iptables`, `ipvs`.
    const NAME: &'static str;

    /// Compares `state` with what the kernel holds.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn preview(&mut self, state: &NodeState) -> impl Future<Output = Result<Previewed>> + Send;

    /// As [`Backend::drifted`](crate::Backend::drifted): returns when the kernel may hold something else than at the last look.
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send;
}

/// How the kernel is not what it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previewed {
    /// What would be written; empty when the kernel holds the right thing.
    pub differences: Vec<Difference>,
    /// The service ports that could not be programmed whatever is written.
    pub failures: Vec<ServicePortFailure>,
}

/// One thing that would be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What would become of it.
    pub verb: Verb,
    /// Which part of the kernel, by the name of the program or subsystem that shows it: `table ip fairlead`, `ipset`.
    pub place: String,
    /// What it is.
    pub what: String,
    /// Whose it is, where it is known to be one service port's.
    pub service: Option<ServicePortKey>,
}

/// What would become of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// It is not there, and would be.
    Add,
    /// It is there, and would be otherwise.
    Change,
    /// It is there, and would be no more.
    Remove,
}

impl Difference {
    /// Of no service port in particular.
    #[must_use]
    pub fn new(verb: Verb, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { verb, place: place.into(), what: what.into(), service: None }
    }

    /// On behalf of a service port.
    #[must_use]
    pub fn of(self, service: Option<&ServicePortKey>) -> Self {
        Self { service: service.cloned(), ..self }
    }
}

impl fmt::Display for Verb {
    /// As `diff` marks lines: `+`, `~`, `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Change => "~",
            Self::Remove => "-",
        })
    }
}
