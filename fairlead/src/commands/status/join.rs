//! Merges the answers of several frontends to one row per node. Pure.

use std::{cmp::Reverse, collections::BTreeMap, mem, time::Duration};

use anyhow::Error;
use frontend::source::is_unconfirmed;
use proto::v1::{DrainState, EndingPod, NodeStatus, Role, StatusResponse, WatchPhase, WatchStatus};
use serde::Serialize;

use crate::cli::StatusArgs;

/// All nodes, as all frontends see them.
#[derive(Debug)]
pub(super) struct Overview {
    pub(super) scope: Scope,
    /// The frontends that answered, each once, with their addresses. Their nodes and ending pods are moved to `nodes`
    /// and `ending_pods`.
    pub(super) frontends: Vec<(String, StatusResponse)>,
    /// The frontends that did not answer.
    pub(super) unreachable: Vec<(String, Error)>,
    /// In order of their states, the worst first.
    pub(super) nodes: Vec<NodeRow>,
    /// The number of observer streams.
    pub(super) observers: usize,
    /// Pods that end and to which nodes may still send new connections, the longest first. If several frontends know a
    /// pod, this is the answer with the most to wait for.
    pub(super) ending_pods: Vec<EndingPod>,
}

/// The nodes that the answers are about. A frontend knows only its own streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scope {
    AllReplicas,
    /// Only the frontend behind a socket was asked. Other nodes may be connected to other replicas.
    OneReplica,
}

/// One node.
#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) status: NodeStatus,
    /// The address of the frontend that it is connected to.
    pub(super) frontend: Option<String>,
    /// How many revisions it is behind that frontend.
    pub(super) revisions_behind: u64,
    pub(super) state: NodeHealth,
}

/// The state of a node, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NodeHealth {
    /// No frontend has a stream to it.
    #[serde(rename = "without_stream")]
    Absent,
    /// Only a shadow is connected, and no backend programs the kernel.
    Shadow,
    /// It lags behind by more than `--max-lag`.
    Behind,
    /// VIPs of an IP family are not served as a whole.
    Degraded,
    /// It rejected service ports.
    Failing,
    Healthy,
    /// It has no stream to the replica that was asked, and may have one to another replica.
    #[serde(rename = "not_connected_here")]
    Elsewhere,
}

/// Why a node does not count as programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MissingPart {
    Stream,
    Backend,
    Revision,
    ServicePorts,
}

impl Scope {
    fn of(args: &StatusArgs) -> Self {
        match &*args.frontend.addresses {
            [address] if address.starts_with("unix:") => Self::OneReplica,
            _ => Self::AllReplicas,
        }
    }
}

impl NodeHealth {
    /// `required`: the revision that the node must have programmed.
    fn of(status: &NodeStatus, scope: Scope, max_lag: Duration, required: u64) -> Self {
        if !status.connected {
            match scope {
                Scope::AllReplicas => Self::Absent,
                Scope::OneReplica => Self::Elsewhere,
            }
        } else if status.role() == Role::Shadow {
            Self::Shadow
        } else if Duration::from_micros(status.lag_micros) > max_lag || status.programmed_revision < required {
            Self::Behind
        } else if !status.degraded.is_empty() {
            Self::Degraded
        } else if status.failure_count > 0 {
            Self::Failing
        } else {
            Self::Healthy
        }
    }
}

impl Overview {
    /// Merges the answers. A frontend with two addresses counts once; of several streams of a node the newest counts.
    /// `required`: the revision that every node must have, by epoch.
    pub(super) fn of(
        answers: Vec<(String, Result<StatusResponse, Error>)>,
        args: &StatusArgs,
        required: &BTreeMap<u64, u64>,
    ) -> Self {
        let mut frontends = Vec::<(String, StatusResponse)>::new();
        let mut unreachable = Vec::new();
        for (address, answer) in answers {
            match answer {
                Err(error) => unreachable.push((address, error)),
                Ok(status) if frontends.iter().any(|(_, known)| known.epoch == status.epoch) => {}
                Ok(status) => frontends.push((address, status)),
            }
        }

        let scope = Scope::of(args);
        let mut nodes = BTreeMap::<String, NodeRow>::new();
        let mut observers = 0;
        let mut ending_pods = BTreeMap::<Vec<_>, EndingPod>::new();
        for (address, status) in &mut frontends {
            let required = required.get(&status.epoch).copied().unwrap_or_default();
            for node in mem::take(&mut status.nodes) {
                if node.role() == Role::Observer {
                    observers += 1;
                    continue;
                }
                let row = NodeRow {
                    frontend: if node.connected { Some(address.clone()) } else { None },
                    revisions_behind: status.revision.saturating_sub(node.programmed_revision),
                    state: NodeHealth::of(&node, scope, args.max_lag, required),
                    status: node,
                };
                let known = nodes.get(&row.status.node);
                if known.is_none_or(|known| row.takes_precedence(known)) {
                    nodes.insert(row.status.node.clone(), row);
                }
            }
            for pod in mem::take(&mut status.ending_pods) {
                let known = ending_pods.get(&pod.addresses);
                if known.is_none_or(|known| rank(known) < rank(&pod)) {
                    ending_pods.insert(pod.addresses.clone(), pod);
                }
            }
        }
        if let Some(name) = &args.node {
            nodes.entry(name.clone()).or_insert_with(|| NodeRow::unknown(name));
        }

        let mut nodes: Vec<_> = nodes.into_values().collect();
        nodes.sort_by_key(|row| (row.state, Reverse(row.severity()), row.status.node.clone()));
        let mut ending_pods: Vec<_> = ending_pods.into_values().collect();
        ending_pods.sort_by_key(|pod| Reverse(pod.ending_micros));
        Self { scope, frontends, unreachable, nodes, observers, ending_pods }
    }

    /// The current revisions, by epoch.
    pub(super) fn revisions(&self) -> BTreeMap<u64, u64> {
        self.frontends.iter().map(|(_, status)| (status.epoch, status.revision)).collect()
    }

    /// Whether all frontends that answered are ready and follow the API, and all their nodes are healthy. Without any
    /// connected node nothing is known to work.
    pub(super) fn is_healthy(&self) -> bool {
        let follows = |status: &StatusResponse| status.ready && unconfirmed(status).next().is_none();
        let mut states = self.nodes.iter().map(|row| row.state).filter(|state| *state != NodeHealth::Elsewhere);

        self.frontends.iter().all(|(_, status)| follows(status))
            && states.next() == Some(NodeHealth::Healthy)
            && states.all(|state| state == NodeHealth::Healthy)
    }

    /// Whether the answers have the stream of every node, so that a revision can be said to be on all of them.
    pub(super) fn has_all_nodes(&self) -> bool {
        let lacks_backend = |row: &NodeRow| matches!(row.missing(), Some(MissingPart::Stream | MissingPart::Backend));
        !self.nodes.iter().any(lacks_backend)
    }

    /// The number of nodes in a state.
    pub(super) fn count(&self, state: NodeHealth) -> usize {
        self.nodes.iter().filter(|row| row.state == state).count()
    }
}

/// The kinds of objects that a frontend does not follow any more: its nodes keep an old state of them.
pub(super) fn unconfirmed(status: &StatusResponse) -> impl Iterator<Item = &WatchStatus> {
    status.watches.iter().filter(|watch| {
        let age = watch.age_micros.map(Duration::from_micros);
        watch.phase() != WatchPhase::NotOffered && is_unconfirmed(watch.failures, age)
    })
}

/// Orders the answers of several frontends about one pod by how much the pod waits for.
fn rank(pod: &EndingPod) -> (u8, bool, usize) {
    let state = match pod.state() {
        DrainState::Unspecified | DrainState::Drained => 0,
        DrainState::Behind => 1,
        DrainState::InUse => 2,
    };
    (state, pod.waits_for_more, pod.behind.len())
}

impl NodeRow {
    /// A node that no frontend knows.
    fn unknown(name: &str) -> Self {
        let status = NodeStatus {
            node: name.to_owned(),
            last_error: "no frontend knows this node".to_owned(),
            ..NodeStatus::default()
        };
        Self { status, frontend: None, revisions_behind: 0, state: NodeHealth::Absent }
    }

    /// What the node lacks of the current revision of its frontend; `None` if its kernel has all of it.
    pub(super) fn missing(&self) -> Option<MissingPart> {
        match self.state {
            NodeHealth::Absent | NodeHealth::Elsewhere => Some(MissingPart::Stream),
            NodeHealth::Shadow => Some(MissingPart::Backend),
            _ if self.revisions_behind > 0 || self.status.programmed_revision == 0 => Some(MissingPart::Revision),
            _ if self.status.failure_count > 0 || !self.status.degraded.is_empty() => Some(MissingPart::ServicePorts),
            NodeHealth::Behind | NodeHealth::Degraded | NodeHealth::Failing | NodeHealth::Healthy => None,
        }
    }

    /// A connected node takes precedence over a disconnected one, a backend over a shadow, a newer stream over an older
    /// one, and of two frontends without a stream the one that had it last.
    fn takes_precedence(&self, other: &Self) -> bool {
        self.precedence() > other.precedence()
    }

    fn precedence(&self) -> impl Ord {
        let status = &self.status;
        (status.connected, status.role() != Role::Shadow, status.connected_micros, Reverse(status.lag_micros))
    }

    /// Orders nodes in the same state, the worst highest.
    fn severity(&self) -> u64 {
        match self.state {
            NodeHealth::Absent | NodeHealth::Behind => self.status.lag_micros,
            NodeHealth::Failing => self.status.failure_count,
            NodeHealth::Shadow | NodeHealth::Degraded | NodeHealth::Healthy | NodeHealth::Elsewhere => 0,
        }
    }
}
