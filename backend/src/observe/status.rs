//! `/statusz`: identity, progress and failures, as text or JSON.

use std::{fmt, time::SystemTime};

use serde::Serialize;
use tokio::time::Instant;

use super::{Observer, rfc3339};

/// The content of the page.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusPage {
    node: String,
    backend: &'static str,
    version: String,
    kernel: String,
    started: String,
    uptime_seconds: u64,
    connected: bool,
    /// Since the last message from a frontend.
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness_seconds: Option<f64>,
    node_eligible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    programmed_revision: Option<u64>,
    service_ports: usize,
    /// Since the kernel was last equal to the committed state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_seconds: Option<f64>,
    /// Why the last sync failed as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    failures: Vec<FailedServicePort>,
    drifts: u64,
    rejected_losses: u64,
    digest_mismatches: u64,
    rejected_operations: u64,
    rollbacks: u64,
    deleted_udp_flows: u64,
    lock_wait_seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailedServicePort {
    service_port: String,
    reason: String,
}

impl Observer {
    pub(super) fn status(&self) -> StatusPage {
        let progress = self.progress.borrow().clone();
        let identity = &self.identity;
        let seconds_since = |time: Instant| (Instant::now() - time).as_secs_f64();
        let uptime = SystemTime::now().duration_since(identity.started).unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let failures = progress
            .failures
            .iter()
            .map(|failure| FailedServicePort { service_port: failure.key.to_string(), reason: failure.reason.clone() });
        StatusPage {
            node: identity.node.to_string(),
            backend: identity.backend,
            version: identity.version.clone(),
            kernel: kernel.trim().to_owned(),
            started: rfc3339(identity.started),
            uptime_seconds: uptime.as_secs(),
            connected: progress.connected,
            staleness_seconds: progress.last_contact.map(seconds_since),
            node_eligible: progress.eligible,
            epoch: progress.committed.map(|(epoch, _)| epoch.to_string()),
            committed_revision: progress.committed.map(|(_, revision)| revision.0),
            programmed_revision: progress.programmed.map(|(_, revision)| revision.0),
            service_ports: progress.service_ports,
            pending_seconds: progress.pending_since.map(seconds_since),
            error: progress.error.clone(),
            failures: failures.collect(),
            drifts: progress.drifts,
            rejected_losses: progress.rejected_losses,
            digest_mismatches: progress.digest_mismatches,
            rejected_operations: progress.rejected_operations,
            rollbacks: progress.rollbacks,
            deleted_udp_flows: progress.deleted_flows,
            lock_wait_seconds: progress.lock_wait.as_secs_f64(),
        }
    }
}

impl StatusPage {
    pub(super) fn to_json(&self) -> String {
        // Strings and numbers always serialize.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for StatusPage {
    /// One line for each field, with the names and the order of the JSON form; failures at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        for (name, value) in fields.as_object().into_iter().flatten() {
            match value {
                serde_json::Value::String(text) => writeln!(f, "{name}: {text}")?,
                serde_json::Value::Array(failures) => writeln!(f, "{name}: {}", failures.len())?,
                other => writeln!(f, "{name}: {other}")?,
            }
        }
        for FailedServicePort { service_port, reason } in &self.failures {
            writeln!(f, "  {service_port}: {reason}")?;
        }
        Ok(())
    }
}
