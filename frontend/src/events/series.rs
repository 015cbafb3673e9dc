//! The Event for one reason of failures: the same on each replica, with the count of this one. Pure.

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

/// `reportingController`.
pub(super) const CONTROLLER: &str = "fairlead.io/frontend";
/// The most bytes of a reason; a note may have 1024.
const REASON_BYTES: usize = 512;
/// The shortest time between two patches of the count.
const PATCH_INTERVAL: Duration = Duration::from_secs(60);

/// Identifies a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SeriesKey {
    pub(super) port: ServicePortKey,
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

/// The reports for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventSeries {
    first: Timestamp,
    last: Timestamp,
    count: u32,
    /// The node that reported it first.
    pub(super) node: Arc<str>,
    /// When the Event was last sent, and its count.
    sent: Option<(Instant, u32)>,
    pub(super) last_report: Instant,
}

impl SeriesKey {
    pub(super) fn of(failure: ServicePortFailure) -> Self {
        let ServicePortFailure { key: port, mut reason, kind, retryable: _ } = failure;
        let end = (0..=REASON_BYTES).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or_default();
        reason.truncate(end);
        Self { port, reason, kind }
    }

    /// `SERVICE.HASH`: the same on each replica.
    fn name(&self) -> String {
        format!("{}.{}", self.port.name, hash(&format!("{}\n{}", self.port, self.reason)))
    }

    /// `reason`, `action` and `note` of the Event.
    fn describe(&self, node: &str) -> (&'static str, &'static str, String) {
        let Self { port, reason, kind } = self;
        match kind {
            FailureKind::Program => {
                let note = format!("{port} is not programmed, first on node {node}: {reason}");
                ("FailedToProgram", "Program", note)
            }
            FailureKind::HealthCheck => {
                // The reason is that of kube-proxy. A health check belongs to the Service, not to one of its ports.
                let note = format!("{}/{}, first on node {node}: {reason}", port.namespace, port.name);
                ("FailedToStartServiceHealthcheck", "StartServiceHealthcheck", note)
            }
        }
    }
}

/// 16 hexadecimal digits.
pub(super) fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl EventSeries {
    pub(super) fn new(node: Arc<str>, now: Timestamp) -> Self {
        Self { first: now, last: now, count: 0, node, sent: None, last_report: Instant::now() }
    }

    /// Counts a report.
    pub(super) fn add(&mut self, now: Timestamp) {
        self.last = now;
        self.last_report = Instant::now();
        self.count += 1;
    }

    /// Whether there are reports to send, and the last patch is long enough ago.
    pub(super) fn is_due(&self) -> bool {
        self.sent.is_none_or(|(at, count)| count < self.count && at.elapsed() >= PATCH_INTERVAL)
    }

    pub(super) fn mark_sent(&mut self) {
        self.sent = Some((Instant::now(), self.count));
    }

    /// The Event to create.
    pub(super) fn event(&self, key: &SeriesKey) -> Event {
        let port = &key.port;
        let (reason, action, note) = key.describe(&self.node);
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
            ..Default::default()
        }
    }

    /// The patch for an existing Event.
    pub(super) fn patch(&self) -> Value {
        // Kubernetes requires a count of at least 2.
        json!({"series": {"count": self.count.max(2), "lastObservedTime": MicroTime(self.last)}})
    }
}
