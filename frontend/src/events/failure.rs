//! The Event for one reason of failures: the same on each replica, for all nodes together. Pure.

use std::sync::Arc;

use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use proto::model::{FailureKind, ServicePortFailure, ServicePortKey};
use tokio::time::Instant;

use super::event::EventParts;
use crate::object::{ObjectKind, ObjectName};

/// The most bytes of a reason; a note may have 1024.
const MAX_REASON_BYTES: usize = 512;

/// What does not work, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FailureKey {
    pub(super) port: ServicePortKey,
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

/// The first report of a failure.
#[derive(Debug)]
pub(super) struct FailureReport {
    time: Timestamp,
    pub(super) at: Instant,
    pub(super) node: Arc<str>,
    /// When to send its Event; `None`: it is sent.
    pub(super) send_at: Option<Instant>,
}

impl FailureKey {
    pub(super) fn of(failure: ServicePortFailure) -> Self {
        let ServicePortFailure { key: port, mut reason, kind, retryable: _ } = failure;
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        Self { port, reason, kind }
    }
}

impl FailureReport {
    pub(super) fn now(node: Arc<str>) -> Self {
        let now = Instant::now();
        Self { time: Timestamp::now(), at: now, node, send_at: Some(now) }
    }

    pub(super) fn event(&self, FailureKey { port, reason: why, kind }: &FailureKey) -> Event {
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
            time: self.time,
            r#type: "Warning",
            reason,
            action,
            note,
        }
        .into()
    }
}
