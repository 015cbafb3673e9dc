//! The tables of connections, for people.

use std::fmt::Write as _;

use crate::{
    connections::{Counts, Grouping, MASQUERADE_PORTS, Report, Row, Section, SourcePortUse},
    table::TextTable,
};

/// How many clients a table has.
const LISTED_CLIENTS: usize = 20;

const TRANSLATED: &str = "TRANSLATED: connections to VIPs, which are sent to an endpoint";
const ARRIVING: &str = "\
ARRIVING: connections at endpoints without a VIP. Other nodes have translated them, which count them too, or their
clients have connected to the pod itself. Do not add them to the table above.";

/// `source`: of what the counts are.
pub(super) fn text(report: &Report, source: &str) -> String {
    let mut text = format!("{source}\n\n{TRANSLATED}\n{}", section(report.by, &report.translated));
    if !report.arriving.rows.is_empty() {
        let _ = write!(text, "\n{ARRIVING}\n{}", section(report.by, &report.arriving));
    }
    let is_of_node = report.by == Grouping::Service;
    if is_of_node && !report.source_ports.is_empty() {
        let _ = write!(text, "\n{}", source_ports(&report.source_ports));
    }
    text
}

/// How many connections the kernel tracks.
pub(super) fn entries(report: &Report) -> String {
    format!("{} entries in the conntrack table", report.entries)
}

fn section(by: Grouping, section: &Section) -> String {
    if section.rows.is_empty() {
        return "none\n".to_owned();
    }
    let mut table = TextTable::new(match by {
        Grouping::Service => &["SERVICE PORT", "OPEN", "HALF-OPEN", "CLOSING", "BYTES", "PACKETS"],
        Grouping::Endpoint => {
            &["SERVICE PORT", "ENDPOINT", "STATE", "OPEN", "EVEN", "HALF-OPEN", "CLOSING", "BYTES", "PACKETS"]
        }
        Grouping::Client => &["SERVICE PORT", "CLIENT", "OPEN", "HALF-OPEN", "CLOSING", "BYTES", "PACKETS"],
    });

    let listed = if by == Grouping::Client { LISTED_CLIENTS } else { usize::MAX };
    for row in section.rows.iter().take(listed) {
        table.row(cells(by, row));
    }
    let mut text = table.to_string();

    let mut more = section.more;
    let mut others = section.others;
    for row in section.rows.iter().skip(listed) {
        more += 1;
        others.add(&row.counts);
    }
    if more > 0 {
        let Counts { open, half_open, closing, .. } = others;
        let _ = writeln!(text, "and at least {more} more with {open} open, {half_open} half-open, {closing} closing");
    }
    text
}

fn cells(by: Grouping, row: &Row) -> Vec<String> {
    let Row { service_port, endpoint, client, in_use, counts, even, .. } = row;
    let Counts { open, half_open, closing, packets, bytes } = counts;
    let optional = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();

    let mut cells = vec![service_port.clone()];
    match by {
        Grouping::Service => cells.push(open.to_string()),
        Grouping::Endpoint => {
            cells.push(endpoint.map(|endpoint| endpoint.to_string()).unwrap_or_default());
            cells.push(if *in_use { String::new() } else { "gone or ends".to_owned() });
            cells.push(open.to_string());
            cells.push(even.map(|even| format!("{even:.1}")).unwrap_or_default());
        }
        Grouping::Client => {
            cells.push(client.map(|client| client.to_string()).unwrap_or_default());
            cells.push(open.to_string());
        }
    }
    cells.extend([half_open.to_string(), closing.to_string(), optional(*bytes), optional(*packets)]);
    cells
}

fn source_ports(fullest: &[SourcePortUse]) -> String {
    let mut table = TextTable::new(&["PROTOCOL", "SOURCE", "DESTINATION", "USED", "OF"]);
    for ports in fullest {
        let SourcePortUse { protocol, source, destination, used } = ports;
        let used = format!("{used} ({} %)", ports.percent());
        table.row([protocol.clone(), source.to_string(), destination.to_string(), used, MASQUERADE_PORTS.to_string()]);
    }
    format!("SOURCE PORTS of masquerading, the fullest\n{table}")
}
