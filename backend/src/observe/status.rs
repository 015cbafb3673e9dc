//! `/statusz`: identity, progress and failures, as JSON.

use std::{fs, time::SystemTime};

use proto::model::ServicePortFailure;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Observer, rfc3339};
use crate::{Progress, progress::KernelProgress};

impl Observer {
    /// The page. Fields that are unknown, and errors that do not exist, are left out.
    pub(super) fn status(&self) -> String {
        let identity = &self.identity;
        let uptime = SystemTime::now().duration_since(identity.started).unwrap_or_default();
        let kernel_release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();

        let progress = self.progress.borrow().clone();
        let Progress { stream, node, losses, changes, kernel, .. } = &progress;
        let seconds_since = |time: Instant| time.elapsed().as_secs_f64();

        let fields = [
            ("node", json!(identity.node)),
            ("backend", json!(identity.backend)),
            ("version", json!(identity.version)),
            ("kernel", json!(kernel_release.trim())),
            ("started", json!(rfc3339(identity.started))),
            ("uptimeSeconds", json!(uptime.as_secs())),
            ("connected", json!(stream.connected)),
            // Since the last message from a frontend.
            ("stalenessSeconds", json!(stream.last_contact.map(seconds_since))),
            ("nodeEligible", json!(node.eligible)),
            ("epoch", json!(progress.committed.map(|(epoch, _)| epoch.to_string()))),
            ("committedRevision", json!(progress.committed.map(|(_, revision)| revision.0))),
            ("programmedRevision", json!(progress.programmed.map(|(_, revision)| revision.0))),
            ("servicePorts", json!(progress.service_ports)),
            ("unfinished", json!(kernel.unfinished)),
            // Since the kernel was last equal to the committed state.
            ("pendingSeconds", json!(changes.pending_since.map(seconds_since))),
            // Why the last sync failed as a whole.
            ("error", json!(kernel.error)),
            ("unusableFamilies", unusable_families(kernel)),
            // Why a restart would begin with an earlier state, or none.
            ("stateFileError", json!(progress.state_file_error)),
            ("failures", progress.failures.iter().map(failure).collect()),
            ("drifts", json!(kernel.drifts)),
            ("rejectedLosses", json!(losses.rejected)),
            ("withheldServicePorts", json!(losses.withheld_service_ports)),
            ("unconfirmedServicePorts", json!(losses.unconfirmed_service_ports)),
            ("nodeObjectMissing", json!(node.is_retained)),
            ("digestMismatches", json!(progress.protocol.digest_mismatches)),
            ("rejectedOperations", json!(progress.protocol.rejected_operations)),
            ("rollbacks", json!(progress.protocol.rollbacks)),
            ("deletedUdpFlows", json!(progress.flows.deleted_udp)),
            ("resetConnections", json!(progress.flows.reset_connections)),
            ("lockWaitSeconds", json!(kernel.lock_wait.as_secs_f64())),
        ];

        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        let page: Map<_, _> = fields.map(|(name, value)| (name.to_owned(), value)).collect();
        format!("{:#}\n", Value::Object(page))
    }
}

fn failure(ServicePortFailure { key, reason, .. }: &ServicePortFailure) -> Value {
    json!({"servicePort": key.to_string(), "reason": reason})
}

/// By family, why it cannot be programmed; null if both can.
fn unusable_families(kernel: &KernelProgress) -> Value {
    if kernel.unusable_families.is_empty() {
        return Value::Null;
    }
    kernel.unusable_families.iter().map(|(family, reason)| (family.name(), json!(reason))).collect()
}
