//! A dry run of a backend: its reconcile over a kernel that is only read.

use std::{fmt, future::Future};

use anyhow::Result;
use proto::model::{ServicePortFailure, ServicePortKey};
use serde::Serialize;

use crate::{Drift, NodeState};

/// A backend that computes what it would write, and writes nothing.
pub trait Preview: Send + 'static {
    /// The name of the backend, as in [`Backend::NAME`](crate::Backend::NAME).
    const NAME: &'static str;

    /// Compares `state` with what the kernel contains.
    ///
    /// # Errors
    /// When the kernel could not be read.
    fn preview(&mut self, state: &NodeState) -> impl Future<Output = Result<PreviewReport>> + Send;

    /// Returns when the kernel may have changed since the last preview, like
    /// [`Backend::drifted`](crate::Backend::drifted).
    fn drifted(&mut self) -> impl Future<Output = Drift> + Send;
}

/// How the kernel differs from a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviewReport {
    /// What a reconcile would write; empty when the kernel is as desired.
    pub differences: Vec<Difference>,
    /// The service ports that could not be programmed.
    pub failures: Vec<ServicePortFailure>,
}

/// One object that a reconcile would write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What a reconcile would do to the object.
    pub kind: DifferenceKind,
    /// The kernel subsystem or the program that shows the object: `table ip fairlead`, `ipset`.
    pub subsystem: String,
    /// The object.
    pub object: String,
    /// The service port that the object belongs to, if it belongs to exactly one.
    pub service_port: Option<ServicePortKey>,
}

/// What a reconcile would do to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DifferenceKind {
    /// Add it.
    Add,
    /// Change it.
    Change,
    /// Remove it.
    Remove,
}

impl Difference {
    /// An object that belongs to no single service port.
    #[must_use]
    pub fn new(kind: DifferenceKind, subsystem: impl Into<String>, object: impl Into<String>) -> Self {
        Self { kind, subsystem: subsystem.into(), object: object.into(), service_port: None }
    }

    /// Assigns the object to a service port.
    #[must_use]
    pub fn of(self, service_port: Option<&ServicePortKey>) -> Self {
        Self { service_port: service_port.cloned(), ..self }
    }
}

impl fmt::Display for DifferenceKind {
    /// The marks of `diff`: `+`, `~`, `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Change => "~",
            Self::Remove => "-",
        })
    }
}
