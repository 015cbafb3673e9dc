//! `/statusz`: identity, progress and failures, as JSON.

use std::{fs, time::SystemTime};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Observer, rfc3339};
use crate::Progress;

impl Observer {
    /// The page. What is not known, or not wrong, is left out.
    pub(super) fn status(&self) -> String {
        let progress = self.progress.borrow().clone();
        let identity = &self.identity;
        let seconds_since = |time: Instant| time.elapsed().as_secs_f64();
        let uptime = SystemTime::now().duration_since(identity.started).unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let failures = progress.failures.iter();
        let failures =
            failures.map(|failure| json!({"servicePort": failure.key.to_string(), "reason": failure.reason}));
        let fields = [
            ("node", json!(identity.node)),
            ("backend", json!(identity.backend)),
            ("version", json!(identity.version)),
            ("kernel", json!(kernel.trim())),
            ("started", json!(rfc3339(identity.started))),
            ("uptimeSeconds", json!(uptime.as_secs())),
            ("connected", json!(progress.connected)),
            // Since the last message from a frontend.
            ("stalenessSeconds", json!(progress.last_contact.map(seconds_since))),
            ("nodeEligible", json!(progress.eligible)),
            ("epoch", json!(progress.committed.map(|(epoch, _)| epoch.to_string()))),
            ("committedRevision", json!(progress.committed.map(|(_, revision)| revision.0))),
            ("programmedRevision", json!(progress.programmed.map(|(_, revision)| revision.0))),
            ("servicePorts", json!(progress.service_ports)),
            ("unfinished", json!(progress.unfinished)),
            // Since the kernel was last equal to the committed state.
            ("pendingSeconds", json!(progress.pending_since.map(seconds_since))),
            // Why the last sync failed as a whole.
            ("error", json!(progress.error)),
            ("unusableFamilies", unusable_families(&progress)),
            // Why a restart would begin with an earlier state, or none.
            ("stateFileError", json!(progress.state_file_error)),
            ("failures", failures.collect()),
            ("drifts", json!(progress.drifts)),
            ("rejectedLosses", json!(progress.rejected_losses)),
            ("withheldServicePorts", json!(progress.withheld_service_ports)),
            ("unconfirmedServicePorts", json!(progress.unconfirmed_service_ports)),
            ("nodeObjectMissing", json!(progress.retains_node)),
            ("digestMismatches", json!(progress.protocol.digest_mismatches)),
            ("rejectedOperations", json!(progress.protocol.rejected_operations)),
            ("rollbacks", json!(progress.protocol.rollbacks)),
            ("deletedUdpFlows", json!(progress.deleted_flows)),
            ("resetConnections", json!(progress.reset_connections)),
            ("lockWaitSeconds", json!(progress.lock_wait.as_secs_f64())),
        ];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        let page: Map<_, _> = fields.map(|(name, value)| (name.to_owned(), value)).collect();
        format!("{:#}\n", Value::Object(page))
    }
}

/// By family, why it cannot be programmed; null if both can.
fn unusable_families(progress: &Progress) -> Value {
    if progress.unusable_families.is_empty() {
        return Value::Null;
    }
    progress.unusable_families.iter().map(|(family, reason)| (family.name(), json!(reason))).collect()
}
