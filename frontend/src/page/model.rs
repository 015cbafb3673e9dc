//! A snapshot of everything that the page shows. The change log is locked for one digest bucket at a time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::{
    digest::BUCKETS,
    model::{Revision, Role},
};

use crate::{
    change_history::ChangeRecord,
    context::{FrontendContext, ReportedProblem},
    drain::{DrainState, NodesBehind, WaitingDrain},
    streams::{Fleet, MAX_LISTED, StreamStatus},
    view::vips,
};

/// How long a node may lag before it is shown as behind, as in `fairlead status`.
const MAX_LAG: Duration = Duration::from_secs(5);

/// How many changes the page has.
const MAX_CHANGES: usize = 200;

/// Everything at one moment.
#[derive(Debug)]
pub(super) struct PageModel {
    pub(super) now: SystemTime,
    pub(super) started: SystemTime,
    pub(super) is_ready: bool,
    pub(super) revision: Revision,
    pub(super) programmed_on_all_nodes: Revision,
    pub(super) endpoints: usize,
    /// Worst condition first.
    pub(super) nodes: Vec<NodeRow>,
    /// By key.
    pub(super) services: Vec<ServiceRow>,
    /// Newest first.
    pub(super) changes: Vec<ChangeRecord>,
    pub(super) problems: Vec<ReportedProblem>,
    /// The pods that wait longest until no node sends them new connections.
    pub(super) drains: Vec<DrainRow>,
    /// How many pods wait.
    pub(super) waiting_drains: usize,
}

/// A pod that waits.
#[derive(Debug)]
pub(super) struct DrainRow {
    pub(super) addresses: String,
    pub(super) services: String,
    /// What it waits for.
    pub(super) reason: String,
    pub(super) waited: Duration,
}

#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) name: Arc<str>,
    pub(super) condition: NodeCondition,
    pub(super) backend: String,
    pub(super) programmed: Option<Revision>,
    /// For how long the node has been behind or disconnected.
    pub(super) lag: Duration,
    pub(super) failures: usize,
    /// The first failure, or why the last stream was ended.
    pub(super) error: String,
}

/// The condition of a node, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeCondition {
    /// It has no stream here.
    Disconnected,
    /// It has not programmed a change for longer than [`MAX_LAG`].
    Behind,
    /// It could not program something.
    Failing,
    /// Only a shadow follows it, which programs nothing.
    Shadow,
    UpToDate,
}

#[derive(Debug)]
pub(super) struct ServiceRow {
    pub(super) key: String,
    pub(super) vips: Vec<String>,
    pub(super) endpoints: usize,
}

impl DrainRow {
    fn of(drain: WaitingDrain, fleet: &Fleet) -> Self {
        let WaitingDrain { addresses, services, state, since } = drain;
        let list = |texts: Vec<String>| texts.join(", ");
        let behind = NodesBehind::of(fleet, state, &services);
        let reason = match state {
            DrainState::Unknown => "no EndpointSlice has its address".to_owned(),
            DrainState::InUse => "its EndpointSlices, or the last endpoint of a Service".to_owned(),
            DrainState::Behind(_) => {
                format!("{} nodes: {}", behind.count, list(behind.first.iter().map(ToString::to_string).collect()))
            }
            DrainState::Drained => "other frontends".to_owned(),
        };
        Self {
            addresses: list(addresses.iter().map(ToString::to_string).collect()),
            services: list(services.iter().map(ToString::to_string).collect()),
            reason,
            waited: since.elapsed(),
        }
    }
}

impl PageModel {
    pub(super) fn of(context: &FrontendContext) -> Self {
        let FrontendContext { cluster, streams, started, .. } = context;
        let fleet = streams.fleet();
        let connected = fleet.current_backends().map(|status| NodeRow::of(status, fleet.last_error(&status.node)));
        let mut nodes: Vec<_> = connected.collect();
        let observers = fleet.observers();
        nodes.extend(fleet.disconnected().map(|(node, lag)| {
            let error = fleet.last_error(node);
            match observers.iter().find(|status| status.role == Role::Shadow && status.node == *node) {
                Some(shadow) => NodeRow { condition: NodeCondition::Shadow, ..NodeRow::of(shadow, error) },
                None => NodeRow {
                    name: node.clone(),
                    condition: NodeCondition::Disconnected,
                    backend: String::new(),
                    programmed: None,
                    lag,
                    failures: 0,
                    error: error.unwrap_or_default().to_owned(),
                },
            }
        }));
        nodes.sort_by(|left, right| (left.condition, &left.name).cmp(&(right.condition, &right.name)));
        let mut services = Vec::new();
        for bucket in 0..BUCKETS {
            let log = cluster.log();
            services.extend(log.bucket_views(bucket).map(|(key, view)| ServiceRow {
                key: key.to_string(),
                vips: vips(&view.port),
                endpoints: view.endpoints(),
            }));
        }
        services.sort_by(|left, right| left.key.cmp(&right.key));
        // The index, which the problems lock, is never locked while the log is.
        let (revision, changes) = {
            let log = cluster.log();
            (log.revision(), log.changes.iter().take(MAX_CHANGES).map(|change| change.record.clone()).collect())
        };
        Self {
            now: SystemTime::now(),
            started: *started,
            is_ready: cluster.is_ready(),
            revision,
            programmed_on_all_nodes: fleet.programmed_on_all_nodes().unwrap_or(revision),
            endpoints: services.iter().map(|service| service.endpoints).sum(),
            nodes,
            services,
            changes,
            problems: context.problems(),
            drains: context.drains.longest(MAX_LISTED).into_iter().map(|drain| DrainRow::of(drain, &fleet)).collect(),
            waiting_drains: context.drains.count(),
        }
    }

    /// How many nodes are in this condition.
    pub(super) fn count(&self, condition: NodeCondition) -> usize {
        self.nodes.iter().filter(|node| node.condition == condition).count()
    }
}

impl NodeRow {
    fn of(status: &StreamStatus, error: Option<&str>) -> Self {
        let lag = status.lag();
        let first_failure = status.failures.first().map(|failure| format!("{}: {}", failure.key, failure.reason));
        Self {
            name: status.node.clone(),
            condition: match lag {
                lag if lag > MAX_LAG => NodeCondition::Behind,
                _ if !status.failures.is_empty() => NodeCondition::Failing,
                _ => NodeCondition::UpToDate,
            },
            backend: format!("{} {}", status.backend, status.backend_version),
            programmed: Some(status.programmed).filter(|revision| revision.0 > 0),
            lag,
            failures: status.failures.len(),
            error: first_failure.or(error.map(str::to_owned)).unwrap_or_default(),
        }
    }
}
