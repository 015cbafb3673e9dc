//! The Events on a Node, when its backend starts and when something does not work there: the same from each replica
//! that the backend connects to. Pure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use proto::model::{Hello, Role};

use super::series::hash;

/// The namespace of Events of cluster-scoped objects.
pub(super) const NODE_NAMESPACE: &str = "default";
/// Runs that began earlier get no Event: the backend has only reconnected. Shorter than Kubernetes keeps Events, so
/// that an existing one is found; longer than a backend may need to find a frontend, and than clocks differ.
const RECENT: Duration = Duration::from_secs(600);
/// The most characters of the name and version of a backend.
const BACKEND_CHARS: usize = 128;
/// The most characters of a Node's name in that of the Event, which may have 253 bytes with the hash.
const NAME_CHARS: usize = 230;

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

    /// `NODE.HASH`: the same for each session of the run, with any replica.
    fn name(&self) -> String {
        let micros = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        event_name(&self.node, &micros.to_string())
    }

    /// The Event to create, like that of kube-proxy.
    pub(super) fn event(&self) -> Event {
        let Self { node, at, backend } = self;
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(NODE_NAMESPACE.to_owned()),
                ..Default::default()
            },
            // The client may send any time; one out of range is replaced.
            event_time: Some(MicroTime(Timestamp::try_from(*at).unwrap_or_else(|_| Timestamp::now()))),
            type_: Some("Normal".to_owned()),
            reason: Some("Starting".to_owned()),
            action: Some("Start".to_owned()),
            note: Some(format!("Starting fairlead backend {backend}")),
            regarding: Some(reference(node)),
            ..Default::default()
        }
    }
}

// === impl DegradedNode ===

impl DegradedNode {
    /// The Event to create: one for each Node, so that a node cannot create any number of them.
    pub(super) fn event(&self, now: Timestamp) -> Event {
        let Self { node, text } = self;
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(node, "degraded")),
                namespace: Some(NODE_NAMESPACE.to_owned()),
                ..Default::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some("Warning".to_owned()),
            reason: Some("Degraded".to_owned()),
            action: Some("Program".to_owned()),
            note: Some(text.clone()),
            regarding: Some(reference(node)),
            ..Default::default()
        }
    }
}

/// `NODE.HASH`.
fn event_name(node: &str, content: &str) -> String {
    let name: String = node.chars().take(NAME_CHARS).collect();
    format!("{}.{}", name.trim_end_matches(['.', '-']), hash(&format!("{node}\n{content}")))
}

fn reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        // The name in place of the UID, as the kubelet does: `kubectl describe node` shows both.
        uid: Some(node.to_owned()),
        ..Default::default()
    }
}
