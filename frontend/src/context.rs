//! What all parts of a frontend share: the engine, the sessions, and what is reported to operators.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::SystemTime,
};

use proto::{
    model::{Epoch, ServicePortKey},
    v1::Problem,
};
use runtime::{failure::CountedLog, lock};
use tokio::sync::Semaphore;

use crate::{
    Config,
    clients::{Answers, RateLimiter, RebuildQueue},
    cluster::ClusterState,
    events::EventQueue,
    identity::{Identity, NodeSources},
    index::Index,
    log::ChangeLog,
    metrics::Metrics,
    server::TlsAuth,
    source::Freshness,
    streams::{MAX_LISTED, Streams},
};

/// What all parts of a frontend share.
#[derive(Debug)]
pub(crate) struct FrontendContext {
    pub(crate) config: Config,
    pub(crate) cluster: ClusterState,
    pub(crate) streams: Arc<Streams>,
    pub(crate) rebuild_queue: RebuildQueue,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) node_sources: Mutex<NodeSources>,
    pub(crate) answers: Answers,
    /// One: plans lock the index.
    pub(crate) plans: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    pub(crate) events: EventQueue,
    pub(crate) freshness: Freshness,
    /// The TLS configuration and authentication of the listeners, if any of them uses TLS.
    pub(crate) tls: OnceLock<TlsAuth>,
    pub(crate) started: SystemTime,
    /// By client: streams that were rejected or broke the protocol.
    session_errors: Mutex<CountedLog<Identity>>,
    /// By client, and whether it was right after a snapshot: wrong digests.
    mismatches: Mutex<CountedLog<(Identity, bool)>>,
    /// By client, and whether it was rolled back: newer source versions than this frontend has.
    newer_versions: Mutex<CountedLog<(Identity, bool)>>,
}

/// The most problems, or changes, that an answer lists: it has at most 16 MiB.
pub(crate) const MAX_ANSWER_ENTRIES: usize = 1000;

impl FrontendContext {
    pub(crate) fn new(config: Config) -> Self {
        let started = SystemTime::now();
        let mut index = Index::new(started, config.cluster.clone(), config.services.clone());
        index.limit_to_node(config.only_node.clone());
        let log = ChangeLog::new(config.history);
        Self {
            cluster: ClusterState::new(Epoch(fastrand::u64(1..)), index, log),
            streams: Arc::default(),
            rebuild_queue: RebuildQueue::new(config.max_concurrent_rebuilds, config.rebuild_timeout),
            rate_limiter: RateLimiter::new(config.streams_per_node, config.syncs_per_node),
            node_sources: Mutex::default(),
            answers: Answers::default(),
            plans: Arc::new(Semaphore::new(1)),
            metrics: Metrics::default(),
            events: EventQueue::default(),
            freshness: Freshness::default(),
            tls: OnceLock::new(),
            started,
            session_errors: Mutex::default(),
            mismatches: Mutex::default(),
            newer_versions: Mutex::default(),
            config,
        }
    }

    /// Counts a stream that was rejected or broke the protocol. `Some` when it should be logged: how many there were of
    /// this client since the last line.
    pub(crate) fn count_session_error(&self, client: &Identity) -> Option<u64> {
        lock(&self.session_errors).record(client.clone())
    }

    /// Counts a wrong digest, as [`Self::count_session_error`] does; rejected clients do not take its lines.
    pub(crate) fn count_mismatch(&self, client: &Identity, is_after_snapshot: bool) -> Option<u64> {
        lock(&self.mismatches).record((client.clone(), is_after_snapshot))
    }

    /// Counts a newer source version than this frontend has, as [`Self::count_session_error`] does; neither takes the
    /// lines of the other, nor those about wrong digests.
    pub(crate) fn count_newer_version(&self, client: &Identity, is_rolled_back: bool) -> Option<u64> {
        lock(&self.newer_versions).record((client.clone(), is_rolled_back))
    }

    /// All problems, those of [`Self::lost_service_ports`] first.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = self.lost_service_ports();
        problems.extend(self.other_problems());
        problems
    }

    /// The service ports that have lost their last endpoint since this process started, as problems.
    pub(crate) fn lost_service_ports(&self) -> Vec<Problem> {
        let log = self.cluster.log();
        let as_problem = |key: &ServicePortKey| {
            let ServicePortKey { namespace, name, .. } = key;
            let message = format!(
                "has lost its last endpoint: connections to it fail. `fairlead endpoints {namespace}/{name}` tells why"
            );
            problem(format!("service port {key}"), "endpoints", message)
        };

        let mut problems: Vec<_> = log.lost.iter().take(MAX_LISTED).map(as_problem).collect();
        let others = log.lost.len() - problems.len();
        if others > 0 {
            let message = format!("{others} more service ports have lost their last endpoint; they are not listed");
            problems.push(problem("service port", "endpoints", message));
        }
        problems
    }

    /// All others, up to about [`MAX_ANSWER_ENTRIES`]: of TLS and tokens first, then of manifests, missing Nodes and
    /// Nodes that have lost their addresses, then of objects.
    pub(crate) fn other_problems(&self) -> Vec<Problem> {
        let mut problems = self.authn_problems();
        problems.extend(self.freshness.file_problems());
        problems.extend(self.node_problems());
        let index = self.cluster.index();
        let (of_objects, others) = index.problems.first(MAX_ANSWER_ENTRIES.saturating_sub(problems.len()));
        problems.extend(of_objects.into_iter().map(|(kind, name, problem)| problem.into_wire(kind, name)));
        if others > 0 {
            problems.push(problem("more", "", format!("{others} more problems are not listed")));
        }
        problems
    }

    /// The Nodes that do not exist although their backends are connected, and those that have lost their addresses.
    fn node_problems(&self) -> Vec<Problem> {
        let fleet = self.streams.fleet();
        let message = "there is no such Node, but its backend is connected: the node uses the last known addresses \
                       and pod CIDRs. If it was deleted by mistake, restart its kubelet, which registers it again; \
                       otherwise stop the backend, or correct its --node-name";
        let mut problems = listed(fleet.backends_without_node(), "metadata.name", message, "do not exist");
        let message = "it has no InternalIP or ExternalIP any more: the node uses its last addresses for node ports. \
                       Check the kubelet, or the cloud controller manager if that sets them";
        problems.extend(listed(fleet.without_addresses(), "status.addresses", message, "have lost their addresses"));
        problems
    }

    /// TLS files that cannot be used in their current form, and keys that are missing to verify tokens with.
    pub(crate) fn authn_problems(&self) -> Vec<Problem> {
        let Some(auth) = self.tls.get() else { return Vec::new() };
        let files = auth.tls.error().map(|error| problem("TLS", "files", error));
        let keys = auth.authenticator.keys_error().map(|error| {
            let text = format!(
                "signatures are not verified, so that forged tokens from the address of a node can keep its backend \
                 out: {error}"
            );
            problem("Tokens", "signing keys", text)
        });
        files.into_iter().chain(keys).collect()
    }
}

/// The same problem of each of these nodes, up to [`MAX_LISTED`]. `what`: that of the others, in a few words.
fn listed<'a>(mut nodes: impl Iterator<Item = &'a Arc<str>>, field: &str, message: &str, what: &str) -> Vec<Problem> {
    let listed = nodes.by_ref().take(MAX_LISTED).map(|node| problem(format!("Node {node}"), field, message));
    let mut problems: Vec<_> = listed.collect();
    let others = nodes.count();
    if others > 0 {
        problems.push(problem("Node", field, format!("{others} more Nodes {what}; they are not listed")));
    }
    problems
}

fn problem(object: impl Into<String>, field: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem { object: object.into(), field: field.into(), message: message.into() }
}

#[cfg(test)]
mod tests {
    use crate::{
        object::{ObjectProblem, SourceUpdate},
        testing::take_steps,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejected_streams_of_one_client_are_few_lines() {
        let context = FrontendContext::new(Config::default());
        let count = |name: &str| context.count_session_error(&Identity::Node(name.into())).is_some();
        let lines = (0..20_000).filter(|_| count("node-1")).count();
        assert_eq!((lines, count("node-2")), (1, true));
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_streams_of_many_clients_do_not_hide_a_wrong_digest() {
        let context = FrontendContext::new(Config::default());
        for number in 0..1000 {
            context.count_session_error(&Identity::Node(format!("node-{number}").into()));
        }
        let node = Identity::Node("node-1".into());
        let counts = [false, false, true].map(|is_after_snapshot| context.count_mismatch(&node, is_after_snapshot));
        assert_eq!(counts, [Some(1), None, Some(1)]);
    }

    #[test]
    fn problems_are_bounded() {
        let context = FrontendContext::new(Config::default());
        for number in 0..2000 {
            let mut service = crate::testing::parsed(crate::testing::service(&format!("web-{number}"), "10.96.0.1"));
            service.problems = vec![ObjectProblem { field: "spec".to_owned(), message: "wrong".to_owned() }];
            context.cluster.index().apply(SourceUpdate::Apply(service));
        }
        take_steps();
        let problems = context.problems();
        assert_eq!(take_steps(), 1000, "the index is locked: the other objects are only counted");
        assert_eq!((problems.len(), &*problems[1000].message), (1001, "1000 more problems are not listed"));
    }
}
