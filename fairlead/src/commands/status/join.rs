//! What several frontends say, put together: one row for each node, and whether it is well. Pure.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Error;
use proto::v1::{NodeStatus, Role, StatusResponse};

/// What is put up with.
#[derive(Debug)]
pub(super) struct Limits {
    max_lag: Duration,
    /// By epoch, the revision that every node must have.
    wanted: BTreeMap<u64, u64>,
    /// The only node that matters.
    node: Option<String>,
}

/// All nodes, as all frontends see them.
#[derive(Debug)]
pub(super) struct Overview {
    /// The frontends that have answered, each once, with their addresses. Their nodes are in `nodes`.
    pub(super) frontends: Vec<(String, StatusResponse)>,
    /// Those that have not.
    pub(super) silent: Vec<(String, Error)>,
    /// Those with which something is wrong first, the worst of them first of all.
    pub(super) nodes: Vec<Row>,
    /// Streams of those who only look.
    pub(super) observers: usize,
}

/// One node.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) status: NodeStatus,
    /// The address of the frontend that it is connected to.
    pub(super) frontend: Option<String>,
    /// How many revisions of that frontend it is behind.
    pub(super) revisions_behind: u64,
    pub(super) state: State,
}

/// How a node is; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// No frontend has a stream to it.
    Absent,
    /// Somebody computes there what an agent would write, and nobody writes it.
    Shadow,
    /// It does not have what it should, for too long.
    Behind,
    /// It could not program everything.
    Failing,
    Well,
}

impl Limits {
    pub(super) fn new(max_lag: Duration, node: Option<String>) -> Self {
        Self { max_lag, wanted: BTreeMap::new(), node }
    }

    /// Every node must have what is committed at this moment.
    pub(super) fn want(&mut self, overview: &Overview) {
        let revisions = overview.frontends.iter().map(|(_, status)| (status.epoch, status.revision));
        self.wanted.extend(revisions);
    }

    fn state(&self, status: &NodeStatus, epoch: u64) -> State {
        let wanted = self.wanted.get(&epoch).copied().unwrap_or_default();
        if !status.connected {
            State::Absent
        } else if status.role() == Role::Shadow {
            State::Shadow
        } else if status.lag() > self.max_lag || status.programmed_revision < wanted {
            State::Behind
        } else if status.failure_count > 0 {
            State::Failing
        } else {
            State::Well
        }
    }
}

impl Overview {
    /// A frontend that was asked at two addresses counts once; of several streams of a node the newest speaks for it.
    pub(super) fn of(answers: Vec<(String, Result<StatusResponse, Error>)>, limits: &Limits) -> Self {
        let (mut frontends, mut silent) = (Vec::<(String, StatusResponse)>::new(), Vec::new());
        let (mut nodes, mut observers) = (BTreeMap::<String, Row>::new(), 0);
        for (address, answer) in answers {
            let mut status = match answer {
                Ok(status) => status,
                Err(error) => {
                    silent.push((address, error));
                    continue;
                }
            };
            if frontends.iter().any(|(_, known)| known.epoch == status.epoch) {
                continue;
            }
            for node in std::mem::take(&mut status.nodes) {
                if node.role() == Role::Observer {
                    observers += 1;
                    continue;
                }
                let row = Row {
                    frontend: node.connected.then(|| address.clone()),
                    revisions_behind: status.revision.saturating_sub(node.programmed_revision),
                    state: limits.state(&node, status.epoch),
                    status: node,
                };
                match nodes.get_mut(&row.status.node) {
                    Some(known) if !row.speaks_before(known) => {}
                    Some(known) => *known = row,
                    None => drop(nodes.insert(row.status.node.clone(), row)),
                }
            }
            frontends.push((address, status));
        }
        if let Some(name) = limits.node.as_ref().filter(|name| !nodes.contains_key(*name)) {
            nodes.insert(name.clone(), Row::unknown(name));
        }
        let mut nodes: Vec<_> = nodes.into_values().collect();
        nodes.sort_by_key(|row| (row.state, std::cmp::Reverse(row.weight()), row.status.node.clone()));
        Self { frontends, silent, nodes, observers }
    }

    /// Whether everything is as it should be, as far as frontends were asked.
    pub(super) fn is_well(&self) -> bool {
        let ready = self.frontends.iter().all(|(_, status)| status.ready);
        ready && self.nodes.iter().all(|row| row.state == State::Well)
    }

    /// How many nodes are so.
    pub(super) fn count(&self, state: State) -> usize {
        self.nodes.iter().filter(|row| row.state == state).count()
    }
}

impl Row {
    /// A node that no frontend has ever heard of.
    fn unknown(name: &str) -> Self {
        let status = NodeStatus {
            node: name.to_owned(),
            last_error: "no frontend knows such a node".to_owned(),
            ..NodeStatus::default()
        };
        Self { status, frontend: None, revisions_behind: 0, state: State::Absent }
    }

    /// A stream goes before none, an agent's before a shadow's, a newer one before an older one. Of two who miss the node, the one that saw it last knows best.
    fn speaks_before(&self, other: &Self) -> bool {
        let rank = |row: &Self| {
            let status = &row.status;
            (
                status.connected,
                status.role() != Role::Shadow,
                status.connected_micros,
                std::cmp::Reverse(status.lag_micros),
            )
        };
        rank(self) > rank(other)
    }

    /// How much of what is wrong there is, among nodes in the same state.
    fn weight(&self) -> u64 {
        match self.state {
            State::Absent | State::Behind => self.status.lag_micros,
            State::Failing => self.status.failure_count,
            State::Shadow | State::Well => 0,
        }
    }
}

/// Times, which travel as numbers.
pub(super) trait Times {
    fn lag(&self) -> Duration;
}

impl Times for NodeStatus {
    fn lag(&self) -> Duration {
        Duration::from_micros(self.lag_micros)
    }
}
