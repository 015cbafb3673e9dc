//! The settings of a frontend, and its limits of clients, connections and history.

use std::{sync::Arc, time::Duration};

use proto::model::ClusterInfo;
use runtime::{ConnectionBounds, Rate};

use crate::index::ServicePolicy;

/// How long the API server may take to answer a request that is no list and no watch, or a few that belong together: a
/// token review, with the wait for its permit; the keys of tokens; an Event; the taint of a node. A client that waits
/// for one gives up after 6 s.
pub(crate) const API_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the clock of the API server may differ from that of this machine, so that times that it has set are taken
/// for neither past nor future.
pub(crate) const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// The settings of a frontend.
#[derive(Clone, Debug)]
pub struct Config {
    /// Facts about the cluster that every node receives, besides those that come from objects.
    pub cluster: ClusterInfo,
    /// The only node that may be followed, as in `fairlead local`: pools that only other nodes get are not built.
    /// `None`: all nodes.
    pub only_node: Option<Arc<str>>,
    /// Which addresses Services may claim, and how much of one Service is used.
    pub services: ServicePolicy,
    /// The minimum time between two commits. After a quiet period the first change is committed at once.
    pub commit_interval: Duration,
    /// Added to `commit_interval` for each open stream, so that notifying all nodes does not use up the CPU.
    pub commit_interval_per_stream: Duration,
    /// How long a stream is idle before its node is sent a bookmark.
    pub bookmark_interval: Duration,
    /// How long a client may take to send Hello.
    pub hello_deadline: Duration,
    /// After the shutdown each client is served for a random time of at most this, and then asked to reconnect.
    pub max_drain_delay: Duration,
    /// The part of that time for each open stream: that of a TLS handshake on one CPU core of another replica.
    pub drain_delay_per_stream: Duration,
    /// How long clients may then take to end their streams.
    pub drain_grace: Duration,
    /// How many clients may be sent a snapshot or a repair at the same time. Others wait. The streams of a client count
    /// once.
    pub max_concurrent_rebuilds: usize,
    /// How long a client that receives its snapshot or repair slowly may keep others waiting.
    pub rebuild_timeout: Duration,
    /// How long a client with a newer source version waits for this frontend to catch up before it is rolled back to
    /// what the frontend has.
    pub catch_up_timeout: Duration,
    /// How much of the change history is kept for nodes that reconnect.
    pub history: HistoryLimits,
    /// How many streams one node may have at a time, for each role.
    pub streams_per_node: usize,
    /// How often a stream of one node may start, or be sent another snapshot or repair.
    pub syncs_per_node: Rate,
    /// How often a client may send its last Ack again on one stream, unless everything is programmed then.
    pub repeated_acks: Rate,
    /// What one connection may do.
    pub connections: ConnectionLimits,
    /// A client whose stream reaches this age, give or take a fifth, is asked to reconnect, so that clients do not stay
    /// with one replica forever. `None`: no limit.
    pub max_stream_age: Option<Duration>,
}

/// Limits of the connections of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// How long a connection may be without a call.
    pub idle: Duration,
    /// The interval of HTTP/2 pings. Clients send their own.
    pub keepalive: Duration,
    /// How long the answer to a ping may take. A node that lost its network is disconnected after the sum of both.
    pub keepalive_timeout: Duration,
    /// How long a client may take to send the first byte of its TLS handshake, and then for the handshake. A backend
    /// gives up on a connection after the same time.
    pub handshake: Duration,
    /// How long a client may take to be identified, after its TLS handshake.
    pub identification: Duration,
    /// Connections of clients that are not identified, at sources where nodes connect from: addresses in the status of
    /// Nodes, and sources of clients that were identified. In total, and for each source (IPv6: /64).
    pub node_sources: ConnectionBounds,
    /// Connections of clients that are not identified, at all other sources.
    pub unknown_sources: ConnectionBounds,
    /// Connections of identified clients: in total, and for each identity.
    pub identified: ConnectionBounds,
}

/// How much history is kept.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// The number of commits.
    pub entries: usize,
    /// The approximate memory in bytes. The last commit is kept even if it takes more.
    pub bytes: usize,
}

impl Config {
    /// The longest that one of this many clients is served after the shutdown.
    pub(crate) fn drain_delay(&self, streams: u32) -> Duration {
        self.drain_delay_per_stream.saturating_mul(streams).min(self.max_drain_delay)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: ClusterInfo::default(),
            only_node: None,
            services: ServicePolicy::default(),
            commit_interval: Duration::from_millis(10),
            // Notifying one node takes 10 to 40 us of CPU time.
            commit_interval_per_stream: Duration::from_micros(12),
            bookmark_interval: Duration::from_secs(10),
            hello_deadline: Duration::from_secs(10),
            max_drain_delay: Duration::from_secs(5),
            drain_delay_per_stream: Duration::from_millis(1),
            drain_grace: Duration::from_secs(10),
            max_concurrent_rebuilds: 16,
            rebuild_timeout: Duration::from_secs(10),
            catch_up_timeout: Duration::from_secs(5),
            // Hours of a busy cluster. A reconnect beyond that costs a comparison of digests.
            history: HistoryLimits::default(),
            streams_per_node: 16,
            syncs_per_node: Rate { burst: 4, every: Duration::from_secs(1) },
            repeated_acks: Rate { burst: 64, every: Duration::from_millis(100) },
            connections: ConnectionLimits::default(),
            max_stream_age: None,
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            keepalive: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(20),
            handshake: Duration::from_secs(3),
            identification: Duration::from_secs(15),
            node_sources: ConnectionBounds { total: 4096, per_key: 64 },
            unknown_sources: ConnectionBounds { total: 512, per_key: 64 },
            identified: ConnectionBounds { total: 32_768, per_key: 32 },
        }
    }
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 64 << 20 }
    }
}
