//! Prometheus metrics: under kube-proxy's names where the meaning is the same, under our own otherwise.
//! `docs/metrics.md` lists every metric, and a test compares.
//!
//! ```text
//!   sync ──▶ Metrics: updated as events happen ──┐
//!                                                ├──▶ /metrics
//!   Progress ──────▶ scrape: read on request ────┘
//! ```

mod affinity;
mod registry;
mod scrape;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

use prometheus_client::metrics::{
    counter::Counter,
    family::Family as Labelled,
    histogram::{Histogram, exponential_buckets},
};
use proto::model::IpFamily;

use crate::backend::Work;

pub use affinity::{NFT_CLIENTS, NFT_TABLE};
pub(crate) use registry::registry;

pub(crate) type Label = [(&'static str, &'static str); 1];

/// The metrics that are updated as events happen.
#[derive(Debug)]
pub(crate) struct Metrics {
    syncs: Histogram,
    full: Histogram,
    partial: Histogram,
    programming: Histogram,
    propagation: Histogram,
    operations: Histogram,
    failures: Counter,
    partial_failures: Counter,
    pub(crate) repairs: Counter,
    conntrack_cleanups: Labelled<Label, Histogram>,
    deleted_flows: Labelled<Label, Counter>,
    pub(crate) healthz: Labelled<Label, Counter>,
    pub(crate) livez: Labelled<Label, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        // kube-proxy's buckets: 1 ms to 16 s.
        let sync = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        Self {
            syncs: sync(),
            full: sync(),
            partial: sync(),
            programming: Histogram::new(programming_buckets()),
            // 1 ms to 131 s.
            propagation: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
            // 1 to 262,144.
            operations: Histogram::new(exponential_buckets(1.0, 4.0, 10)),
            failures: Counter::default(),
            partial_failures: Counter::default(),
            repairs: Counter::default(),
            conntrack_cleanups: Labelled::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))),
            deleted_flows: Labelled::default(),
            healthz: Labelled::default(),
            livez: Labelled::default(),
        }
    }
}

impl Metrics {
    /// A sync has succeeded with this many kernel operations.
    pub(crate) fn synced(&self, work: Work, took: Duration, operations: usize) {
        self.syncs.observe(took.as_secs_f64());
        match work {
            Work::Reconcile => self.full.observe(took.as_secs_f64()),
            Work::Apply => self.partial.observe(took.as_secs_f64()),
        }
        self.operations.observe(operations as f64);
    }

    /// A sync has failed as a whole.
    pub(crate) fn failed(&self, work: Work) {
        self.failures.inc();
        if work == Work::Apply {
            self.partial_failures.inc();
        }
    }

    /// A change that was made in the cluster at this time is programmed.
    pub(crate) fn propagated(&self, trigger: SystemTime, now: SystemTime) {
        // Ignored if the clocks of the control plane and the node differ by more than the propagation took.
        if let Ok(took) = now.duration_since(trigger) {
            self.programming.observe(took.as_secs_f64());
            self.propagation.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn conntrack_cleanup(&self, family: IpFamily, took: Duration, deleted: usize) {
        let label = family_label(family);
        self.conntrack_cleanups.get_or_create(&label).observe(took.as_secs_f64());
        self.deleted_flows.get_or_create(&label).inc_by(deleted as u64);
    }

    pub(crate) fn answered(responses: &Labelled<Label, Counter>, healthy: bool) {
        responses.get_or_create(&code_label(healthy)).inc();
    }
}

/// kube-proxy's buckets, in seconds: fine up to a minute, coarse up to five.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let steps = |from: u32, to: u32, step: usize| (from..=to).step_by(step).map(f64::from);
    [0.25, 0.5].into_iter().chain(steps(1, 59, 1)).chain(steps(60, 115, 5)).chain(steps(120, 300, 30))
}

/// The label that kube-proxy uses for a family.
fn family_label(family: IpFamily) -> Label {
    [("ip_family", family.name())]
}

fn code_label(healthy: bool) -> Label {
    [("code", if healthy { "200" } else { "503" })]
}
