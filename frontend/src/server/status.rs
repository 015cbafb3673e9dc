//! What the frontend says about itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::v1;

use crate::{StreamStatus, engine::Shared};

pub(super) fn response(shared: &Shared) -> v1::StatusResponse {
    let nodes = shared.streams.list().into_iter().map(node).collect();
    let problems = tls_problem(shared).into_iter().chain(problems(shared)).collect();
    let log = shared.log();
    v1::StatusResponse {
        epoch: log.epoch().0,
        revision: log.revision().0,
        service_ports: log.service_ports() as u64,
        endpoints: log.endpoints() as u64,
        nodes,
        problems,
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

fn node(status: StreamStatus) -> v1::NodeStatus {
    let StreamStatus {
        node,
        role,
        backend,
        backend_version,
        connected,
        mode,
        acked,
        apply_time,
        repairs,
        failures,
    } = status;
    v1::NodeStatus {
        node: node.to_string(),
        role: v1::Role::from(role).into(),
        backend,
        backend_version,
        acked_revision: acked.0,
        apply_micros: micros(apply_time),
        connected_micros: unix_micros(connected),
        mode: v1::Mode::from(mode).into(),
        repairs,
        failures: failures.iter().map(Into::into).collect(),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn unix_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, micros)
}
