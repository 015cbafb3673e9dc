//! The overview as a table with a summary.

use std::{
    collections::BTreeSet,
    fmt::{Display, Write as _},
};

use proto::{
    convert::unpack_address,
    model::ServicePortKey,
    v1::{self, DrainState, EndingPod, StatusResponse, WatchPhase, WatchStatus},
};

use super::join::{MissingPart, NodeHealth, NodeRow, Overview, Scope, unconfirmed};
use crate::{
    cli::{SHOWN_NODES, StatusArgs},
    table::TextTable,
};

const NOT_CONNECTED_HERE: &str = "not connected to this replica";

/// Empty if no frontend answered.
pub(super) fn render(overview: &Overview, args: &StatusArgs) -> String {
    let mut text = String::new();
    if overview.frontends.is_empty() {
        return text;
    }
    if args.problems {
        problems(&mut text, overview);
        watches(&mut text, overview);
    } else {
        let shown = if args.all { overview.nodes.len() } else { SHOWN_NODES };
        nodes(&mut text, overview, shown);
        ending_pods(&mut text, overview);
    }
    if args.node.is_some() {
        failures(&mut text, overview);
    }
    let _ = writeln!(text, "{}", summary(overview, args));
    text
}

fn nodes(text: &mut String, overview: &Overview, shown: usize) {
    let mut header = vec!["NODE", "BACKEND", "VERSION", "REVISION", "LAG", "APPLIED IN", "STATE"];
    let has_several_frontends = overview.frontends.len() > 1;
    if has_several_frontends {
        header.push("FRONTEND");
    }

    let mut table = TextTable::new(&header);
    for row in overview.nodes.iter().take(shown) {
        let mut cells = cells(row).to_vec();
        if has_several_frontends {
            cells.push(row.frontend.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    let _ = write!(text, "{table}");

    if overview.nodes.len() > shown {
        let _ = writeln!(text, "{}", hidden(&overview.nodes[shown..]));
    }
}

fn cells(row: &NodeRow) -> [String; 7] {
    let status = &row.status;
    let mut revision = String::new();
    let mut applied_in = String::new();
    if status.connected {
        revision = status.programmed_revision.to_string();
        // Zero is unknown.
        if status.apply_micros > 0 {
            applied_in = short(status.apply_micros);
        }
    }
    let node = status.node.clone();
    [node, status.backend.clone(), status.backend_version.clone(), revision, lag(row), applied_in, state(row)]
}

/// A line about the nodes that are not listed.
fn hidden(rows: &[NodeRow]) -> String {
    let count = |state| rows.iter().filter(|row| row.state == state).count();
    let healthy = count(NodeHealth::Healthy);
    let elsewhere = count(NodeHealth::Elsewhere);
    let others = rows.len() - healthy - elsewhere;

    let mut text = format!("... and {} more: {healthy} healthy, {others} not", rows.len());
    if elsewhere > 0 {
        let _ = write!(text, ", {elsewhere} {NOT_CONNECTED_HERE}");
    }
    text + " (--all lists them)"
}

/// The time, and the number of revisions of a node that has programmed one.
fn lag(row: &NodeRow) -> String {
    let status = &row.status;
    if row.state == NodeHealth::Elsewhere || status.lag_micros == 0 {
        return String::new();
    }
    let time = short(status.lag_micros);
    match row.revisions_behind {
        behind if behind > 0 && status.programmed_revision > 0 => format!("{time} ({behind})"),
        _ => time,
    }
}

/// What is wrong with a node, or `ok`.
fn state(row: &NodeRow) -> String {
    let status = &row.status;
    let mut problems = Vec::new();
    match row.state {
        NodeHealth::Absent => problems.push("no stream".to_owned()),
        NodeHealth::Behind => problems.push("behind".to_owned()),
        NodeHealth::Shadow => problems.push("shadow".to_owned()),
        NodeHealth::Elsewhere => problems.push(NOT_CONNECTED_HERE.to_owned()),
        NodeHealth::Degraded | NodeHealth::Failing | NodeHealth::Healthy => {}
    }
    if let Some(first) = status.failures.first() {
        let more = match status.failure_count.saturating_sub(1) {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        problems.push(format!("rejected: {} ({}){more}", key(first.key.as_ref()), first.reason));
    }
    problems.extend(status.degraded.iter().map(|reason| format!("degraded: {reason}")));
    if !status.last_error.is_empty() {
        problems.push(status.last_error.clone());
    }

    if problems.is_empty() { "ok".to_owned() } else { problems.join(", ") }
}

/// A service port in its usual form; an invalid service port as it was received.
pub(super) fn key(key: Option<&v1::ServicePortKey>) -> String {
    let Some(key) = key else { return String::new() };
    let parsed = ServicePortKey::try_from(key.clone());
    parsed.map_or_else(|_| format!("{}/{}", key.namespace, key.name), |key| key.to_string())
}

/// All service ports that the node rejected.
fn failures(text: &mut String, overview: &Overview) {
    let failures: Vec<_> = overview.nodes.iter().flat_map(|row| &row.status.failures).collect();
    if failures.is_empty() {
        return;
    }

    let mut table = TextTable::new(&["REJECTED", "RETRIED", "REASON"]);
    for failure in failures {
        let retried = if failure.retryable { "yes" } else { "no" };
        table.row([&*key(failure.key.as_ref()), retried, &failure.reason]);
    }
    let _ = write!(text, "\n{table}\n");
}

/// The pods that end and to which nodes may still send new connections.
fn ending_pods(text: &mut String, overview: &Overview) {
    if overview.ending_pods.is_empty() {
        return;
    }

    let mut table = TextTable::new(&["DRAINING POD", "ENDING", "SERVICES", "WAITS FOR"]);
    for pod in &overview.ending_pods {
        let since = short(pod.ending_micros);
        table.row([addresses(pod).join(","), since, pod.services.join(","), waits_for(pod)]);
    }
    let _ = write!(text, "\n{table}\n");
}

/// The addresses of a pod; invalid addresses are left out.
pub(super) fn addresses(pod: &EndingPod) -> Vec<String> {
    let addresses = pod.addresses.iter().filter_map(|bytes| unpack_address(bytes, "addresses").ok());
    addresses.map(|address| address.to_string()).collect()
}

fn waits_for(pod: &EndingPod) -> String {
    match pod.state() {
        DrainState::Unspecified | DrainState::Drained => String::new(),
        DrainState::InUse => "another endpoint, or its EndpointSlice".to_owned(),
        DrainState::Behind => {
            let more = if pod.waits_for_more { " and more" } else { "" };
            format!("nodes {}{more}", pod.behind.join(","))
        }
    }
}

/// Problems, each once although all frontends report it.
fn problems(text: &mut String, overview: &Overview) {
    let mut known = BTreeSet::new();
    let mut problems = Vec::new();
    for (_, status) in &overview.frontends {
        for problem in &status.problems {
            if known.insert([&problem.object, &problem.field, &problem.message]) {
                problems.push(problem);
            }
        }
    }
    if !problems.is_empty() {
        let _ = writeln!(text, "{}", TextTable::of_problems(problems));
    }
}

/// The watches of each frontend.
fn watches(text: &mut String, overview: &Overview) {
    if overview.frontends.iter().all(|(_, status)| status.watches.is_empty()) {
        return;
    }
    let mut table = TextTable::new(&["FRONTEND", "KIND", "CONFIRMED", "LISTS", "FAILURES", "LAST ERROR"]);
    for (address, status) in &overview.frontends {
        for watch in &status.watches {
            let WatchStatus { kind, lists, failures, last_error, .. } = watch;
            table.row([address as &dyn Display, kind, &confirmed(watch), lists, failures, last_error]);
        }
    }
    let _ = writeln!(text, "{table}");
}

fn confirmed(watch: &WatchStatus) -> String {
    match (watch.phase(), watch.age_micros) {
        (WatchPhase::NotOffered, _) => "not offered".to_owned(),
        (_, Some(age)) => format!("{} ago", short(age)),
        (_, None) => "never".to_owned(),
    }
}

/// A line about the states of the nodes, one about the revision that they have, and one about each frontend.
fn summary(overview: &Overview, args: &StatusArgs) -> String {
    let count = |state| overview.count(state);
    let without_stream = match overview.scope {
        Scope::AllReplicas => format!("{} without a stream", count(NodeHealth::Absent)),
        Scope::OneReplica => format!("{} {NOT_CONNECTED_HERE}", count(NodeHealth::Elsewhere)),
    };

    let mut text = format!(
        "{} nodes: {} healthy, {} behind, {} with rejected service ports, {without_stream}",
        overview.nodes.len(),
        count(NodeHealth::Healthy),
        count(NodeHealth::Behind),
        count(NodeHealth::Failing),
    );
    for (state, name) in [(NodeHealth::Degraded, "degraded"), (NodeHealth::Shadow, "with only a shadow")] {
        if count(state) > 0 {
            let _ = write!(text, "; {} {name}", count(state));
        }
    }
    if overview.observers > 0 {
        let _ = write!(text, "; {} observers", overview.observers);
    }

    if args.node.is_none() {
        let _ = write!(text, "\n{}", programmed(overview));
    }
    for (address, status) in &overview.frontends {
        let _ = write!(text, "\n{address}: {}", frontend(status));
    }
    text
}

/// On how many nodes the current revision is programmed, and what the others lack.
fn programmed(overview: &Overview) -> String {
    // A frontend does not know what nodes of other replicas lack.
    let counted = overview.nodes.iter().filter(|row| row.state != NodeHealth::Elsewhere);
    let lacking: Vec<_> = counted.map(NodeRow::missing).collect();
    let all = lacking.len();
    let programmed = lacking.iter().filter(|missing| missing.is_none()).count();
    let mut text = match overview.scope {
        Scope::AllReplicas if all == 0 => "no node is known".to_owned(),
        Scope::AllReplicas if programmed == all => format!("programmed on all {all} nodes"),
        Scope::AllReplicas => format!("programmed on {programmed} of {all} nodes"),
        Scope::OneReplica if all == 0 => "no node is connected to this replica".to_owned(),
        Scope::OneReplica => format!("programmed on {programmed} of the {all} nodes connected to this replica"),
    };

    let mut separator = "; ";
    for (missing, one, several) in [
        (MissingPart::Stream, "has no stream", "have no stream"),
        (MissingPart::Backend, "has only a shadow", "have only a shadow"),
        (MissingPart::Revision, "has an older revision", "have an older revision"),
        (MissingPart::ServicePorts, "rejects service ports", "reject service ports"),
    ] {
        let count = lacking.iter().filter(|lacks| **lacks == Some(missing)).count();
        if count > 0 {
            let _ = write!(text, "{separator}{count} {}", if count == 1 { one } else { several });
            separator = ", ";
        }
    }
    text
}

fn frontend(status: &StatusResponse) -> String {
    let StatusResponse { revision, service_ports, endpoints, programmed_on_all_nodes, .. } = status;
    let programmed = match *programmed_on_all_nodes {
        None => ", no connected node".to_owned(),
        Some(0) => ", not yet on every connected node".to_owned(),
        Some(programmed) if programmed >= *revision => " on every connected node".to_owned(),
        Some(programmed) => format!(", {programmed} on every connected node"),
    };

    let mut text = format!("revision {revision}{programmed}, {service_ports} service ports, {endpoints} endpoints");
    if !status.ready {
        text.push_str(", not ready: first list of all objects pending");
    }
    if let Some(age) = unconfirmed(status).filter_map(|watch| watch.age_micros).max() {
        let kinds: Vec<_> = unconfirmed(status).map(|watch| watch.kind.as_str()).collect();
        let _ = write!(
            text,
            ", does not follow the API: {} not confirmed for {} (--problems has the errors)",
            kinds.join(", "),
            short(age)
        );
    }
    if !status.problems.is_empty() {
        let _ = write!(text, ", {} problems (--problems lists them)", status.problems.len());
    }
    text
}

/// Microseconds in the largest one or two units.
pub(super) fn short(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    match seconds {
        0 if micros < 1000 => format!("{micros}us"),
        0 => format!("{}ms", micros / 1000),
        1..60 => format!("{seconds}.{}s", micros % 1_000_000 / 100_000),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}
