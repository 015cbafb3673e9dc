//! What is looked up when somebody asks, so that it costs nothing when nobody does.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};
use proto::model::IpFamily;
use runtime::metrics::Writer;
use tokio::{sync::watch, time::Instant};

use super::{family_label, family_name};
use crate::{Progress, observe::Identity};

/// By kube-proxy's names.
#[derive(Debug)]
pub(super) struct KubeProxy(pub(super) watch::Receiver<Progress>);

/// By our own.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) progress: watch::Receiver<Progress>,
    pub(super) identity: Arc<Identity>,
}

impl Collector for KubeProxy {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        let progress = self.0.borrow().clone();
        let Progress { received, pending, no_local, .. } = &progress;
        let each = |value: f64| IpFamily::ALL.map(|family| (family_label(family), value));
        let seconds = Some(Unit::Seconds);
        let text = "Unix time of the last change or comparison that succeeded; 0 before the first.";
        let at = unix(progress.last_success);
        writer.labelled_gauge("sync_proxy_rules_last_timestamp", text, seconds.clone(), each(at))?;
        let text = "Unix time at which something had to be done last; 0 before the first time.";
        let at = unix(progress.last_queued);
        writer.labelled_gauge("sync_proxy_rules_last_queued_timestamp", text, seconds, each(at))?;
        let text = "Service ports put or removed by the frontend that are not in the kernel yet.";
        writer.gauge("sync_proxy_rules_service_changes_pending", text, None, pending.service_ports as f64)?;
        let text = "Service ports put or removed by the frontend.";
        writer.counter("sync_proxy_rules_service_changes", text, received.service_ports)?;
        let text = "Changes of pools of endpoints by the frontend that are not in the kernel yet.";
        writer.gauge("sync_proxy_rules_endpoint_changes_pending", text, None, pending.endpoints as f64)?;
        let text = "Changes of pools of endpoints by the frontend.";
        writer.counter("sync_proxy_rules_endpoint_changes", text, received.endpoints)?;
        let counts = IpFamily::ALL.into_iter().flat_map(|family| {
            let label = |policy| [("traffic_policy", policy), ("ip_family", family_name(family))];
            let counts = no_local[family];
            [(label("internal"), counts.internal as f64), (label("external"), counts.external as f64)]
        });
        let text = "Service ports with traffic policy Local that have endpoints on other nodes only.";
        writer.labelled_gauge("sync_proxy_rules_no_local_endpoints_total", text, None, counts)
    }
}

impl Collector for Ours {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        let progress = self.progress.borrow().clone();
        self.standing(&mut writer, &progress)?;
        trouble(&mut writer, &progress)
    }
}

impl Ours {
    /// Who this is, and how far.
    fn standing(&self, writer: &mut Writer<'_>, progress: &Progress) -> fmt::Result {
        let Identity { backend, version, started, .. } = &*self.identity;
        let seconds = Some(Unit::Seconds);
        let labels = [("version", version.as_str()), ("backend", *backend)];
        writer.labelled_gauge(
            "info",
            "Always 1; its labels are the version and the backend.",
            None,
            [(labels, 1.0)],
        )?;
        let text = "Unix time at which this run began.";
        writer.gauge("started_timestamp", text, seconds.clone(), unix(Some(*started)))?;
        let text = "1 when the kernel holds a state of this node: the stored one, or a first commit.";
        writer.gauge("ready", text, None, one_if(progress.programmed.is_some()))?;
        let text = "1 when there is a session with a frontend.";
        writer.gauge("connected", text, None, one_if(progress.connected))?;
        if let Some(heard) = progress.last_contact {
            let text = "Since something was heard of a frontend; there is a bookmark every 10 s. Absent before the first time.";
            let staleness = (Instant::now() - heard).as_secs_f64();
            writer.gauge("staleness", text, seconds.clone(), staleness)?;
        }
        let text = "For how long something has not been in the kernel that should be; 0 when everything is.";
        let waiting = progress.pending_since.map_or(0.0, |since| (Instant::now() - since).as_secs_f64());
        writer.gauge("pending", text, seconds, waiting)?;
        let revision = |of: Option<_>| {
            of.map_or(0.0, |(_, revision): (proto::model::Epoch, proto::model::Revision)| revision.0 as f64)
        };
        let text = "The revision that was committed last, of whichever run of whichever frontend.";
        writer.gauge("revision", text, None, revision(progress.committed))?;
        let text = "The revision that is in the kernel, but for failures.";
        writer.gauge("revision_in_kernel", text, None, revision(progress.programmed))?;
        let text = "Service ports that this node is to serve.";
        writer.gauge("service_ports", text, None, progress.service_ports as f64)
    }
}

/// What goes wrong.
fn trouble(writer: &mut Writer<'_>, progress: &Progress) -> fmt::Result {
    let text = "Service ports that the kernel does not take, or whose health-check node port cannot be had; the others are in force.";
    writer.gauge("failures", text, None, progress.failures.len() as f64)?;
    let text = "1 when the last change or comparison failed as a whole.";
    writer.gauge("failing", text, None, one_if(progress.error.is_some()))?;
    let text = "Times that somebody else was seen to change what is programmed.";
    writer.counter("drifts", text, progress.drifts)?;
    let text = "Time spent waiting for others that change the kernel's rules.";
    writer.seconds_counter("lock_wait", text, progress.lock_wait.as_secs_f64())?;
    let text = "Changes that were held back because they take away too much, until a snapshot said the same.";
    writer.counter("held_back_losses", text, progress.held_back)?;
    let text = "Digests that were not as the frontend said; each is repaired, and each is a bug somewhere.";
    writer.counter("digest_mismatches", text, progress.digest_mismatches)?;
    let text = "Operations of the frontend that made no sense and were left out.";
    writer.counter("refused_operations", text, progress.refused_operations)?;
    let text = "Commits that reflect less of the cluster than what was held before.";
    writer.counter("set_backs", text, progress.backwards)?;
    let text = "Times that UDP flows could not be looked through; it is done again with the next change.";
    writer.counter("conntrack_failures", text, progress.failed_sweeps)
}

fn one_if(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

fn unix(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}
