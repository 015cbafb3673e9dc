//! What the page shows, as numbers and tables of text, at one moment. The change log is locked for one digest bucket at
//! a time.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use k8s_openapi::jiff::Timestamp;
use proto::{
    digest::BUCKETS,
    model::{Revision, Role},
    v1::Problem,
};

use crate::{
    cluster::ClusterState,
    context::FrontendContext,
    drains::EndingPod,
    log::LoggedChange,
    streams::{Fleet, MAX_LISTED, StreamStatus},
    view::vip_addresses,
};

/// How long a node may lag before it is shown as behind, as in `fairlead status`.
const MAX_LAG: Duration = Duration::from_secs(5);

/// How many VIPs of a service port, or Services of a pod, a cell names. The others are counted.
const MAX_NAMED: usize = 8;

/// How many of the last changes the page shows and filters.
const MAX_CHANGES: usize = 200;

/// The columns of the tables: title, and CSS class of the cells.
const NODES: &[(&str, &str)] = &[
    ("Node", ""),
    ("State", "state"),
    ("Backend", ""),
    ("Version", ""),
    ("Revision", "number"),
    ("Lag", "number"),
    ("Rejected", "number"),
    ("Reason", ""),
];
const DRAINS: &[(&str, &str)] = &[("Draining pod", ""), ("Ending", "number"), ("Services", ""), ("Waits for", "")];
const PROBLEMS: &[(&str, &str)] = &[("Object", ""), ("Field", "code"), ("Problem", "")];
const CHANGES: &[(&str, &str)] = &[("Service port", ""), ("Change", ""), ("Time", ""), ("Revision", "number")];
const SERVICES: &[(&str, &str)] = &[("Service port", ""), ("Addresses", ""), ("Endpoints", "number")];

#[derive(Clone, Debug, Default)]
pub(super) struct PageModel {
    /// When this replica started.
    pub(super) started: String,
    pub(super) figures: Vec<Figure>,
    pub(super) tables: Vec<PageTable>,
}

/// A number at the top.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// `warn`, `bad` or none.
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) value: String,
    /// What is written beside it.
    pub(super) note: String,
}

/// A table, and the text that is shown when it is empty.
#[derive(Clone, Debug)]
pub(super) struct PageTable {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) columns: &'static [(&'static str, &'static str)],
    pub(super) empty_text: &'static str,
    pub(super) rows: Vec<PageRow>,
}

#[derive(Clone, Debug)]
pub(super) struct PageRow {
    /// `good`, `warn`, `bad` or none.
    pub(super) class: &'static str,
    /// One for each column.
    pub(super) cells: Vec<String>,
}

/// The condition of a node, worst first, as in `fairlead status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeCondition {
    /// Only a shadow follows it, which programs nothing.
    Shadow,
    /// It has not programmed a change for longer than [`MAX_LAG`].
    Behind,
    /// VIPs of an IP family are not served as a whole.
    Degraded,
    /// It rejected service ports.
    Failing,
    Healthy,
    /// It has no stream here, and may have one to another replica.
    Elsewhere,
}

impl PageModel {
    pub(super) fn of(context: &FrontendContext) -> Self {
        let FrontendContext { cluster, streams, started, .. } = context;
        let fleet = streams.fleet();
        let nodes = node_rows(&fleet);
        let (services, endpoints) = service_rows(cluster);
        let lost = context.lost_service_ports();
        let log = cluster.log();
        let revision = log.revision();
        let changes: Vec<_> = log.changes.iter().take(MAX_CHANGES).map(|change| change_row(change)).collect();
        // The index, which the problems lock, is never locked while the log is.
        drop(log);

        let problem_class = if lost.is_empty() { "warn" } else { "bad" };
        let lost_rows = lost.into_iter().map(|problem| PageRow { class: "bad", ..problem_row(problem) });
        let problems: Vec<_> = lost_rows.chain(context.other_problems().into_iter().map(problem_row)).collect();

        let pods = cluster.ending_pods();
        let undrained = pods.undrained(&fleet, MAX_LISTED);
        let undrained_count = pods.undrained_count(&fleet);
        drop(pods);

        let count = |condition| nodes.iter().filter(|(found, _)| *found == condition).count();
        let mut figures = Vec::new();
        if !cluster.is_ready() {
            figures.push(Figure { class: "bad", ..Figure::new("Not ready", "listing objects") });
        }
        figures.push(Figure::of_bad(problem_class, "Problems", problems.len()));
        figures.push(programmed(&fleet, revision));
        figures.push(Figure::new("Healthy", count(NodeCondition::Healthy)));
        figures.push(Figure::of_bad("bad", "Behind", count(NodeCondition::Behind)));
        figures.push(Figure::of_bad("warn", "With rejected service ports", count(NodeCondition::Failing)));
        for (condition, name) in [(NodeCondition::Degraded, "Degraded"), (NodeCondition::Shadow, "With only a shadow")]
        {
            if count(condition) > 0 {
                figures.push(Figure::of_bad("warn", name, count(condition)));
            }
        }
        figures.push(Figure::new("Not connected to this replica", count(NodeCondition::Elsewhere)));
        if undrained_count > 0 {
            figures.push(Figure::new("Draining pods", undrained_count));
        }
        let ports = Figure::new("Service ports", services.len());
        figures.push(Figure { note: format!("· {endpoints} endpoints"), ..ports });
        figures.push(Figure::new("Revision", revision));

        let table = |id, title, columns, empty_text, rows| PageTable { id, title, columns, empty_text, rows };
        let mut tables = vec![
            table("problems", "Problems", PROBLEMS, "No problems.", problems),
            table("nodes", "Nodes", NODES, "No nodes.", nodes.into_iter().map(|(_, row)| row).collect()),
        ];
        if undrained_count > 0 {
            let drains = undrained.iter().map(|pod| drain_row(pod, &fleet)).collect();
            tables.push(table("drains", "Draining pods", DRAINS, "None.", drains));
        }
        tables.push(table("changes", "Recent changes", CHANGES, "No changes since the start.", changes));
        tables.push(table("services", "Services", SERVICES, "No service ports.", services));
        Self { started: utc(*started), figures, tables }
    }
}

impl Figure {
    fn new(name: &'static str, value: impl ToString) -> Self {
        Self { class: "", name, value: value.to_string(), note: String::new() }
    }

    /// A number that should be 0.
    fn of_bad(class: &'static str, name: &'static str, count: usize) -> Self {
        Self { class: if count == 0 { "" } else { class }, ..Self::new(name, count) }
    }
}

impl PageRow {
    pub(super) fn of<const N: usize>(cells: [String; N]) -> Self {
        Self { class: "", cells: cells.into() }
    }
}

impl NodeCondition {
    /// The condition of a node whose backend is connected here.
    fn of(status: &StreamStatus) -> Self {
        match status.lag() {
            lag if lag > MAX_LAG => Self::Behind,
            _ if !status.degraded.is_empty() => Self::Degraded,
            _ if !status.failures.is_empty() => Self::Failing,
            _ => Self::Healthy,
        }
    }

    /// Its text and color.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Shadow => ("shadow", "warn"),
            Self::Behind => ("behind", "bad"),
            Self::Degraded => ("degraded", "warn"),
            Self::Failing => ("rejected", "warn"),
            Self::Healthy => ("ok", "good"),
            Self::Elsewhere => ("not connected to this replica", ""),
        }
    }
}

/// On how many nodes that are connected here the current revision is programmed.
fn programmed(fleet: &Fleet, revision: Revision) -> Figure {
    let is_complete = |status: &StreamStatus| {
        status.programmed >= revision && status.failures.is_empty() && status.degraded.is_empty()
    };
    let connected = fleet.current_backends().count();
    let complete = fleet.current_backends().filter(|status| is_complete(status)).count();

    let note = match connected {
        0 => "no node is connected to this replica".to_owned(),
        _ => format!("of the {connected} nodes connected to this replica"),
    };
    let class = if connected > 0 && complete == connected { "" } else { "warn" };
    Figure { class, note, ..Figure::new("Programmed on", complete) }
}

fn problem_row(Problem { object, field, message }: Problem) -> PageRow {
    PageRow::of([object, field, message])
}

/// The nodes by condition and name.
fn node_rows(fleet: &Fleet) -> Vec<(NodeCondition, PageRow)> {
    let mut rows = Vec::new();
    for status in fleet.current_backends() {
        let condition = NodeCondition::of(status);
        rows.push((condition, node_row(condition, status, fleet)));
    }

    // Of several shadows of a node the first is shown.
    let shadows = fleet.observers().into_iter().rev().filter(|status| status.role == Role::Shadow);
    let shadow_of: BTreeMap<_, _> = shadows.map(|status| (&status.node, status)).collect();
    for (node, _) in fleet.disconnected() {
        rows.push(match shadow_of.get(node) {
            Some(shadow) => (NodeCondition::Shadow, node_row(NodeCondition::Shadow, shadow, fleet)),
            None => (NodeCondition::Elsewhere, elsewhere_row(node, fleet)),
        });
    }

    rows.sort_by(|(left, one), (right, other)| (left, &one.cells).cmp(&(right, &other.cells)));
    rows
}

fn elsewhere_row(node: &str, fleet: &Fleet) -> PageRow {
    let (state, class) = NodeCondition::Elsewhere.describe();
    let mut cells = vec![node.to_owned(), state.to_owned()];
    cells.resize(NODES.len() - 1, String::new());
    cells.push(fleet.last_error(node).unwrap_or_default().to_owned());
    PageRow { class, cells }
}

fn node_row(condition: NodeCondition, status: &StreamStatus, fleet: &Fleet) -> PageRow {
    let (state, class) = condition.describe();
    let lag = status.lag();
    let failures = &status.failures;
    let known = |text: String, is_known: bool| if is_known { text } else { "–".to_owned() };
    let first_failure = failures.first().map(|failure| format!("{}: {}", failure.key, failure.reason));
    let first_failure = status.degraded.first().cloned().or(first_failure);

    let row = PageRow::of([
        status.node.to_string(),
        state.to_owned(),
        status.backend.clone(),
        status.backend_version.clone(),
        known(status.programmed.to_string(), status.programmed.0 > 0),
        known(duration_text(lag), lag.as_secs() > 0),
        failures.len().to_string(),
        first_failure.or(fleet.last_error(&status.node).map(str::to_owned)).unwrap_or_default(),
    ]);
    PageRow { class, ..row }
}

fn drain_row(pod: &EndingPod, fleet: &Fleet) -> PageRow {
    let drain = pod.drain(fleet);
    let reason = if pod.unused_since.is_none() {
        "another endpoint, or its EndpointSlice".to_owned()
    } else {
        let nodes: Vec<_> = drain.behind.iter().map(ToString::to_string).collect();
        let more = if drain.waits_for_more { " and more" } else { "" };
        format!("nodes {}{more}", nodes.join(","))
    };
    PageRow::of([list(&pod.addresses), duration_text(pod.since.elapsed()), list(&pod.services), reason])
}

fn change_row(LoggedChange { at, revision, key, summary, .. }: &LoggedChange) -> PageRow {
    let passed = duration_text(at.elapsed().unwrap_or_default());
    PageRow::of([key.to_string(), summary.clone(), format!("{passed} ago"), revision.to_string()])
}

/// The service ports by key, those that have lost their last endpoint first, and the number of their endpoints.
fn service_rows(cluster: &ClusterState) -> (Vec<PageRow>, usize) {
    let mut rows = Vec::new();
    let mut endpoints = 0;
    for bucket in 0..BUCKETS {
        let log = cluster.log();
        for (key, view) in log.bucket_views(bucket) {
            endpoints += view.endpoints();
            let addresses = list(vip_addresses(&view.port));
            let node_port = view.port.node_port.map(|number| format!("node port {number}"));
            let vips: Vec<_> = [addresses].into_iter().filter(|text| !text.is_empty()).chain(node_port).collect();

            let class = if log.lost.contains(key) { "bad" } else { "" };
            let row = PageRow::of([key.to_string(), vips.join(", "), view.endpoints().to_string()]);
            rows.push(PageRow { class, ..row });
        }
    }

    rows.sort_by(|one, other| (other.class, &one.cells).cmp(&(one.class, &other.cells)));
    (rows, endpoints)
}

/// The first texts, and how many others there are.
fn list<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let mut all = all.into_iter();
    let mut texts: Vec<_> = all.by_ref().take(MAX_NAMED).map(|one| one.to_string()).collect();
    let others = all.count();
    if others > 0 {
        texts.push(format!("and {others} more"));
    }
    texts.join(", ")
}

/// A time in RFC 3339 format, in seconds.
fn utc(at: SystemTime) -> String {
    format!("{:.0}", Timestamp::try_from(at).unwrap_or_default())
}

/// A duration in its two largest units.
fn duration_text(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds @ 3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_formatted() {
        let durations = [12, 61, 3_725, 90_000].map(|seconds| duration_text(Duration::from_secs(seconds)));
        assert_eq!(durations, ["12 s", "1 min 1 s", "1 h 2 min", "1 d 1 h"]);
        assert_eq!(duration_text(Duration::from_millis(40)), "40 ms");
        for (unix, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_millis(unix * 1000 + 999)), expected);
        }
    }
}
