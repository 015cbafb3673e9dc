//! The model as HTML. Each text goes through [`Text`].

use std::{
    fmt::{self, Display, Write as _},
    time::{Duration, SystemTime},
};

use super::{
    html::{Name, Text},
    model::{Condition, Model, NodeRow, ProblemRow, ServiceRow},
    query::{Extent, Query},
};
use crate::change_history::{ChangeKind, ChangeRecord};

/// How many rows of a table are shown at first.
pub(super) const ROWS: usize = 100;

/// A table, and what is said when there is nothing in it.
struct Table<'a> {
    id: &'static str,
    title: &'static str,
    columns: &'a [&'static str],
    nothing: &'static str,
}

/// The whole page.
pub(super) fn page(model: &Model, query: &Query) -> String {
    let all = if query.extent == Extent::All { r#"<input type="hidden" name="all" value="1">"# } else { "" };
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
<input id="q" name="q" type="search" value="{filter}" placeholder="node, service, address, state" autocomplete="off" spellcheck="false">
{all}<button>Filter</button>
</form>
</header>
<main id="live">
{live}</main>
<footer><p id="stale" role="status" hidden>This frontend does not answer. What is shown is not the present.</p>
<p>Each replica shows the nodes that are connected to it. This one has been running since {started}.</p></footer>
</body>
</html>
"#,
        version = Text(env!("CARGO_PKG_VERSION")),
        filter = Text(&query.filter),
        live = live(model, query),
        started = utc(model.started),
    )
}

/// The part of it that changes.
pub(super) fn live(model: &Model, query: &Query) -> String {
    let mut html = figures(model);
    let nodes = model
        .nodes
        .iter()
        .filter(|node| query.wants(&[&node.name, &node.backend, label(node.condition), &node.trouble]));
    let columns = ["Node", "State", "Backend", "Revision", "Behind", "Failures"];
    let table = Table { id: "nodes", title: "Nodes", columns: &columns, nothing: "No node." };
    table.write(&mut html, nodes, query, node_row);

    let problems =
        model.problems.iter().filter(|problem| query.wants(&[&problem.object, &problem.field, &problem.message]));
    let columns = ["Object", "Field", "What is wrong"];
    let table =
        Table { id: "problems", title: "Problems", columns: &columns, nothing: "Nothing is wrong with any object." };
    table.write(&mut html, problems, query, |ProblemRow { object, field, message }, html| {
        cells(html, &[("", &Text(object)), ("code", &Text(field)), ("", &Text(message))])
    });

    let changes = model.changes.iter().filter(|change| query.wants(&[&change.key.to_string()]));
    let columns = ["Service port", "What", "When", "Revision"];
    let table =
        Table { id: "changes", title: "Changed lately", columns: &columns, nothing: "Nothing since the start." };
    table.write(&mut html, changes, query, |ChangeRecord { at, revision, key, what }, html| {
        let ago = ago(*at, model.now);
        cells(html, &[("", &Name(key)), ("", &happened(*what)), ("", &ago), ("number", revision)])
    });

    let services = model.services.iter().filter(|service| {
        let vips = service.vips.iter().map(String::as_str);
        query.wants(&std::iter::once(service.key.as_str()).chain(vips).collect::<Vec<_>>())
    });
    let columns = ["Service port", "Addresses", "Endpoints"];
    let table = Table { id: "services", title: "Services", columns: &columns, nothing: "No service port." };
    table.write(&mut html, services, query, |ServiceRow { key, vips, endpoints }, html| {
        let addresses = vips.iter().map(|vip| format!("<span>{}</span>", Text(vip))).collect::<Vec<_>>().join(" ");
        cells(html, &[("", &Name(key)), ("addresses", &addresses), ("number", endpoints)])
    });
    html
}

/// The figures at the top.
fn figures(model: &Model) -> String {
    let [absent, behind, failing, shadows, well] =
        [Condition::Absent, Condition::Behind, Condition::Failing, Condition::Shadow, Condition::Well]
            .map(|condition| model.count(condition));
    let class = |count: usize, class: &'static str| if count == 0 { "" } else { class };
    let mut html = String::from("<dl class=\"figures\">\n");
    let mut figure = |class: &str, name: &str, value: &dyn Display| {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(html, "<div class=\"{class}\"><dt>{name}</dt><dd>{value}</dd></div>");
    };
    if !model.is_ready {
        figure("bad", "Not ready", &"waiting for the first list");
    }
    figure("", "Nodes up to date", &format_args!("{well}<small> of {}</small>", model.nodes.len()));
    figure(class(absent, "bad"), "Without a stream", &absent);
    figure(class(behind, "bad"), "Behind", &behind);
    figure(class(failing, "warn"), "With failures", &failing);
    if shadows > 0 {
        figure("warn", "Shadows", &shadows);
    }
    figure(class(model.problems.len(), "warn"), "Problems", &model.problems.len());
    let ports = model.services.len();
    figure("", "Service ports", &format_args!("{ports}<small> · {} endpoints</small>", model.endpoints));
    let everywhere = model.in_every_kernel;
    figure("", "Revision", &format_args!("{}<small> · everywhere {everywhere}</small>", model.revision));
    html.push_str("</dl>\n");
    html
}

fn node_row(node: &NodeRow, html: &mut String) {
    let NodeRow { name, condition, backend, held, lag, failures, trouble } = node;
    let class = match condition {
        Condition::Absent | Condition::Behind => "bad",
        Condition::Failing | Condition::Shadow => "warn",
        Condition::Well => "good",
    };
    let trouble = if trouble.is_empty() { String::new() } else { format!("<small>{}</small>", Text(trouble)) };
    let state = format!("<span class=\"state {class}\">{}</span>{trouble}", label(*condition));
    let held = held.map_or_else(|| "–".to_owned(), |held| held.to_string());
    let lag = match condition {
        Condition::Well | Condition::Shadow | Condition::Failing if lag.as_secs() == 0 => "–".to_owned(),
        _ => length(*lag),
    };
    let failures: &dyn Display = if *condition == Condition::Absent { &"–" } else { failures };
    cells(
        html,
        &[
            ("", &Text(name)),
            ("", &state),
            ("", &Text(backend)),
            ("number", &held),
            ("number", &lag),
            ("number", failures),
        ],
    );
}

fn label(condition: Condition) -> &'static str {
    match condition {
        Condition::Absent => "no stream",
        Condition::Behind => "behind",
        Condition::Failing => "failures",
        Condition::Shadow => "shadow",
        Condition::Well => "up to date",
    }
}

fn happened(what: ChangeKind) -> &'static str {
    match what {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Changed => "changed",
        ChangeKind::Endpoints => "endpoints",
    }
}

impl Table<'_> {
    /// Writes the rows that are wanted, as many as are to be shown.
    fn write<T>(
        &self,
        html: &mut String,
        rows: impl Iterator<Item = T>,
        query: &Query,
        mut row: impl FnMut(T, &mut String),
    ) {
        let Self { id, title, columns, nothing } = self;
        let (mut body, mut count) = (String::new(), 0);
        for item in rows {
            count += 1;
            if count <= ROWS || query.extent == Extent::All {
                body.push_str("<tr>");
                row(item, &mut body);
                body.push_str("</tr>\n");
            }
        }
        let _ =
            writeln!(html, "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title} <small>{count}</small></h2>");
        if count == 0 {
            let nothing = if query.filter.is_empty() { nothing } else { "Nothing matches the filter." };
            let _ = writeln!(html, "<p class=\"nothing\">{nothing}</p>\n</section>");
            return;
        }
        // It can be scrolled by itself where it is wider than the page, by keys too.
        let _ = writeln!(
            html,
            "<div class=\"table\" role=\"region\" aria-labelledby=\"{id}\" tabindex=\"0\"><table>\n<thead><tr>"
        );
        for column in *columns {
            let class = if is_number(column) { " class=\"number\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{column}</th>");
        }
        let _ = writeln!(html, "</tr></thead>\n<tbody>\n{body}</tbody></table></div>");
        if count > ROWS && query.extent == Extent::Beginning {
            let _ = writeln!(
                html,
                "<p class=\"more\">{ROWS} of {count} are shown. <a href=\"?q={}&amp;all=1\">Show all</a></p>",
                query.encoded()
            );
        }
        html.push_str("</section>\n");
    }
}

fn is_number(column: &str) -> bool {
    matches!(column, "Revision" | "Behind" | "Failures" | "Endpoints")
}

/// The cells of a row, each with its class; the first one names the row. What is given is HTML.
fn cells(html: &mut String, cells: &[(&str, &dyn Display)]) {
    for (at, (class, content)) in cells.iter().enumerate() {
        let class: &dyn Display = if class.is_empty() { &"" } else { &format_args!(" class=\"{class}\"").to_string() };
        let _ = match at {
            0 => write!(html, "<th scope=\"row\"{class}>{content}</th>"),
            _ => write!(html, "<td{class}>{content}</td>"),
        };
    }
}

/// A moment, in seconds.
fn utc(at: SystemTime) -> Utc {
    Utc(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// A moment, by how long ago it was; the moment itself is for programs.
fn ago(at: SystemTime, now: SystemTime) -> String {
    let passed = now.duration_since(at).unwrap_or_default();
    format!("<time datetime=\"{}\">{} ago</time>", utc(at), length(passed))
}

/// A length of time in its two largest units.
fn length(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds @ 3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Unix time in seconds as RFC 3339 has it.
struct Utc(u64);

impl Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut day, second) = (self.0 / 86400, self.0 % 86400);
        let mut year = 1970;
        let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        while day >= 365 + u64::from(is_leap(year)) {
            day -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let mut month = 1;
        for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if day < days {
                break;
            }
            day -= days;
            month += 1;
        }
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_at_a_glance() {
        let lengths = [12, 61, 3_725, 90_000].map(|seconds| length(Duration::from_secs(seconds)));
        assert_eq!(lengths, ["12 s", "1 min 1 s", "1 h 2 min", "1 d 1 h"]);
        assert_eq!(length(Duration::from_millis(40)), "40 ms");
        for (unix, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
        ] {
            assert_eq!(Utc(unix).to_string(), expected);
        }
    }
}
