//! What a replica measures about itself, for Prometheus. `docs/metrics.md` lists every metric; a test compares.
//!
//! ```text
//!   engine, session, server ──▶ Metrics: what must be counted when it happens ──┐
//!                                                                               ├──▶ http: /metrics
//!   log, index, streams, freshness ──▶ scrape: what is looked up when asked ────┘
//! ```

mod http;
mod scrape;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use proto::model::SyncMode;

use crate::engine::Shared;

use self::scrape::Scrape;

/// What all names begin with.
const PREFIX: &str = "fairlead_frontend";

/// One label with its value.
type Label = [(&'static str, &'static str); 1];

/// What is counted when it happens.
#[derive(Debug)]
pub(crate) struct Metrics {
    commits: Histogram,
    acks: Histogram,
    messages: Counter,
    bytes: Counter,
    starts: Family<Label, Counter>,
    mismatches: Counter,
    rejections: Family<Label, Counter>,
}

/// Why somebody was not served, or not any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Nobody knows who it is.
    Unauthenticated,
    /// Who it is could not be found out at present.
    Unavailable,
    /// It asked for what is not for it.
    NotPermitted,
    /// It did not keep to the protocol.
    Protocol,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            // 10 us to 2.6 s.
            commits: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            // 1 ms to 65 s.
            acks: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            messages: Counter::default(),
            bytes: Counter::default(),
            starts: Family::default(),
            mismatches: Counter::default(),
            rejections: Family::default(),
        }
    }
}

impl Metrics {
    /// A commit has changed something.
    pub(crate) fn committed(&self, took: Duration) {
        self.commits.observe(took.as_secs_f64());
    }

    /// A node has acknowledged a change so long after it was committed.
    pub(crate) fn acked(&self, after: Duration) {
        self.acks.observe(after.as_secs_f64());
    }

    /// A message of so many bytes has been handed to a connection.
    pub(crate) fn sent(&self, bytes: usize) {
        self.messages.inc();
        self.bytes.inc_by(bytes as u64);
    }

    /// A stream has started.
    pub(crate) fn started(&self, mode: SyncMode) {
        self.starts.get_or_create(&[("mode", mode_name(mode))]).inc();
    }

    /// A client did not hold what it should.
    pub(crate) fn mismatched(&self) {
        self.mismatches.inc();
    }

    /// A client was refused.
    pub(crate) fn rejected(&self, why: Rejection) {
        self.rejections.get_or_create(&why.label()).inc();
    }

    /// Everything that there is to tell, when somebody asks.
    fn registry(shared: &Arc<Shared>) -> Registry {
        let Self { commits, acks, messages, bytes, starts, mismatches, rejections } = &shared.metrics;
        // What has not happened yet is told as 0, so that the first time is seen as an increase.
        for mode in [SyncMode::Resume, SyncMode::Repair, SyncMode::Snapshot] {
            drop(starts.get_or_create(&[("mode", mode_name(mode))]));
        }
        for why in Rejection::ALL {
            drop(rejections.get_or_create(&why.label()));
        }
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_with_unit(
            "commit_duration",
            "Time to compute the views that changed and to record their difference, once for all nodes; commits without effect are \
             not counted",
            Unit::Seconds,
            commits.clone(),
        );
        registry.register_with_unit(
            "ack_duration",
            "From the commit of the oldest change in what a node was sent to its ack, when the kernel has it; snapshots and repairs \
             are not counted",
            Unit::Seconds,
            acks.clone(),
        );
        registry.register(
            "sent_messages",
            "Messages handed to connections, bookmarks and pings of the protocol included",
            messages.clone(),
        );
        registry.register_with_unit(
            "sent",
            "Size of these messages, before HTTP/2 and TLS",
            Unit::Bytes,
            bytes.clone(),
        );
        registry.register(
            "stream_starts",
            "Streams that started, by mode: resume (only what changed), repair (after comparing digests) or snapshot (everything); many \
             snapshots mean nodes that lose their state, or that compute no digests",
            starts.clone(),
        );
        registry.register(
            "digest_mismatches",
            "Acks that showed that a node does not hold what it should; each is repaired at once, and each is a bug somewhere",
            mismatches.clone(),
        );
        registry.register(
            "rejections",
            "Calls and streams that were refused or ended, by reason: unauthenticated, unavailable (tokens cannot be checked at present), \
             not_permitted (a node asks for another's view) or protocol (broken rules)",
            rejections.clone(),
        );
        registry.register_collector(Box::new(Scrape::new(shared.clone())));
        registry
    }
}

impl Rejection {
    const ALL: [Self; 4] = [Self::Unauthenticated, Self::Unavailable, Self::NotPermitted, Self::Protocol];

    fn label(self) -> Label {
        let reason = match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Unavailable => "unavailable",
            Self::NotPermitted => "not_permitted",
            Self::Protocol => "protocol",
        };
        [("reason", reason)]
    }
}

fn mode_name(mode: SyncMode) -> &'static str {
    match mode {
        SyncMode::Resume => "resume",
        SyncMode::Repair => "repair",
        SyncMode::Snapshot => "snapshot",
    }
}
