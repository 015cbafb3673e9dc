//! `/statusz`: who this is, how far it is, what is wrong, for people and for scripts.

use std::{fmt, time::SystemTime};

use serde::Serialize;
use tokio::time::Instant;

use super::{Observer, rfc3339};

/// What there is to say, in seconds where it is a time span.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    node: String,
    backend: &'static str,
    version: String,
    kernel: String,
    started: String,
    uptime_seconds: u64,
    connected: bool,
    /// Since something was heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness_seconds: Option<f64>,
    node_eligible: bool,
    /// The frontend's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision_in_kernel: Option<u64>,
    service_ports: usize,
    /// For how long something has not been in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_seconds: Option<f64>,
    /// Why nothing could be programmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    failures: Vec<Failure>,
    drifts: u64,
    held_back_losses: u64,
    digest_mismatches: u64,
    refused_operations: u64,
    set_backs: u64,
    deleted_udp_flows: u64,
    lock_wait_seconds: f64,
}

/// A service port that the kernel does not take.
#[derive(Debug, Serialize)]
struct Failure {
    service: String,
    reason: String,
}

impl Observer {
    pub(super) fn status(&self) -> Status {
        let progress = self.progress.borrow().clone();
        let identity = &self.identity;
        let ago = |time: Instant| (Instant::now() - time).as_secs_f64();
        let uptime = SystemTime::now().duration_since(identity.started).unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let failures = progress.failures.iter();
        let failures =
            failures.map(|failure| Failure { service: failure.key.to_string(), reason: failure.reason.clone() });
        Status {
            node: identity.node.to_string(),
            backend: identity.backend,
            version: identity.version.clone(),
            kernel: kernel.trim().to_owned(),
            started: rfc3339(identity.started),
            uptime_seconds: uptime.as_secs(),
            connected: progress.connected,
            staleness_seconds: progress.last_contact.map(ago),
            node_eligible: progress.eligible,
            epoch: progress.committed.map(|(epoch, _)| epoch.to_string()),
            revision: progress.committed.map(|(_, revision)| revision.0),
            revision_in_kernel: progress.programmed.map(|(_, revision)| revision.0),
            service_ports: progress.service_ports,
            pending_seconds: progress.pending_since.map(ago),
            error: progress.error.clone(),
            failures: failures.collect(),
            drifts: progress.drifts,
            held_back_losses: progress.held_back,
            digest_mismatches: progress.digest_mismatches,
            refused_operations: progress.refused_operations,
            set_backs: progress.backwards,
            deleted_udp_flows: progress.deleted_flows,
            lock_wait_seconds: progress.lock_wait.as_secs_f64(),
        }
    }
}

impl Status {
    pub(super) fn to_json(&self) -> String {
        // Strings and numbers are always JSON.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for Status {
    /// One line for each fact, by the names that it has in JSON, in their order; failures below.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        for (name, value) in facts.as_object().into_iter().flatten() {
            match value {
                serde_json::Value::String(text) => writeln!(f, "{name}: {text}")?,
                serde_json::Value::Array(failures) => writeln!(f, "{name}: {}", failures.len())?,
                other => writeln!(f, "{name}: {other}")?,
            }
        }
        for Failure { service, reason } in &self.failures {
            writeln!(f, "  {service}: {reason}")?;
        }
        Ok(())
    }
}
