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
ARRIVING: connections at endpoints without a VIP. Another node has translated them and counts them too, perhaps with
its own address as client; or the client has connected to the pod itself. Do not add them to the table above.";

/// `heading`: where the counts come from.
pub(super) fn text(report: &Report, heading: &str) -> String {
    let mut text = format!("{heading}\n\n{TRANSLATED}\n{}", section(report.by, &report.translated));
    if !report.arriving.rows.is_empty() {
        let _ = write!(text, "\n{ARRIVING}\n{}", section(report.by, &report.arriving));
    }
    let is_about_all_services = report.by == Grouping::Service;
    if is_about_all_services && !report.source_ports.is_empty() {
        let _ = write!(text, "\n{}", source_ports(&report.source_ports));
    }
    text
}

/// How many connections the kernel tracks.
pub(super) fn tracked(report: &Report) -> String {
    format!("{} connections are tracked", report.tracked)
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
        let _ = writeln!(text, "and about {more} more with {open} open, {half_open} half-open, {closing} closing");
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
            cells.push(if *in_use { String::new() } else { "not in use".to_owned() });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(endpoint: &str, in_use: bool, open: u64, even: f64) -> Row {
        Row {
            namespace: "default".to_owned(),
            service: "web".to_owned(),
            service_port: "default/web/tcp".to_owned(),
            endpoint: Some(endpoint.parse().unwrap()),
            client: None,
            in_use,
            counts: Counts { open, half_open: 1, closing: 2, packets: Some(30), bytes: Some(4000) },
            even: Some(even),
        }
    }

    fn client(number: u8) -> Row {
        Row {
            endpoint: None,
            client: Some([10, 244, 1, number].into()),
            even: None,
            ..row("10.0.0.1:80", true, 1, 0.0)
        }
    }

    fn report(by: Grouping, rows: Vec<Row>) -> Report {
        let translated = Section { rows, ..Section::default() };
        Report { by, tracked: 7, translated, arriving: Section::default(), source_ports: Vec::new() }
    }

    #[test]
    fn endpoints_have_their_shares_and_marks() {
        let rows = vec![row("10.244.1.1:80", true, 3, 2.5), row("10.244.1.2:80", false, 2, 0.0)];
        let expected = "\
7 connections are tracked here

TRANSLATED: connections to VIPs, which are sent to an endpoint
SERVICE PORT      ENDPOINT        STATE        OPEN   EVEN   HALF-OPEN   CLOSING   BYTES   PACKETS
default/web/tcp   10.244.1.1:80   -            3      2.5    1           2         4000    30
default/web/tcp   10.244.1.2:80   not in use   2      0.0    1           2         4000    30
";
        let report = report(Grouping::Endpoint, rows);
        assert_eq!(text(&report, &format!("{} here", tracked(&report))), expected);
    }

    #[test]
    fn twenty_clients_are_listed_and_the_others_counted() {
        let mut report = report(Grouping::Client, (1..=23).map(client).collect());
        report.translated.more = 2;
        report.translated.others = Counts { open: 10, ..Counts::default() };
        let text = text(&report, "");
        assert_eq!(text.lines().filter(|line| line.starts_with("default/web")).count(), 20);
        assert!(text.ends_with("and about 5 more with 13 open, 3 half-open, 6 closing\n"), "{text}");
    }

    #[test]
    fn source_ports_are_listed_with_all_services() {
        let source_ports = vec![SourcePortUse {
            protocol: "tcp".to_owned(),
            source: "192.0.2.1".parse().unwrap(),
            destination: "203.0.113.5:443".parse().unwrap(),
            used: 32_256,
        }];
        let of_services = Report { source_ports: source_ports.clone(), ..report(Grouping::Service, Vec::new()) };
        let text_of_services = text(&of_services, "");
        assert!(text_of_services.contains("none\n"), "{text_of_services}");
        assert!(text_of_services.contains("203.0.113.5:443   32256 (50 %)   64512"), "{text_of_services}");
        let of_service = Report { source_ports, ..report(Grouping::Endpoint, Vec::new()) };
        assert!(!text(&of_service, "").contains("203.0.113.5"));
    }
}
