//! What the frontend says about itself and its nodes, at once or when a revision is in every kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::{model::Revision, v1};
use runtime::Shutdown;
use tokio::time::timeout;
use tonic::Status;

use crate::{
    StreamStatus,
    engine::Shared,
    source::{KindFreshness, WatchPhase},
    streams::{Absent, Fleet},
};

/// The longest that an answer is put off.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// How many failures of a node are told when all nodes are asked for: one that can program nothing has as many as there are
/// service ports.
const FAILURES: usize = 10;

/// Puts off the answer as the request wants it.
pub(super) async fn wait(shared: &Shared, request: &v1::StatusRequest, mut shutdown: Shutdown) -> Result<(), Status> {
    let v1::StatusRequest { wait_millis, until_revision, until_epoch, node: _ } = request;
    let (epoch, revision) = {
        let log = shared.log();
        (log.epoch(), log.revision())
    };
    if *until_epoch != 0 && *until_epoch != epoch.0 {
        let message = format!("epoch {until_epoch} is over, this frontend's is {}", epoch.0);
        return Err(Status::failed_precondition(message));
    }
    if *wait_millis == 0 {
        return Ok(());
    }
    let wanted = if *until_revision == 0 { revision } else { Revision(*until_revision) };
    let reached = async {
        let mut revisions = shared.revisions();
        // Fails when the frontend is gone, which this is a part of.
        let _ = revisions.wait_for(|known| known.is_some_and(|known| known >= wanted)).await;
        shared.streams.until(wanted).await;
    };
    tokio::select! {
        _ = timeout(Duration::from_millis((*wait_millis).into()).min(MAX_WAIT), reached) => {}
        () = shutdown.recv() => {}
    }
    Ok(())
}

pub(super) fn response(shared: &Shared, request: &v1::StatusRequest) -> v1::StatusResponse {
    let fleet = shared.streams.fleet();
    let problems = tls_problem(shared).into_iter().chain(problems(shared)).collect();
    let watches = shared.freshness.snapshot().into_iter().map(kind).collect();
    let log = shared.log();
    v1::StatusResponse {
        epoch: log.epoch().0,
        revision: log.revision().0,
        service_ports: log.service_ports() as u64,
        endpoints: log.endpoints() as u64,
        nodes: nodes(&fleet, &request.node),
        problems,
        programmed_on_all_nodes: fleet.in_every_kernel().unwrap_or_else(|| log.revision()).0,
        nodes_without_backend: fleet.absent.len() as u64,
        ready: shared.is_ready(),
        started_micros: unix_micros(shared.started),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        watches,
    }
}

/// Files that have changed for the worse.
fn tls_problem(shared: &Shared) -> Option<v1::Problem> {
    let trouble = shared.tls.get()?.trouble()?;
    Some(v1::Problem { object: "TLS".to_owned(), field: "files".to_owned(), message: trouble })
}

fn problems(shared: &Shared) -> Vec<v1::Problem> {
    let index = shared.index();
    let problems = index.problems().flat_map(|(kind, name, problems)| {
        problems.into_iter().map(move |problem| v1::Problem {
            object: format!("{kind} {name}"),
            field: problem.field.clone(),
            message: problem.message.clone(),
        })
    });
    problems.collect()
}

/// All nodes, or the one that is asked for.
fn nodes(fleet: &Fleet, wanted: &str) -> Vec<v1::NodeStatus> {
    let failures = if wanted.is_empty() { FAILURES } else { usize::MAX };
    let is_wanted = |node: &str| wanted.is_empty() || node == wanted;
    let streams = fleet.agents.iter().chain(&fleet.observers).filter(|status| is_wanted(&status.node));
    let streams = streams.map(|status| connected(status, failures));
    let absent = fleet.absent.iter().filter(|absent| is_wanted(&absent.node)).map(without_stream);
    let nodes = streams.chain(absent).map(|status| {
        let last_error = fleet.last_error(&status.node).unwrap_or_default().to_owned();
        v1::NodeStatus { last_error, ..status }
    });
    nodes.collect()
}

fn connected(status: &StreamStatus, failures: usize) -> v1::NodeStatus {
    v1::NodeStatus {
        node: status.node.to_string(),
        role: v1::Role::from(status.role).into(),
        backend: status.backend.clone(),
        backend_version: status.backend_version.clone(),
        acked_revision: status.acked.0,
        apply_micros: micros(status.apply_time),
        connected_micros: unix_micros(status.connected),
        mode: v1::SyncMode::from(status.mode).into(),
        repairs: status.repairs,
        failures: status.failures.iter().take(failures).map(Into::into).collect(),
        failure_count: status.failures.len() as u64,
        connected: true,
        programmed_revision: status.held.0,
        lag_micros: micros(status.lag()),
        last_error: String::new(),
        started_micros: status.started.map_or(0, unix_micros),
    }
}

fn without_stream(absent: &Absent) -> v1::NodeStatus {
    v1::NodeStatus {
        node: absent.node.to_string(),
        role: v1::Role::Backend.into(),
        lag_micros: micros(absent.alone),
        ..v1::NodeStatus::default()
    }
}

fn kind(row: KindFreshness) -> v1::WatchStatus {
    let KindFreshness { kind, phase, age, lists, failures, last_error } = row;
    let phase = match phase {
        WatchPhase::Listing => v1::WatchPhase::Listing,
        WatchPhase::Watching => v1::WatchPhase::Watching,
        WatchPhase::NotOffered => v1::WatchPhase::NotOffered,
    };
    v1::WatchStatus {
        kind: kind.to_string(),
        phase: phase.into(),
        age_micros: age.map(micros),
        lists,
        failures,
        last_error: last_error.unwrap_or_default(),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn unix_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, micros)
}
