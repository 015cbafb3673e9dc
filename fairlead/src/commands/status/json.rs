//! The overview as JSON. Fields may be added, and are not renamed.

use proto::{
    model::{Epoch, SyncMode},
    v1::{self, DrainState, EndingPod, FailureKind, ServicePortFailure, StatusResponse, WatchPhase, WatchStatus},
};
use serde_json::{Value, json};

use super::{
    is_as_wanted,
    join::{NodeHealth, NodeRow, Overview},
    table::{addresses, key},
};
use crate::cli::StatusArgs;

pub(super) fn of(overview: &Overview, args: &StatusArgs) -> Value {
    let mut frontends = Vec::new();
    for (address, status) in &overview.frontends {
        frontends.push(frontend(address, status, overview, args));
    }
    let mut unreachable = Vec::new();
    for (address, error) in &overview.unreachable {
        unreachable.push(json!({ "address": address, "error": format!("{error:#}") }));
    }

    json!({
        "healthy": is_as_wanted(overview, args),
        "scope": overview.scope,
        "summary": {
            "nodes": overview.nodes.len(),
            "programmed": overview.nodes.iter().filter(|row| row.missing().is_none()).count(),
            "healthy": overview.count(NodeHealth::Healthy),
            "behind": overview.count(NodeHealth::Behind),
            "degraded": overview.count(NodeHealth::Degraded),
            "failing": overview.count(NodeHealth::Failing),
            "without_stream": overview.count(NodeHealth::Absent),
            "not_connected_here": overview.count(NodeHealth::Elsewhere),
            "shadow": overview.count(NodeHealth::Shadow),
            "observers": overview.observers,
        },
        "frontends": frontends,
        "unreachable_frontends": unreachable,
        "nodes": overview.nodes.iter().map(node).collect::<Vec<_>>(),
        "draining_pods": overview.ending_pods.iter().map(ending_pod).collect::<Vec<_>>(),
    })
}

fn frontend(address: &str, status: &StatusResponse, overview: &Overview, args: &StatusArgs) -> Value {
    // A frontend knows only the nodes that are connected to it, and with `--node` it reports on one node.
    let is_of_all_nodes = args.node.is_none() && overview.has_all_nodes();
    let programmed_on_all_nodes = if is_of_all_nodes { status.programmed_on_all_nodes } else { None };

    json!({
        "address": address,
        "version": status.version,
        // As text: JSON numbers are exact only up to 53 bits.
        "epoch": Epoch(status.epoch).to_string(),
        "ready": status.ready,
        "started_micros": status.started_micros,
        "revision": status.revision,
        "programmed_on_all_nodes": programmed_on_all_nodes,
        "nodes_without_backend": status.nodes_without_backend,
        "service_ports": status.service_ports,
        "endpoints": status.endpoints,
        "problems": status.problems,
        "watches": status.watches.iter().map(watch).collect::<Vec<_>>(),
    })
}

fn watch(watch: &WatchStatus) -> Value {
    let phase = match watch.phase() {
        WatchPhase::Listing | WatchPhase::Unspecified => "listing",
        WatchPhase::Watching => "watching",
        WatchPhase::NotOffered => "not_offered",
    };
    json!({
        "kind": watch.kind,
        "phase": phase,
        "age_micros": watch.age_micros,
        "lists": watch.lists,
        "failures": watch.failures,
        "last_error": watch.last_error,
    })
}

fn node(row: &NodeRow) -> Value {
    let NodeRow { status, state, frontend, revisions_behind } = row;
    let mode = SyncMode::ALL.into_iter().find(|mode| v1::SyncMode::from(*mode) == status.mode());
    json!({
        "node": status.node,
        "state": state,
        "connected": status.connected,
        "frontend": frontend,
        "backend": status.backend,
        "backend_version": status.backend_version,
        "mode": mode.map(SyncMode::name),
        "started_micros": status.started_micros,
        "connected_micros": status.connected_micros,
        "acked_revision": status.acked_revision,
        "programmed_revision": status.programmed_revision,
        "revisions_behind": revisions_behind,
        "lag_micros": status.lag_micros,
        "apply_micros": status.apply_micros,
        "repairs": status.repairs,
        "failure_count": status.failure_count,
        "failures": status.failures.iter().map(failure).collect::<Vec<_>>(),
        "degraded": status.degraded,
        "last_error": status.last_error,
    })
}

fn ending_pod(pod: &EndingPod) -> Value {
    let state = match pod.state() {
        DrainState::Unspecified => "unknown",
        DrainState::InUse => "in_use",
        DrainState::Behind => "behind",
        DrainState::Drained => "drained",
    };
    json!({
        "addresses": addresses(pod),
        "state": state,
        "services": pod.services,
        "behind": pod.behind,
        "waits_for_more": pod.waits_for_more,
        "ending_micros": pod.ending_micros,
    })
}

fn failure(failure: &ServicePortFailure) -> Value {
    let kind = match failure.kind() {
        FailureKind::Unspecified | FailureKind::Program => "program",
        FailureKind::HealthCheck => "health_check",
    };
    json!({ "key": key(failure.key.as_ref()), "reason": failure.reason, "retryable": failure.retryable, "kind": kind })
}
