//! The sum of the reports of several nodes.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, SocketAddr},
};

use super::{Counts, Grouping, Report, Row, Section, SourcePortUse, source_ports};

/// The reports that were added so far.
#[derive(Debug)]
pub(crate) struct Sum {
    by: Grouping,
    tracked: u64,
    translated: SectionSum,
    arriving: SectionSum,
    source_ports: Vec<SourcePortUse>,
}

#[derive(Debug, Default)]
struct SectionSum {
    rows: HashMap<RowKey, Row>,
    more: usize,
    others: Counts,
}

/// What identifies a row: its service port, endpoint and client.
type RowKey = (String, Option<SocketAddr>, Option<IpAddr>);

impl Sum {
    /// Of no report.
    pub(crate) fn new(by: Grouping) -> Self {
        Self {
            by,
            tracked: 0,
            translated: SectionSum::default(),
            arriving: SectionSum::default(),
            source_ports: Vec::new(),
        }
    }

    /// Adds the report of a node.
    pub(crate) fn add(&mut self, report: Report) {
        self.tracked += report.tracked;
        self.translated.add(report.translated);
        self.arriving.add(report.arriving);
        self.source_ports.extend(report.source_ports);
        source_ports::keep_fullest(&mut self.source_ports);
    }

    pub(crate) fn finish(self) -> Report {
        let Self { by, tracked, translated, arriving, source_ports } = self;
        Report { by, tracked, translated: translated.finish(by), arriving: arriving.finish(by), source_ports }
    }
}

impl SectionSum {
    fn add(&mut self, section: Section) {
        self.more += section.more;
        self.others.add(&section.others);
        for row in section.rows {
            let key = (row.service_port.clone(), row.endpoint, row.client);
            match self.rows.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(row);
                }
                Entry::Occupied(mut entry) => entry.get_mut().add(&row),
            }
        }
    }

    fn finish(self, by: Grouping) -> Section {
        let mut rows: Vec<_> = self.rows.into_iter().collect();
        rows.sort_unstable_by(|(key, row), (other_key, other)| match by {
            Grouping::Endpoint => key.cmp(other_key),
            Grouping::Service | Grouping::Client => {
                let most_first = |row: &Row| Reverse(row.counts.connections());
                most_first(row).cmp(&most_first(other)).then_with(|| key.cmp(other_key))
            }
        });
        Section { rows: rows.into_iter().map(|(_, row)| row).collect(), more: self.more, others: self.others }
    }
}

impl Row {
    /// Adds the same row of another node.
    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        // A node may leave an endpoint to others, because of topology hints.
        self.in_use |= other.in_use;
        if let Some(even) = other.even {
            *self.even.get_or_insert_default() += even;
        }
    }
}
