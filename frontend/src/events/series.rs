//! What is told about one reason: the same words on every replica, and how often it was reported here. Pure.

use std::sync::Arc;

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use proto::model::{FailureKind, ServicePortFailure, ServicePortKey};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

/// What writes these, as Kubernetes asks for: `reportingController`.
pub(super) const CONTROLLER: &str = "fairlead.io/frontend";
/// How much of a reason is told; a note may have 1024 bytes.
const REASON: usize = 512;
/// A series that is told already is told again, with its new count, no sooner than this.
const AGAIN: Duration = Duration::from_secs(60);

/// What tells one series from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) port: ServicePortKey,
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

/// Reports for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Series {
    first: Timestamp,
    last: Timestamp,
    count: u32,
    /// The one that was the first to report it.
    node: Arc<str>,
    told: Option<(Instant, u32)>,
    pub(super) heard: Instant,
}

impl Key {
    pub(super) fn of(failure: ServicePortFailure) -> Self {
        let ServicePortFailure { key: port, mut reason, kind, retryable: _ } = failure;
        let end = (0..=REASON).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or_default();
        reason.truncate(end);
        Self { port, reason, kind }
    }

    /// `SERVICE.HASH`: the same wherever it is computed.
    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.port.name, hash(&format!("{}\n{}", self.port, self.reason)))
    }

    /// What happens, what was tried, and what is told to people.
    fn words(&self, node: &str) -> (&'static str, &'static str, String) {
        let Self { port, reason, kind } = self;
        match kind {
            FailureKind::Program => {
                let note = format!("{port} is not programmed, first on node {node}: {reason}");
                ("FailedToProgram", "Program", note)
            }
            FailureKind::HealthCheck => {
                // kube-proxy's reason; the port is the Service's, not that of one of its ports.
                let note = format!("{}/{}, first on node {node}: {reason}", port.namespace, port.name);
                ("FailedToStartServiceHealthcheck", "StartServiceHealthcheck", note)
            }
        }
    }
}

/// 16 letters for a text: the same wherever they are computed.
pub(super) fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl Series {
    pub(super) fn new(node: Arc<str>, now: Timestamp) -> Self {
        Self { first: now, last: now, count: 0, node, told: None, heard: Instant::now() }
    }

    /// One more report.
    pub(super) fn add(&mut self, now: Timestamp) {
        (self.last, self.heard) = (now, Instant::now());
        self.count += 1;
    }

    /// Whether there is something to tell, and it is time.
    pub(super) fn is_due(&self) -> bool {
        self.told.is_none_or(|(at, count)| count < self.count && at.elapsed() >= AGAIN)
    }

    pub(super) fn told(&mut self) {
        self.told = Some((Instant::now(), self.count));
    }

    /// As it is made.
    pub(super) fn event(&self, key: &Key, instance: &str) -> Event {
        let (port, (reason, action, note)) = (&key.port, key.words(&self.node));
        let namespace = Some(port.namespace.to_string());
        Event {
            metadata: ObjectMeta { name: Some(key.name()), namespace: namespace.clone(), ..Default::default() },
            event_time: Some(MicroTime(self.first)),
            type_: Some("Warning".to_owned()),
            reason: Some(reason.to_owned()),
            action: Some(action.to_owned()),
            note: Some(note),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace,
                name: Some(port.name.to_string()),
                ..Default::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            ..Default::default()
        }
    }

    /// What is said of one that is there already: it has happened again.
    pub(super) fn patch(&self) -> Value {
        // One that has happened once is no series.
        json!({"series": {"count": self.count.max(2), "lastObservedTime": MicroTime(self.last)}})
    }
}
