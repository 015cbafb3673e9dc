//! `/statusz`: identity, progress and failures, as text or JSON.

use std::{fmt, fs, time::SystemTime};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Observer, rfc3339};
use crate::Progress;

/// The content of the page: the names and values of its fields, in order.
#[derive(Debug)]
pub(super) struct StatusPage(Vec<(&'static str, Value)>);

impl Observer {
    pub(super) fn status(&self) -> StatusPage {
        let progress = self.progress.borrow().clone();
        let identity = &self.identity;
        let seconds_since = |time: Instant| time.elapsed().as_secs_f64();
        let uptime = SystemTime::now().duration_since(identity.started).unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let failures = progress.failures.iter();
        let failures =
            failures.map(|failure| json!({"servicePort": failure.key.to_string(), "reason": failure.reason}));
        let mut fields = vec![
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
        fields.retain(|(_, value)| !value.is_null());
        StatusPage(fields)
    }
}

/// By family, why it cannot be programmed; null if both can.
fn unusable_families(progress: &Progress) -> Value {
    if progress.unusable_families.is_empty() {
        return Value::Null;
    }
    progress.unusable_families.iter().map(|(family, reason)| (family.name(), json!(reason))).collect()
}

impl Serialize for StatusPage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl StatusPage {
    pub(super) fn to_json(&self) -> String {
        // Strings and numbers always serialize.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for StatusPage {
    /// One line for each field, as in the JSON form; failures at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.0 {
            match value {
                Value::String(text) => writeln!(f, "{name}: {text}")?,
                Value::Array(failures) => writeln!(f, "{name}: {}", failures.len())?,
                other => writeln!(f, "{name}: {other}")?,
            }
        }
        for failure in self.0.iter().filter_map(|(_, value)| value.as_array()).flatten() {
            let text = |name: &str| failure[name].as_str().unwrap_or_default();
            writeln!(f, "  {}: {}", text("servicePort"), text("reason"))?;
        }
        Ok(())
    }
}
