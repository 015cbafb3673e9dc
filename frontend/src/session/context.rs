//! What all sessions of a frontend share.

use std::sync::Arc;

use crate::{
    Config, cluster::ClusterState, engine::StreamStats, events::EventQueue, metrics::Metrics, streams::Streams,
};

use super::{RateLimiter, RebuildQueue};

/// What all sessions of a frontend share.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub(crate) config: Arc<Config>,
    pub(crate) cluster: Arc<ClusterState>,
    pub(crate) streams: Streams,
    pub(crate) rebuild_queue: RebuildQueue,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: EventQueue,
}

impl SessionContext {
    pub(crate) fn new(config: Arc<Config>, cluster: Arc<ClusterState>) -> Self {
        let rebuild_queue = RebuildQueue::new(config.max_concurrent_rebuilds, config.rebuild_timeout);
        let rate_limiter = RateLimiter::new(config.node_limits);
        Self {
            config,
            cluster,
            streams: Streams::default(),
            rebuild_queue,
            rate_limiter,
            metrics: Arc::default(),
            events: EventQueue::default(),
        }
    }

    pub(crate) fn stats(&self) -> StreamStats {
        let Self { cluster, rebuild_queue, metrics, .. } = self;
        StreamStats {
            rebuilds_running: rebuild_queue.running(),
            rebuilds_waiting: rebuild_queue.waiting(),
            rebuilds: cluster.log().rebuilds,
            chunks_encoded: metrics.chunks.encoded.get(),
            chunks_sent: metrics.chunks.sent.get(),
            rollbacks: metrics.rollbacks.get(),
        }
    }
}
