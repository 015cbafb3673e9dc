//! The Events on a Node, when its backend starts and when something does not work there: the same from each replica
//! that the backend connects to. Pure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use proto::model::{Hello, Role};

use super::event::EventParts;
use crate::object::{ObjectKind, ObjectName};

/// Runs that began earlier get no Event: the backend has only reconnected. Shorter than Kubernetes keeps Events, so
/// that an existing one is found; longer than a backend may need to find a frontend, and than clocks differ.
const RECENT: Duration = Duration::from_secs(600);
/// The most characters of the name and version of a backend.
const BACKEND_CHARS: usize = 128;

/// Something that does not work on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DegradedNode {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// What, and why.
    pub(crate) text: String,
}

/// The start of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendStart {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// When it started, by the clock of its node.
    pub(crate) at: SystemTime,
    /// Name and version.
    pub(crate) backend: String,
}

impl BackendStart {
    /// `None` if the Hello is not from a backend, or has no start time.
    pub(crate) fn of(hello: &Hello) -> Option<Self> {
        let Hello { node, role, backend, backend_version, started, .. } = hello;
        let at = started.filter(|_| *role == Role::Backend)?;
        let backend = format!("{backend} {backend_version}").chars().take(BACKEND_CHARS).collect();
        Some(Self { node: node.clone(), at, backend })
    }

    /// Whether an Event is created.
    pub(super) fn is_recent(&self) -> bool {
        // A time in the future, of a clock that is ahead, counts as now.
        self.at.elapsed().unwrap_or_default() < RECENT
    }

    /// The Event to create, like that of kube-proxy: the same for each session of the run, with any replica.
    pub(super) fn event(&self) -> Event {
        let Self { node, at, backend } = self;
        let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        EventParts {
            kind: ObjectKind::Node,
            name: ObjectName::new("", node.clone()),
            identity: format!("{node}\n{micros}"),
            // The client may send any time; one out of range is replaced.
            time: Timestamp::try_from(*at).unwrap_or_else(|_| Timestamp::now()),
            r#type: "Normal",
            reason: "Starting",
            action: "Start",
            note: format!("Starting fairlead backend {backend}"),
        }
        .into()
    }
}

impl DegradedNode {
    /// The Event to create: one for each Node, so that a node cannot create any number of them.
    pub(super) fn event(&self, time: Timestamp) -> Event {
        let Self { node, text } = self;
        EventParts {
            kind: ObjectKind::Node,
            name: ObjectName::new("", node.clone()),
            identity: format!("{node}\ndegraded"),
            time,
            r#type: "Warning",
            reason: "Degraded",
            action: "Program",
            note: text.clone(),
        }
        .into()
    }
}
