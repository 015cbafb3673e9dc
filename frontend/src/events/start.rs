//! What is told when an agent starts: an Event on its Node, the same one from every replica that the agent connects to. Pure.

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

use super::series::{CONTROLLER, hash};

/// Where Kubernetes wants the Events of objects that are in no namespace.
pub(super) const NAMESPACE: &str = "default";
/// A run that began longer ago is not told of: its agent only connects again. Shorter than Kubernetes keeps Events, so what was told once
/// is still there and is not made again; longer than an agent may take to find a frontend, and than clocks are wrong.
const RECENT: Duration = Duration::from_secs(600);
/// How many characters are told of what a client calls itself.
const WORDS: usize = 128;
/// How much of a Node's name is in that of the Event, which may have 253 bytes with the hash.
const NAME: usize = 230;

/// An agent's run has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendStart {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// Since when the run lasts, as the agent says.
    pub(crate) at: SystemTime,
    /// Which backend it is, and its version.
    pub(crate) backend: String,
}

impl BackendStart {
    /// When an agent says since when it runs; not all do.
    pub(crate) fn of(hello: &Hello) -> Option<Self> {
        let Hello { node, role, backend, backend_version, started, .. } = hello;
        let at = started.filter(|_| *role == Role::Backend)?;
        let backend = format!("{backend} {backend_version}").chars().take(WORDS).collect();
        Some(Self { node: node.clone(), at, backend })
    }

    /// Whether this is news.
    pub(super) fn is_recent(&self) -> bool {
        // A clock that is ahead of ours says: just now.
        self.at.elapsed().unwrap_or_default() < RECENT
    }

    /// `NODE.HASH`: the same for each session of the run, with whichever replica.
    pub(super) fn name(&self) -> String {
        let micros = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let name: String = self.node.chars().take(NAME).collect();
        format!("{}.{}", name.trim_end_matches(['.', '-']), hash(&format!("{}\n{micros}", self.node)))
    }

    /// As it is made, like kube-proxy's.
    pub(super) fn event(&self, instance: &str) -> Event {
        let Self { node, at, backend } = self;
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(NAMESPACE.to_owned()),
                ..Default::default()
            },
            // A time that cannot be written down is that of a liar.
            event_time: Some(MicroTime(Timestamp::try_from(*at).unwrap_or_else(|_| Timestamp::now()))),
            type_: Some("Normal".to_owned()),
            reason: Some("Starting".to_owned()),
            action: Some("Start".to_owned()),
            note: Some(format!("Starting fairlead backend {backend}")),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_string()),
                // The name and not the UID, as the kubelet does: it is known here, and `kubectl describe node` looks for both.
                uid: Some(node.to_string()),
                ..Default::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            ..Default::default()
        }
    }
}
