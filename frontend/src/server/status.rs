//! The call `Status`: the state of the frontend and its nodes, at once or when all connected nodes have programmed a
//! revision.

use std::time::Duration;

use proto::{
    convert::{micros, unix_micros},
    model::Revision,
    v1,
};
use runtime::Shutdown;
use tokio::time::timeout;
use tonic::Status;

use crate::{
    context::FrontendContext,
    drains::levels::ending_pod,
    identity::Identity,
    source::KindFreshness,
    streams::{Fleet, MAX_LISTED, StreamStatus},
};

/// The longest that a response is delayed, whatever the request asks for. A command asks again.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// How many failures of each node a response for all nodes contains. A node that can program nothing has one for every
/// service port.
const MAX_FAILURES: usize = 10;

/// Waits as long as the request asks for.
pub(super) async fn wait(
    context: &FrontendContext,
    request: &v1::StatusRequest,
    mut shutdown: Shutdown,
) -> Result<(), Status> {
    let v1::StatusRequest { wait_millis, until_revision, until_epoch, node: _ } = request;
    let epoch = context.cluster.epoch.0;
    if *until_epoch != 0 && *until_epoch != epoch {
        let message =
            format!("until_epoch: is {until_epoch}, but the epoch of this frontend is {epoch}: it has restarted");
        return Err(Status::failed_precondition(message));
    }
    if *wait_millis == 0 {
        return Ok(());
    }

    let current = context.cluster.log().revision();
    let wanted = if *until_revision == 0 { current } else { Revision(*until_revision) };
    let reached = async {
        let mut revisions = context.cluster.revisions();
        // Fails only after the frontend has been dropped.
        let _ = revisions.wait_for(|current| current.is_some_and(|current| current >= wanted)).await;
        context.streams.wait_programmed(wanted).await;
    };
    tokio::select! {
        _ = timeout(Duration::from_millis((*wait_millis).into()).min(MAX_WAIT), reached) => {}
        () = shutdown.recv() => {}
    }
    Ok(())
}

/// To clients that see the cluster: with the problems of objects, and the pods that wait.
pub(super) fn response(
    context: &FrontendContext,
    request: &v1::StatusRequest,
    client: &Identity,
) -> v1::StatusResponse {
    let fleet = context.streams.fleet();
    let watches = context.freshness.snapshot().into_iter().map(kind).collect();
    let log = context.cluster.log();
    let revision = log.revision().0;
    let service_ports = log.service_ports as u64;
    let endpoints = log.endpoints as u64;
    // Commits need the log.
    drop(log);

    let response = v1::StatusResponse {
        revision,
        service_ports,
        endpoints,
        nodes: nodes(&fleet, &request.node),
        programmed_on_all_nodes: fleet.programmed_on_all_nodes().map(|revision| revision.0),
        nodes_without_backend: fleet.disconnected().count() as u64,
        ready: context.cluster.is_ready(),
        started_micros: unix_micros(context.started),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: context.cluster.epoch.0,
        watches,
        ..v1::StatusResponse::default()
    };
    if !client.sees_cluster() {
        return response;
    }

    let pods = context.cluster.ending_pods();
    let undrained = pods.undrained(&fleet, MAX_LISTED);
    let undrained_count = pods.undrained_count(&fleet);
    drop(pods);
    v1::StatusResponse {
        problems: context.problems(),
        ending_pods: undrained.iter().map(|pod| ending_pod(pod, &fleet)).collect(),
        ending_pod_count: undrained_count as u64,
        ..response
    }
}

/// All nodes, or the one that was requested.
fn nodes(fleet: &Fleet, wanted: &str) -> Vec<v1::NodeStatus> {
    let failures = if wanted.is_empty() { MAX_FAILURES } else { usize::MAX };
    let is_wanted = |node: &str| wanted.is_empty() || node == wanted;
    let mut nodes = Vec::new();
    for status in fleet.backends().chain(fleet.observers()).filter(|status| is_wanted(&status.node)) {
        nodes.push(connected(status, failures));
    }
    for (node, duration) in fleet.disconnected().filter(|(node, _)| is_wanted(node)) {
        nodes.push(v1::NodeStatus {
            node: node.to_string(),
            role: v1::Role::Backend.into(),
            lag_micros: micros(duration),
            ..v1::NodeStatus::default()
        });
    }

    for status in &mut nodes {
        status.last_error = fleet.last_error(&status.node).unwrap_or_default().to_owned();
    }
    nodes
}

/// A node with a stream, without the last error.
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
        programmed_revision: status.programmed.0,
        lag_micros: micros(status.lag()),
        last_error: String::new(),
        started_micros: status.started.map_or(0, unix_micros),
        degraded: status.degraded.clone(),
    }
}

fn kind(row: KindFreshness) -> v1::WatchStatus {
    let age_micros = row.age().map(micros);
    let KindFreshness { kind, phase, confirmed: _, lists, failures, last_error } = row;
    v1::WatchStatus {
        kind: kind.to_string(),
        phase: phase.into(),
        age_micros,
        lists,
        failures,
        last_error: last_error.unwrap_or_default(),
    }
}
