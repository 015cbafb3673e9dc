//! The metrics that are read from [`Progress`] at each scrape.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};
use proto::model::{Epoch, IpFamily, Revision};
use runtime::metrics::Writer;
use tokio::sync::watch;

use super::family_label;
use crate::{Observer, Progress, backend::BackendIdentity};

/// The metrics that kube-proxy has too.
#[derive(Debug)]
pub(super) struct KubeProxyCollector(pub(super) watch::Receiver<Progress>);

impl Collector for KubeProxyCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        let Progress { kernel, changes, .. } = self.0.borrow().clone();
        let of_each_family = |value: f64| IpFamily::ALL.map(|family| (family_label(family), value));
        let seconds = Some(Unit::Seconds);

        let text = "Unix time of the last successful sync; 0 before the first.";
        let at = unix_time(kernel.last_success);
        writer.labelled_gauge("sync_proxy_rules_last_timestamp", text, seconds.clone(), of_each_family(at))?;
        let text = "Unix time of the last commit that required a sync; 0 before the first.";
        let at = unix_time(changes.last_queued);
        writer.labelled_gauge("sync_proxy_rules_last_queued_timestamp", text, seconds, of_each_family(at))?;

        let text = "Service ports put or removed by the frontend and not programmed yet.";
        writer.gauge("sync_proxy_rules_service_changes_pending", text, None, changes.pending.service_ports as f64)?;
        let text = "Service ports put or removed by the frontend.";
        writer.counter("sync_proxy_rules_service_changes", text, changes.received.service_ports)?;
        let text = "Pools of endpoints changed by the frontend and not programmed yet.";
        writer.gauge("sync_proxy_rules_endpoint_changes_pending", text, None, changes.pending.pools as f64)?;
        let text = "Pools of endpoints changed by the frontend.";
        writer.counter("sync_proxy_rules_endpoint_changes", text, changes.received.pools)?;

        let counts = IpFamily::ALL.into_iter().flat_map(|family| {
            let label = |policy| [("traffic_policy", policy), ("ip_family", family.name())];
            let counts = kernel.no_local[family];
            [(label("internal"), counts.internal as f64), (label("external"), counts.external as f64)]
        });
        let text = "Service ports with traffic policy Local that have endpoints on other nodes only.";
        writer.labelled_gauge("sync_proxy_rules_no_local_endpoints_total", text, None, counts)
    }
}

/// The metrics that kube-proxy does not have.
impl Collector for Observer {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        let Self { identity, progress, .. } = self;
        let progress = progress.borrow().clone();
        process(&mut writer, identity)?;
        sync_state(&mut writer, &progress)?;
        anomalies(&mut writer, &progress)
    }
}

fn process(writer: &mut Writer<'_>, identity: &BackendIdentity) -> fmt::Result {
    let BackendIdentity { backend, version, started, .. } = identity;
    let labels = [("version", version.as_str()), ("backend", *backend)];
    let text = "Always 1; its labels are the version and the backend.";
    writer.labelled_gauge("info", text, None, [(labels, 1.0)])?;
    let text = "Unix time at which this process started.";
    writer.gauge("started_timestamp", text, Some(Unit::Seconds), unix_time(Some(*started)))
}

fn sync_state(writer: &mut Writer<'_>, progress: &Progress) -> fmt::Result {
    let Progress { stream, changes, kernel, .. } = progress;

    let text = "1 while there is a session with a frontend.";
    writer.gauge("connected", text, None, f64::from(stream.connected))?;
    if let Some(last_contact) = stream.last_contact {
        let text =
            "Time since the last message from a frontend; one arrives at least every 10 s. Absent before the first.";
        let staleness = last_contact.elapsed().as_secs_f64();
        writer.gauge("staleness", text, Some(Unit::Seconds), staleness)?;
    }
    let text = "1 once the kernel contains a state of this node: the stored one, or a first commit.";
    writer.gauge("ready", text, None, f64::from(progress.programmed.is_some()))?;
    let text =
        "Age of the oldest change that is not programmed, or of the last transaction of a large change; 0 without.";
    let pending = changes.pending_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
    writer.gauge("pending", text, Some(Unit::Seconds), pending)?;

    let revision = |of: Option<(Epoch, Revision)>| of.map_or(0.0, |(_, revision)| revision.0 as f64);
    let text = "The last committed revision, within the epoch of its frontend.";
    writer.gauge("committed_revision", text, None, revision(progress.committed))?;
    let text = "The revision that the kernel contains, except for failures.";
    writer.gauge("programmed_revision", text, None, revision(progress.programmed))?;
    let text = "Service ports of the committed state.";
    writer.gauge("service_ports", text, None, progress.service_ports as f64)?;

    let text = "Service ports that the kernel rejects, or whose health-check node port is not served.";
    writer.gauge("failures", text, None, progress.failures.len() as f64)?;
    let text = "Service ports of a large change that are committed, but not programmed yet.";
    writer.gauge("unfinished", text, None, kernel.unfinished as f64)?;
    let text = "1 while the kernel cannot program an IP family and the other one is programmed alone.";
    let unusable = |family| !kernel.is_usable(family);
    let samples = IpFamily::ALL.map(|family| (family_label(family), f64::from(unusable(family))));
    writer.labelled_gauge("unusable_family", text, None, samples)?;
    let text = "1 while the last sync has failed as a whole.";
    writer.gauge("failing", text, None, f64::from(kernel.error.is_some()))?;
    let text = "1 while the state file cannot be written; a restart then begins with an earlier state, or none.";
    writer.gauge("state_file_failing", text, None, f64::from(progress.state_file_error.is_some()))
}

/// Events that an operator may want to investigate.
fn anomalies(writer: &mut Writer<'_>, progress: &Progress) -> fmt::Result {
    let Progress { protocol, node, losses, kernel, flows, .. } = progress;

    let text = "Changes of our kernel objects by another process.";
    writer.counter("drifts", text, kernel.drifts)?;
    let text = "Time spent waiting for locks on the kernel's rules that other processes held.";
    writer.seconds_counter("lock_wait", text, kernel.lock_wait.as_secs_f64())?;

    let text = "Losses that exceed --max-loss and were withheld until a second snapshot confirmed or voided them.";
    writer.counter("rejected_losses", text, losses.rejected)?;
    let text = "Service ports that keep their endpoints until a snapshot confirms that they lost them.";
    writer.gauge("withheld_service_ports", text, None, losses.withheld_service_ports as f64)?;
    let text = "Service ports without endpoints on this node, which has restarted, until a frontend confirms them.";
    writer.gauge("unconfirmed_service_ports", text, None, losses.unconfirmed_service_ports as f64)?;
    let text = "1 while there is no Node object of this name, and its last facts are used.";
    writer.gauge("node_object_missing", text, None, f64::from(node.is_retained))?;

    let text =
        "Digests that differed from the frontend's; each is repaired, and is a bug of the frontend or of the backend.";
    writer.counter("digest_mismatches", text, protocol.digest_mismatches)?;
    let text = "Operations of the frontend that could not be applied.";
    writer.counter("rejected_operations", text, protocol.rejected_operations)?;
    let text = "Commits that reflect an older version of the cluster than the one before.";
    writer.counter("rollbacks", text, protocol.rollbacks)?;

    let text = "TCP connections to endpoints that are gone, which are reset.";
    writer.counter("connections_reset", text, flows.reset_connections)
}

fn unix_time(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}
