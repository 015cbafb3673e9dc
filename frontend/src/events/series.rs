//! The Event for one reason of failures: the same on each replica, with the count of this one. Pure.

use std::sync::Arc;

use k8s_openapi::{api::events::v1::Event, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use proto::model::{FailureKind, ServicePortFailure, ServicePortKey};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::event::EventParts;
use crate::object::{ObjectKind, ObjectName};

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
        reason.truncate(reason.floor_char_boundary(REASON_BYTES));
        Self { port, reason, kind }
    }
}

impl EventSeries {
    pub(super) fn new(node: Arc<str>, now: Timestamp) -> Self {
        Self { first: now, last: now, count: 0, node, sent: None, last_report: Instant::now() }
    }

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

    pub(super) fn event(&self, SeriesKey { port, reason: why, kind }: &SeriesKey) -> Event {
        let node = &self.node;
        let (reason, action, note) = match kind {
            FailureKind::Program => {
                let note = format!("{port} is not programmed, first on node {node}: {why}");
                ("FailedToProgram", "Program", note)
            }
            FailureKind::HealthCheck => {
                // The reason is that of kube-proxy. A health check belongs to the Service, not to one of its ports.
                let note = format!("{}/{}, first on node {node}: {why}", port.namespace, port.name);
                ("FailedToStartServiceHealthcheck", "StartServiceHealthcheck", note)
            }
        };
        EventParts {
            kind: ObjectKind::Service,
            name: ObjectName::new(port.namespace.clone(), port.name.clone()),
            identity: format!("{port}\n{why}"),
            time: self.first,
            r#type: "Warning",
            reason,
            action,
            note,
        }
        .into()
    }

    /// The patch for an existing Event.
    pub(super) fn patch(&self) -> Value {
        // Kubernetes requires a count of at least 2.
        json!({"series": {"count": self.count.max(2), "lastObservedTime": MicroTime(self.last)}})
    }
}
