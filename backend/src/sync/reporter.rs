//! What the loop reports: progress, metrics and log lines.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::model::{IpFamily, NodeInfo, ServicePortFailure};
use runtime::{
    ReadyGuard,
    failure::{Recovery, Repeated},
};
use tokio::{sync::watch, time::Instant};
use tracing::{debug, error, info, warn};

use super::EndedCall;
use crate::{
    ChangeCounts, Changes, Loss, NodeState, Progress, SyncReport,
    backend::Work,
    metrics::{Metrics, NoLocal},
    pending::Pending,
    replica::Replica,
};

/// Publishes [`Progress`] and counts [`Metrics`].
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(super) progress: watch::Sender<Progress>,
    pub(super) metrics: Arc<Metrics>,
    no_local: NoLocal,
    /// Released when the kernel contains a state for the first time.
    ready: Option<ReadyGuard>,
    sync_failures: Repeated,
    /// The calls of the backend since everything was programmed.
    unfinished: UnfinishedCalls,
}

/// Calls of the backend that together program one change or state, for one log line.
#[derive(Debug, Default)]
struct UnfinishedCalls {
    is_reconcile: bool,
    service_ports: usize,
    writes: usize,
    took: Duration,
    lock_wait: Duration,
}

impl Reporter {
    pub(crate) fn new(progress: watch::Sender<Progress>, metrics: Arc<Metrics>, ready: Option<ReadyGuard>) -> Self {
        Self {
            progress,
            metrics,
            no_local: NoLocal::default(),
            ready,
            sync_failures: Repeated::default(),
            unfinished: UnfinishedCalls::default(),
        }
    }

    /// The loop runs. Does not wake the receivers.
    pub(super) fn iterated(&self) {
        self.progress.send_if_modified(|progress| {
            progress.last_iteration = Some(Instant::now());
            false
        });
    }

    pub(super) fn received(&self, at: Instant, replica: &Replica) {
        self.progress.send_modify(|progress| {
            progress.last_contact = Some(at);
            progress.committed = replica.committed();
            progress.protocol = replica.counters;
        });
    }

    pub(super) fn committed(&self, state: &NodeState, changes: &Changes, counts: ChangeCounts, at: Instant) {
        self.progress.send_modify(|progress| {
            let retained = std::mem::replace(&mut progress.retains_node, state.retains_node());
            let NodeInfo { name: node, addresses, pod_cidrs, .. } = state.node();
            match (retained, progress.retains_node) {
                (false, true) => {
                    let text = "the Node object is gone, its last addresses and pod CIDRs are used";
                    warn!(%node, ?addresses, ?pod_cidrs, "{text}");
                }
                (true, false) => info!(%node, "the Node object exists again"),
                _ => {}
            }
            progress.eligible = state.node().eligible;
            progress.service_ports = state.service_ports().len();
            progress.received += counts;
            if !changes.is_empty() {
                progress.pending += counts;
                progress.pending_since.get_or_insert(at);
                progress.last_queued = Some(SystemTime::now());
            }
        });
    }

    pub(super) fn failures(&self, pending: &Pending) {
        self.progress.send_modify(|progress| progress.failures = pending.failures());
    }

    /// The losses that are withheld after a commit; `loss` is one that begins to be.
    pub(super) fn withheld(&self, replica: &Replica, loss: Option<Loss>) {
        let service_ports = replica.withheld_service_ports();
        let unconfirmed = replica.unconfirmed_service_ports();
        if let Some(loss) = loss {
            error!(
                service_ports,
                "withholding a loss that exceeds --max-loss: {loss}; these service ports keep their endpoints until a \
                 snapshot confirms the loss, everything else is applied"
            );
        }
        self.progress.send_if_modified(|progress| {
            progress.rejected_losses += u64::from(loss.is_some());
            progress.unconfirmed_service_ports = unconfirmed;
            std::mem::replace(&mut progress.withheld_service_ports, service_ports) != service_ports || loss.is_some()
        });
    }

    /// Why the state file is out of date.
    pub(super) fn state_file(&self, error: Option<&str>) {
        self.progress.send_if_modified(|progress| {
            let differs = progress.state_file_error.as_deref() != error;
            if differs {
                progress.state_file_error = error.map(str::to_owned);
            }
            differs
        });
    }

    pub(super) fn succeeded(&mut self, backend: &str, replica: &Replica, report: &SyncReport, call: &EndedCall) {
        let SyncReport { writes, lock_wait, unfinished, unusable_families, failures: _ } = report;
        let EndedCall { completed: work, took, at } = call;
        let state = replica.state();
        let committed = replica.committed();
        if let Some(Recovery { count, duration }) = self.sync_failures.recovered() {
            info!(backend, failures = count, after_ms = duration.as_millis(), "kernel programmed again");
        }
        let revision = committed.map(|(_, revision)| revision.0);
        let calls = &mut self.unfinished;
        calls.writes += writes;
        calls.took += *took;
        calls.lock_wait += *lock_wait;
        match work {
            Work::Reconcile => {
                calls.is_reconcile = true;
                calls.service_ports = state.service_ports().len();
            }
            Work::Apply(_) if calls.is_reconcile => {}
            Work::Apply(changes) => calls.service_ports += changes.service_ports.len(),
        }
        if let Some(unfinished) = unfinished {
            debug!(revision, unfinished = unfinished.len(), writes, took_ms = milliseconds(*took), "partly programmed");
        } else {
            let UnfinishedCalls { is_reconcile, service_ports, writes, took, lock_wait } = std::mem::take(calls);
            let took_ms = milliseconds(took);
            let lock_wait_ms = (!lock_wait.is_zero()).then(|| milliseconds(lock_wait));
            let event = if is_reconcile { "reconciled" } else { "applied" };
            info!(revision, service_ports, writes, took_ms, lock_wait_ms, "{event}");
        }
        self.metrics.synced(work, *took, *writes);
        log_unusable_families(&self.progress.borrow().unusable_families, unusable_families);
        let no_local = self.no_local.update(state, work);
        let is_programmed = unfinished.as_ref().is_none_or(BTreeSet::is_empty);
        self.progress.send_modify(|progress| {
            progress.error = None;
            progress.lock_wait += *lock_wait;
            progress.no_local = no_local;
            progress.unusable_families.clone_from(unusable_families);
            progress.unfinished = unfinished.as_ref().map_or(0, BTreeSet::len);
            progress.last_success = Some(*at);
            if is_programmed {
                progress.programmed = committed;
                progress.pending = ChangeCounts::default();
                progress.pending_since = None;
            } else {
                // Each transaction is progress.
                progress.pending_since = Some(Instant::now());
            }
        });
        if is_programmed {
            self.ready = None;
        }
    }

    pub(super) fn failed(&mut self, backend: &str, work: &Work, error: &anyhow::Error, retry_in: Duration) {
        self.metrics.failed(work);
        self.unfinished = UnfinishedCalls::default();
        let error = format!("{error:#}");
        let retry_in_ms = retry_in.as_millis();
        if self.sync_failures.failed(&error).is_news() {
            error!(backend, error, retry_in_ms, "cannot program the kernel, retrying");
        } else {
            debug!(backend, error, retry_in_ms, "still cannot program the kernel");
        }
        self.progress.send_modify(|progress| progress.error = Some(error));
    }
}

/// The most service ports that one change of the failures logs.
const MAX_LOGGED: usize = 8;

pub(super) fn log_failures(failures: &[ServicePortFailure]) {
    for ServicePortFailure { key, reason, retryable, kind: _ } in failures.iter().take(MAX_LOGGED) {
        warn!(service_port = %key, reason, retryable, "service port not programmed");
    }
    match failures.len() {
        0 => info!("all service ports are programmed again"),
        count if count > MAX_LOGGED => warn!(count, logged = MAX_LOGGED, "many service ports are not programmed"),
        _ => {}
    }
}

/// Logs which families cannot be programmed any more, or again.
fn log_unusable_families(before: &[(IpFamily, String)], now: &[(IpFamily, String)]) {
    for (family, error) in now.iter().filter(|unusable| !before.contains(unusable)) {
        warn!(%family, error, "cannot program an IP family, its VIPs are not served; the other one is programmed");
    }
    let is_usable = |family: &IpFamily| now.iter().all(|(of, _)| of != family);
    for (family, _) in before.iter().filter(|(family, _)| is_usable(family)) {
        info!(%family, "IP family programmed again");
    }
}

/// What acks tell the frontend of these families.
pub(super) fn describe_unusable(families: &[(IpFamily, String)]) -> Vec<String> {
    families.iter().map(|(family, reason)| format!("{family} is not programmed: {reason}")).collect()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
