//! What an agent measures, for Prometheus: by kube-proxy's names what means the same, and by its own the rest. `docs/metrics.md` lists
//! every metric; a test compares.
//!
//! ```text
//!   sync ──▶ Metrics: what must be counted when it happens ──┐
//!                                                            ├──▶ /metrics
//!   Progress ──────▶ scrape: what is looked up when asked ───┘
//! ```

mod no_local;
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
use proto::model::{IpFamily, SyncMode};

use crate::pending::Work;

pub(crate) use no_local::NoLocal;
pub use no_local::NoLocalEndpoints;
pub(crate) use registry::registry;

/// One label with its value.
type Label = [(&'static str, &'static str); 1];

/// Which questions about health are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// `/healthz`
    Healthz,
    /// `/livez`
    Livez,
}

/// What is counted when it happens.
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
    sessions: Labelled<Label, Counter>,
    repairs: Counter,
    sweeps: Labelled<Label, Histogram>,
    deleted_flows: Labelled<Label, Counter>,
    healthz: Labelled<Label, Counter>,
    livez: Labelled<Label, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        // kube-proxy's: 1 ms to 16 s.
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
            sessions: Labelled::default(),
            repairs: Counter::default(),
            sweeps: Labelled::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))),
            deleted_flows: Labelled::default(),
            healthz: Labelled::default(),
            livez: Labelled::default(),
        }
    }
}

impl Metrics {
    /// The backend has done something, in so many operations.
    pub(crate) fn synced(&self, work: &Work, took: Duration, operations: usize) {
        self.syncs.observe(took.as_secs_f64());
        match work {
            Work::Reconcile => self.full.observe(took.as_secs_f64()),
            Work::Apply(_) => self.partial.observe(took.as_secs_f64()),
        }
        self.operations.observe(operations as f64);
    }

    /// The backend could not do it.
    pub(crate) fn failed(&self, work: &Work) {
        self.failures.inc();
        if matches!(work, Work::Apply(_)) {
            self.partial_failures.inc();
        }
    }

    /// A change that was made in the cluster at this time is in the kernel now.
    pub(crate) fn programmed(&self, trigger: SystemTime, now: SystemTime) {
        // Of two clocks that differ by more than this took nothing is learnt.
        if let Ok(took) = now.duration_since(trigger) {
            self.programming.observe(took.as_secs_f64());
            self.propagation.observe(took.as_secs_f64());
        }
    }

    /// A session with a frontend has begun.
    pub(crate) fn session(&self, mode: SyncMode) {
        self.sessions.get_or_create(&mode_label(mode)).inc();
    }

    /// Something that somebody else had changed was put right.
    pub(crate) fn repaired(&self) {
        self.repairs.inc();
    }

    /// Flows of a family were looked through, and so many deleted.
    pub(crate) fn swept(&self, family: IpFamily, took: Duration, deleted: usize) {
        let label = family_label(family);
        self.sweeps.get_or_create(&label).observe(took.as_secs_f64());
        self.deleted_flows.get_or_create(&label).inc_by(deleted as u64);
    }

    /// Somebody has asked for the health, and was told this.
    pub(crate) fn answered(&self, question: Question, healthy: bool) {
        let counters = match question {
            Question::Healthz => &self.healthz,
            Question::Livez => &self.livez,
        };
        counters.get_or_create(&code_label(healthy)).inc();
    }
}

/// kube-proxy's, in seconds: fine to a minute, coarse to five.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let steps = |from: u32, to: u32, step: usize| (from..=to).step_by(step).map(f64::from);
    [0.25, 0.5].into_iter().chain(steps(1, 59, 1)).chain(steps(60, 115, 5)).chain(steps(120, 300, 30))
}

/// A family by kube-proxy's name for it.
fn family_label(family: IpFamily) -> Label {
    [("ip_family", family_name(family))]
}

/// A family by the name that Kubernetes has for it.
pub(crate) fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

fn mode_label(mode: SyncMode) -> Label {
    let mode = match mode {
        SyncMode::Resume => "resume",
        SyncMode::Repair => "repair",
        SyncMode::Snapshot => "snapshot",
    };
    [("mode", mode)]
}

fn code_label(healthy: bool) -> Label {
    [("code", if healthy { "200" } else { "503" })]
}
