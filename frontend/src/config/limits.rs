//! Limits of clients, their connections and the history that is kept for them.

use std::time::Duration;

use runtime::{ConnectionBounds, Rate};

/// Limits of the connections of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Concurrent calls, including streams.
    pub calls: u32,
    /// How long a connection may be without a call.
    pub idle: Duration,
    /// The interval of HTTP/2 pings. Clients send their own.
    pub keepalive: Duration,
    /// How long the answer to a ping may take. A node that lost its network is disconnected after the sum of both.
    pub keepalive_timeout: Duration,
    /// How long a client may take to send the first byte of its TLS handshake, and then for the handshake. A backend
    /// gives up on a connection after the same time.
    pub handshake: Duration,
    /// TLS handshakes of `node_sources` that progress at the same time at each listener; others wait. One CPU core
    /// performs about a thousand a second.
    pub handshakes: usize,
    /// How long a client may take to be identified, after its TLS handshake.
    pub identification: Duration,
    /// How many bytes a client may send before it is identified, after TLS decryption: more than the 64 KiB that HTTP/2
    /// allows before the SETTINGS of the server arrive, so that a client which sends a large request is answered.
    pub unidentified_bytes: usize,
    /// Connections of clients that are not identified, at sources where nodes connect from: addresses in the status of
    /// Nodes, and sources of clients that were identified. In total, and for each source (IPv6: /64).
    pub node_sources: ConnectionBounds,
    /// Connections of clients that are not identified, at all other sources.
    pub unknown_sources: ConnectionBounds,
    /// Connections of identified clients: in total, and for each identity.
    pub identified: ConnectionBounds,
}

/// What one node may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Streams at a time, for each role.
    pub streams: usize,
    /// How often a stream may start, or be sent another snapshot or repair.
    pub syncs: Rate,
}

/// How much history is kept.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// The number of commits.
    pub entries: usize,
    /// The approximate memory in bytes. The last commit is kept even if it takes more.
    pub bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            calls: 16,
            idle: Duration::from_secs(60),
            keepalive: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(20),
            handshake: Duration::from_secs(3),
            handshakes: 1024,
            identification: Duration::from_secs(15),
            unidentified_bytes: 128 << 10,
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
