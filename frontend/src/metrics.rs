//! Prometheus metrics of this replica. `docs/metrics.md` lists all of them; a test compares.
//!
//! ```text
//!   engine, session, server ──▶ Metrics: counters and histograms, updated as things happen ──┐
//!                                                                                            ├──▶ `scrape`: /metrics
//!   log, index, streams, freshness ──▶ `scrape`: gauges, read on each scrape ────────────────┘
//! ```

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use proto::model::SyncMode;

pub(crate) const PREFIX: &str = "fairlead_frontend";

type Label = [(&'static str, &'static str); 1];

/// Counters and histograms that are updated as things happen.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// How long commits took.
    pub(crate) commits: Histogram,
    /// How long after its commit a node acknowledged a change.
    pub(crate) acks: Histogram,
    bytes: Counter,
    starts: Family<Label, Counter>,
    pub(crate) mismatches: Counter,
    rejections: Family<Label, Counter>,
    evictions: Family<Label, Counter>,
    pub(crate) rollbacks: Counter,
    /// Snapshots and repairs.
    pub(crate) rebuilds: Counter,
    /// Each chunk counts once.
    pub(crate) chunks_encoded: Counter,
    /// Each chunk counts once per stream.
    pub(crate) chunks_sent: Counter,
}

/// Why a call or stream was rejected or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The client could not be identified.
    Unauthenticated,
    /// Tokens cannot be checked at the moment.
    Unavailable,
    /// The client is not authorized.
    NotPermitted,
    /// The client broke the protocol, or exceeded a limit.
    Protocol,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            // 10 us to 2.6 s.
            commits: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            // 1 ms to 65 s.
            acks: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            bytes: Counter::default(),
            starts: Family::default(),
            mismatches: Counter::default(),
            rejections: Family::default(),
            evictions: Family::default(),
            rollbacks: Counter::default(),
            rebuilds: Counter::default(),
            chunks_encoded: Counter::default(),
            chunks_sent: Counter::default(),
        }
    }
}

impl Metrics {
    /// A message has been handed to a connection.
    pub(crate) fn sent(&self, bytes: usize) {
        self.bytes.inc_by(bytes as u64);
    }

    pub(crate) fn started(&self, mode: SyncMode) {
        self.starts.get_or_create(&[("mode", mode.name())]).inc();
    }

    pub(crate) fn rejected(&self, why: Rejection) {
        self.rejections.get_or_create(&why.label()).inc();
    }

    pub(crate) fn evicted(&self, is_identified: bool) {
        self.evictions.get_or_create(&client_label(is_identified)).inc();
    }

    pub(crate) fn registry(&self) -> Registry {
        // Exported as 0 from the start, so that `increase()` sees the first occurrence.
        for mode in SyncMode::ALL {
            drop(self.starts.get_or_create(&[("mode", mode.name())]));
        }
        for why in Rejection::ALL {
            drop(self.rejections.get_or_create(&why.label()));
        }
        for is_identified in [false, true] {
            drop(self.evictions.get_or_create(&client_label(is_identified)));
        }

        let mut registry = Registry::with_prefix(PREFIX);

        let text =
            "Time to compute what changed for all nodes and to record it; updates that change nothing are not counted";
        registry.register_with_unit("commit_duration", text, Unit::Seconds, self.commits.clone());

        let text = "Time from the commit of a change to the acknowledgement of a node that has programmed it; \
                    snapshots and repairs are not counted";
        registry.register_with_unit("ack_duration", text, Unit::Seconds, self.acks.clone());

        let text = "Size of the messages sent to clients, before HTTP/2 and TLS";
        registry.register_with_unit("sent", text, Unit::Bytes, self.bytes.clone());

        let text = "Streams started, by mode: resume (only changes), repair (digest buckets that differ) or snapshot \
                    (everything); many snapshots mean that nodes lose their state or compute no digests";
        registry.register("stream_starts", text, self.starts.clone());

        let text = "Acknowledgements with a wrong digest: the state of the node differed and was repaired; a bug, \
                    unless the node lies";
        registry.register("digest_mismatches", text, self.mismatches.clone());

        let text = "Calls and streams that were rejected or ended, by reason: unauthenticated, unavailable (tokens \
                    cannot be checked), not_permitted (such as a node that requests the state of another) or protocol \
                    (an error)";
        registry.register("rejections", text, self.rejections.clone());

        let text = "Connections that were closed for another one because a limit was reached, by client: unidentified \
                    or identified; many of unidentified clients mean that a client floods this replica";
        registry.register("connections_evicted", text, self.evictions.clone());

        let text = "Streams whose client was rolled back: it had a newer source version than this replica, which did \
                    not catch up in time";
        registry.register("rollbacks", text, self.rollbacks.clone());

        let text = "Snapshots and repairs that were built, at the start of streams and later";
        registry.register("rebuilds", text, self.rebuilds.clone());

        let text =
            "Chunks of operations that were encoded. A chunk for many nodes is encoded once: compare with chunks_sent";
        registry.register("chunks_encoded", text, self.chunks_encoded.clone());

        let text = "Chunks of operations that were sent, each counted once per stream";
        registry.register("chunks_sent", text, self.chunks_sent.clone());

        registry
    }
}

fn client_label(is_identified: bool) -> Label {
    [("client", if is_identified { "identified" } else { "unidentified" })]
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
