//! Renders the model as HTML. Every text is escaped by [`Escaped`].

use std::{
    fmt::{Display, Write as _},
    time::{Duration, SystemTime},
};

use k8s_openapi::jiff::Timestamp;

use super::{
    html::{Escaped, WrappableName},
    model::{DrainRow, NodeCondition, NodeRow, PageModel, ServiceRow},
    query::PageQuery,
};
use crate::{
    change_history::{ChangeKind, ChangeRecord},
    context::ReportedProblem,
};

/// How many rows of a table are shown by default.
pub(super) const DEFAULT_ROWS: usize = 100;

/// A table, and the text that is shown when it is empty.
struct HtmlTable<'a> {
    id: &'static str,
    title: &'static str,
    columns: &'a [&'static str],
    empty_text: &'static str,
}

/// The whole page.
pub(super) fn page(model: &PageModel, query: &PageQuery) -> String {
    let all = if query.show_all { r#"<input type="hidden" name="all" value="1">"# } else { "" };
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Fairlead</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="page.css">
<script src="page.js" defer></script>
</head>
<body>
<header>
<h1><img src="icon.svg" alt="" width="28" height="28">Fairlead <small>{version}</small></h1>
<form role="search" action="." method="get">
<label for="q">Filter</label>
<input id="q" name="q" type="search" value="{filter}" placeholder="node, service, address, state"
    autocomplete="off" spellcheck="false">
{all}<button>Filter</button>
</form>
</header>
<main id="live">
{live}</main>
<footer><p id="stale" role="status" hidden>This frontend does not respond. The page shows its last known state.</p>
<p>Each replica shows the nodes that are connected to it. This one started at {started}.</p></footer>
</body>
</html>
"#,
        version = Escaped(env!("CARGO_PKG_VERSION")),
        filter = Escaped(&query.filter),
        live = live(model, query),
        started = utc(model.started),
    )
}

/// The part of the page that changes.
pub(super) fn live(model: &PageModel, query: &PageQuery) -> String {
    let mut html = summary(model);
    let nodes = model
        .nodes
        .iter()
        .filter(|node| query.matches(&[&node.name, &node.backend, label(node.condition), &node.error]));
    let columns = ["Node", "State", "Backend", "Revision", "Behind", "Failures"];
    let table = HtmlTable { id: "nodes", title: "Nodes", columns: &columns, empty_text: "No nodes." };
    table.write(&mut html, nodes, query, node_row);

    if model.waiting_drains > 0 {
        let drains = model.drains.iter();
        let drains = drains.filter(|drain| query.matches(&[&drain.addresses, &drain.services, &drain.reason]));
        let columns = ["Pod", "Services", "Waits for", "Waiting"];
        let table = HtmlTable { id: "drains", title: "Draining pods", columns: &columns, empty_text: "None." };
        table.write(&mut html, drains, query, |DrainRow { addresses, services, reason, waited }, html| {
            let waited = duration_text(*waited);
            let row: [(&str, &dyn Display); 4] =
                [("", &Escaped(addresses)), ("", &Escaped(services)), ("", &Escaped(reason)), ("number", &waited)];
            cells(html, &row);
        });
    }

    let problems =
        model.problems.iter().filter(|problem| query.matches(&[&problem.object, &problem.field, &problem.message]));
    let columns = ["Object", "Field", "Problem"];
    let table = HtmlTable { id: "problems", title: "Problems", columns: &columns, empty_text: "No problems." };
    table.write(&mut html, problems, query, |ReportedProblem { object, field, message }, html| {
        cells(html, &[("", &Escaped(object)), ("code", &Escaped(field)), ("", &Escaped(message))])
    });

    let changes = model.changes.iter().filter(|change| query.matches(&[&change.key.to_string()]));
    let columns = ["Service port", "Change", "Time", "Revision"];
    let table = HtmlTable {
        id: "changes",
        title: "Recent changes",
        columns: &columns,
        empty_text: "No changes since the start.",
    };
    table.write(&mut html, changes, query, |ChangeRecord { at, revision, key, kind }, html| {
        let ago = ago(*at, model.now);
        cells(html, &[("", &WrappableName(key)), ("", &change_label(*kind)), ("", &ago), ("number", revision)])
    });

    let services = model.services.iter().filter(|service| {
        let vips = service.vips.iter().map(String::as_str);
        query.matches(&std::iter::once(service.key.as_str()).chain(vips).collect::<Vec<_>>())
    });
    let columns = ["Service port", "Addresses", "Endpoints"];
    let table = HtmlTable { id: "services", title: "Services", columns: &columns, empty_text: "No service ports." };
    table.write(&mut html, services, query, |ServiceRow { key, vips, endpoints }, html| {
        let addresses = vips.iter().map(|vip| format!("<span>{}</span>", Escaped(vip))).collect::<Vec<_>>().join(" ");
        cells(html, &[("", &WrappableName(key)), ("addresses", &addresses), ("number", endpoints)])
    });
    html
}

/// The numbers at the top.
fn summary(model: &PageModel) -> String {
    let disconnected = model.count(NodeCondition::Disconnected);
    let behind = model.count(NodeCondition::Behind);
    let failing = model.count(NodeCondition::Failing);
    let shadows = model.count(NodeCondition::Shadow);
    let up_to_date = model.count(NodeCondition::UpToDate);
    let class = |count: usize, class: &'static str| if count == 0 { "" } else { class };
    let mut html = String::from("<dl class=\"figures\">\n");
    let mut figure = |class: &str, name: &str, value: &dyn Display| {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(html, "<div class=\"{class}\"><dt>{name}</dt><dd>{value}</dd></div>");
    };
    if !model.is_ready {
        figure("bad", "Not ready", &"listing objects");
    }
    figure("", "Nodes up to date", &format_args!("{up_to_date}<small> of {}</small>", model.nodes.len()));
    figure(class(disconnected, "bad"), "Disconnected", &disconnected);
    figure(class(behind, "bad"), "Behind", &behind);
    figure(class(failing, "warn"), "With failures", &failing);
    if shadows > 0 {
        figure("warn", "Shadows", &shadows);
    }
    figure(class(model.problems.len(), "warn"), "Problems", &model.problems.len());
    if model.waiting_drains > 0 {
        figure("", "Draining pods", &model.waiting_drains);
    }
    let ports = model.services.len();
    figure("", "Service ports", &format_args!("{ports}<small> · {} endpoints</small>", model.endpoints));
    let programmed = model.programmed_on_all_nodes;
    figure("", "Revision", &format_args!("{}<small> · on all nodes {programmed}</small>", model.revision));
    html.push_str("</dl>\n");
    html
}

fn node_row(node: &NodeRow, html: &mut String) {
    let NodeRow { name, condition, backend, programmed, lag, failures, error } = node;
    let class = match condition {
        NodeCondition::Disconnected | NodeCondition::Behind => "bad",
        NodeCondition::Failing | NodeCondition::Shadow => "warn",
        NodeCondition::UpToDate => "good",
    };
    let error = if error.is_empty() { String::new() } else { format!("<small>{}</small>", Escaped(error)) };
    let state = format!("<span class=\"state {class}\">{}</span>{error}", label(*condition));
    let programmed = programmed.map_or_else(|| "–".to_owned(), |revision| revision.to_string());
    let lag = match condition {
        NodeCondition::UpToDate | NodeCondition::Shadow | NodeCondition::Failing if lag.as_secs() == 0 => {
            "–".to_owned()
        }
        _ => duration_text(*lag),
    };
    let failures: &dyn Display = if *condition == NodeCondition::Disconnected { &"–" } else { failures };
    cells(
        html,
        &[
            ("", &Escaped(name)),
            ("", &state),
            ("", &Escaped(backend)),
            ("number", &programmed),
            ("number", &lag),
            ("number", failures),
        ],
    );
}

fn label(condition: NodeCondition) -> &'static str {
    match condition {
        NodeCondition::Disconnected => "disconnected",
        NodeCondition::Behind => "behind",
        NodeCondition::Failing => "failures",
        NodeCondition::Shadow => "shadow",
        NodeCondition::UpToDate => "up to date",
    }
}

fn change_label(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Changed => "changed",
        ChangeKind::Endpoints => "endpoints",
    }
}

impl HtmlTable<'_> {
    /// Writes the table with these rows, up to the row limit.
    fn write<T>(
        &self,
        html: &mut String,
        rows: impl Iterator<Item = T>,
        query: &PageQuery,
        mut row: impl FnMut(T, &mut String),
    ) {
        let Self { id, title, columns, empty_text } = self;
        let (mut body, mut count) = (String::new(), 0);
        for content in rows {
            count += 1;
            if count <= DEFAULT_ROWS || query.show_all {
                body.push_str("<tr>");
                row(content, &mut body);
                body.push_str("</tr>\n");
            }
        }
        let _ =
            writeln!(html, "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title} <small>{count}</small></h2>");
        if count == 0 {
            let text = if query.filter.is_empty() { empty_text } else { "No rows match the filter." };
            let _ = writeln!(html, "<p class=\"empty\">{text}</p>\n</section>");
            return;
        }
        // Wide tables scroll horizontally, also by keyboard.
        let _ = writeln!(
            html,
            "<div class=\"table\" role=\"region\" aria-labelledby=\"{id}\" tabindex=\"0\"><table>\n<thead><tr>"
        );
        for column in *columns {
            let class = if is_number(column) { " class=\"number\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{column}</th>");
        }
        let _ = writeln!(html, "</tr></thead>\n<tbody>\n{body}</tbody></table></div>");
        if count > DEFAULT_ROWS && !query.show_all {
            let _ = writeln!(
                html,
                "<p class=\"more\">{DEFAULT_ROWS} of {count} shown. <a href=\"?q={}&amp;all=1\">Show all</a></p>",
                query.encoded_filter()
            );
        }
        html.push_str("</section>\n");
    }
}

fn is_number(column: &str) -> bool {
    matches!(column, "Revision" | "Behind" | "Failures" | "Endpoints")
}

/// Writes the cells of a row, each with its class and HTML; the first one is the row header.
fn cells(html: &mut String, cells: &[(&str, &dyn Display)]) {
    for (at, (class, content)) in cells.iter().enumerate() {
        let class: &dyn Display = if class.is_empty() { &"" } else { &format_args!(" class=\"{class}\"").to_string() };
        let _ = match at {
            0 => write!(html, "<th scope=\"row\"{class}>{content}</th>"),
            _ => write!(html, "<td{class}>{content}</td>"),
        };
    }
}

/// A time in RFC 3339 format, in seconds.
fn utc(at: SystemTime) -> String {
    format!("{:.0}", Timestamp::try_from(at).unwrap_or_default())
}

/// How long ago a time was, with the time itself as an attribute.
fn ago(at: SystemTime, now: SystemTime) -> String {
    let passed = now.duration_since(at).unwrap_or_default();
    format!("<time datetime=\"{}\">{} ago</time>", utc(at), duration_text(passed))
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
