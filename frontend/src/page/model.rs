//! One look at all that the page shows. The log is held for a part of the service ports at a time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use proto::model::{IpFamily, Revision, ServicePort};

use crate::{StreamStatus, change_history::ChangeRecord, engine::Shared, log::ChangeLog, streams::Absent};

/// For so long a change may be on its way before a node is called behind: as `fairlead status` has it.
const MAX_LAG: Duration = Duration::from_secs(5);

/// Everything at one moment.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) now: SystemTime,
    pub(super) started: SystemTime,
    pub(super) is_ready: bool,
    pub(super) revision: Revision,
    pub(super) in_every_kernel: Revision,
    pub(super) endpoints: usize,
    /// Those with which something is wrong first.
    pub(super) nodes: Vec<NodeRow>,
    /// In the order of their keys.
    pub(super) services: Vec<ServiceRow>,
    /// Newest first.
    pub(super) changes: Vec<ChangeRecord>,
    pub(super) problems: Vec<ProblemRow>,
}

#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) name: Arc<str>,
    pub(super) condition: Condition,
    pub(super) backend: String,
    pub(super) held: Option<Revision>,
    /// How long it is behind, or alone.
    pub(super) lag: Duration,
    pub(super) failures: usize,
    /// What it could not program first, or why its stream was ended.
    pub(super) trouble: String,
}

/// How a node is, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// It has no stream here.
    Absent,
    /// Something is not in its kernel for longer than it should take.
    Behind,
    /// Something could not be programmed.
    Failing,
    /// A shadow follows it, which programs nothing.
    Shadow,
    Well,
}

#[derive(Debug)]
pub(super) struct ServiceRow {
    pub(super) key: String,
    pub(super) vips: Vec<String>,
    pub(super) endpoints: usize,
}

#[derive(Debug)]
pub(super) struct ProblemRow {
    pub(super) object: String,
    pub(super) field: String,
    pub(super) message: String,
}

impl Model {
    pub(super) fn of(shared: &Shared) -> Self {
        let fleet = shared.streams.fleet();
        let mut nodes: Vec<_> =
            fleet.speakers().map(|status| NodeRow::of(status, fleet.last_error(&status.node))).collect();
        nodes.extend(fleet.absent.iter().map(|absent| {
            let error = fleet.last_error(&absent.node);
            match fleet.shadow(&absent.node) {
                Some(shadow) => NodeRow { condition: Condition::Shadow, ..NodeRow::of(shadow, error) },
                None => NodeRow::absent(absent, error),
            }
        }));
        nodes.sort_by(|left, right| (left.condition, &left.name).cmp(&(right.condition, &right.name)));
        let mut services = Vec::new();
        for part in 0..ChangeLog::PARTS {
            let log = shared.log();
            services.extend(log.part(part).map(|(key, view)| ServiceRow {
                key: key.to_string(),
                vips: vips(&view.port),
                endpoints: view.endpoints(),
            }));
        }
        services.sort_by(|left, right| left.key.cmp(&right.key));
        let revision = shared.log().revision();
        Self {
            now: SystemTime::now(),
            started: shared.started,
            is_ready: shared.is_ready(),
            revision,
            in_every_kernel: fleet.in_every_kernel().unwrap_or(revision),
            endpoints: services.iter().map(|service| service.endpoints).sum(),
            nodes,
            services,
            changes: shared.recent().iter().cloned().collect(),
            problems: problems(shared),
        }
    }

    /// How many nodes are in this condition.
    pub(super) fn count(&self, condition: Condition) -> usize {
        self.nodes.iter().filter(|node| node.condition == condition).count()
    }
}

impl NodeRow {
    fn absent(absent: &Absent, error: Option<&str>) -> Self {
        Self {
            name: absent.node.clone(),
            condition: Condition::Absent,
            backend: String::new(),
            held: None,
            lag: absent.alone,
            failures: 0,
            trouble: error.unwrap_or_default().to_owned(),
        }
    }

    fn of(status: &StreamStatus, error: Option<&str>) -> Self {
        let lag = status.lag();
        let first = status.failures.first().map(|failure| format!("{}: {}", failure.key, failure.reason));
        Self {
            name: status.node.clone(),
            condition: match lag {
                lag if lag > MAX_LAG => Condition::Behind,
                _ if !status.failures.is_empty() => Condition::Failing,
                _ => Condition::Well,
            },
            backend: format!("{} {}", status.backend, status.backend_version),
            held: Some(status.held).filter(|held| held.0 > 0),
            lag,
            failures: status.failures.len(),
            trouble: first.or(error.map(str::to_owned)).unwrap_or_default(),
        }
    }
}

fn problems(shared: &Shared) -> Vec<ProblemRow> {
    let tls = shared.tls.get().and_then(|tls| tls.trouble());
    let tls = tls.map(|message| ProblemRow { object: "TLS".to_owned(), field: "files".to_owned(), message });
    let index = shared.index();
    let of_objects = index.problems().flat_map(|(kind, name, problems)| {
        problems.into_iter().map(move |problem| ProblemRow {
            object: format!("{kind} {name}"),
            field: problem.field.clone(),
            message: problem.message.clone(),
        })
    });
    tls.into_iter().chain(of_objects).collect()
}

/// The ways in, each with its port; the node port last.
fn vips(port: &ServicePort) -> Vec<String> {
    let cluster_ips = IpFamily::ALL.into_iter().filter_map(|family| port.cluster_ips[family]);
    let ips = cluster_ips.chain(IpFamily::ALL.into_iter().flat_map(|family| port.external_policy_ips(family)));
    let mut vips: Vec<_> = ips.map(|ip| std::net::SocketAddr::new(ip, port.port.get()).to_string()).collect();
    vips.extend(port.node_port.map(|number| format!("node port {number}")));
    vips
}
