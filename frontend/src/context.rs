//! What all parts of a frontend share: the engine, the sessions, and what is reported to operators.

use std::{sync::OnceLock, time::SystemTime};

use proto::model::Epoch;

use crate::{
    Config,
    cluster::ClusterState,
    engine::StreamStats,
    events::EventQueue,
    identity::NodeSources,
    index::Index,
    log::ChangeLog,
    metrics::Metrics,
    server::ReloadingTls,
    session::{RateLimiter, RebuildQueue},
    source::Freshness,
    streams::Streams,
};

/// What all parts of a frontend share.
#[derive(Debug)]
pub(crate) struct FrontendContext {
    pub(crate) config: Config,
    pub(crate) cluster: ClusterState,
    pub(crate) streams: Streams,
    pub(crate) rebuild_queue: RebuildQueue,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) node_sources: NodeSources,
    pub(crate) metrics: Metrics,
    pub(crate) events: EventQueue,
    pub(crate) freshness: Freshness,
    /// The TLS configuration of the listeners, if any of them uses TLS.
    pub(crate) tls: OnceLock<ReloadingTls>,
    pub(crate) started: SystemTime,
}

/// One reason why a part of an object, or of the TLS files, is not used.
#[derive(Debug)]
pub(crate) struct ReportedProblem {
    /// Kind and name.
    pub(crate) object: String,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl FrontendContext {
    pub(crate) fn new(config: Config) -> Self {
        let started = SystemTime::now();
        let index = Index::new(started, config.cluster.clone(), config.services.clone());
        let log = ChangeLog::new(Epoch(fastrand::u64(1..)), config.history);
        Self {
            cluster: ClusterState::new(index, log),
            streams: Streams::default(),
            rebuild_queue: RebuildQueue::new(config.max_concurrent_rebuilds, config.rebuild_timeout),
            rate_limiter: RateLimiter::new(config.node_limits),
            node_sources: NodeSources::default(),
            metrics: Metrics::default(),
            events: EventQueue::default(),
            freshness: Freshness::default(),
            tls: OnceLock::new(),
            started,
            config,
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

    /// All problems: of the TLS files first, then of objects.
    pub(crate) fn problems(&self) -> Vec<ReportedProblem> {
        let tls = self.tls_error().map(|message| ReportedProblem {
            object: "TLS".to_owned(),
            field: "files".to_owned(),
            message,
        });
        let index = self.cluster.index();
        let of_objects = index.problems().flat_map(|(kind, name, problems)| {
            problems.into_iter().map(move |problem| ReportedProblem {
                object: format!("{kind} {name}"),
                field: problem.field,
                message: problem.message,
            })
        });
        tls.into_iter().chain(of_objects).collect()
    }

    /// Why the TLS files in their current form are not used.
    pub(crate) fn tls_error(&self) -> Option<String> {
        self.tls.get()?.error()
    }
}
