//! The result of a pass over the conntrack table, of one node or of several nodes together.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, btree_map::Entry},
    net::{IpAddr, SocketAddr},
};

use proto::model::IpFamily;
use serde::{Deserialize, Serialize};

use super::{
    Group, Grouping, SourcePortUse, Tallies,
    service_index::{ServiceIndex, contains, shared_pool, socket_address, takes_new_connections},
    source_ports,
    tally::{Counts, Tally},
};

/// The most clients of a section. The connections of the others are counted together.
const MAX_CLIENTS: usize = 1000;

/// The connections of a node, or of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) by: Grouping,
    /// The number of entries in the conntrack table, of whatever connections.
    pub(crate) entries: u64,
    /// The connections that the node translates from a VIP to an endpoint.
    pub(crate) translated: Section,
    /// The connections that arrive at endpoints of the node without a VIP. Those that another node has translated are
    /// in its report. Empty if `by` is [`Grouping::Service`].
    pub(crate) arriving: Section,
    /// The destinations to which masquerading uses most source ports, for whatever connections.
    pub(crate) source_ports: Vec<SourcePortUse>,
}

/// Connections by group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Section {
    /// By service port and endpoint, or the clients with most connections first.
    pub(crate) rows: Vec<Row>,
    /// The number of groups without a row, at least.
    pub(crate) more: usize,
    /// Their connections.
    pub(crate) others: Counts,
}

/// The connections of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) namespace: String,
    /// The name of the Service.
    pub(crate) service: String,
    /// `namespace/name:port/protocol`. Of several service ports that share an endpoint at which connections arrive, the
    /// first one.
    pub(crate) service_port: String,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) client: Option<IpAddr>,
    /// Whether new connections may go to the endpoint. If not, it is gone, ends or is not ready.
    pub(crate) in_use: bool,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// How many of the open connections of the service port the endpoint would have if all endpoints in use had the
    /// same number.
    pub(crate) even: Option<f64>,
}

type RowKey = (String, Option<SocketAddr>, Option<IpAddr>);

impl Report {
    pub(super) fn new(index: &ServiceIndex<'_>, by: Grouping, entries: u64, tallies: Tallies) -> Self {
        let Tallies { mut translated, arriving, source_ports } = tallies;
        if by == Grouping::Endpoint {
            add_endpoints_without_connections(index, &mut translated);
        }

        let shares = even_shares(index, &translated);
        Self {
            by,
            entries,
            translated: Section::new(index, translated, |group| even_share(index, &shares, group)),
            arriving: Section::new(index, arriving, |_| None),
            source_ports: source_ports.fullest(),
        }
    }

    /// Adds the connections of another node.
    pub(crate) fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.translated.add(other.translated);
        self.arriving.add(other.arriving);
        source_ports::add(&mut self.source_ports, other.source_ports);
    }
}

/// An endpoint without a connection is what an uneven share looks like.
fn add_endpoints_without_connections(index: &ServiceIndex<'_>, tally: &mut Tally<Group>) {
    let mut families: Vec<_> = tally.groups.keys().filter_map(family_of).collect();
    families.sort_unstable();
    families.dedup();
    for (port, family) in families {
        for endpoint in shared_pool(index.service(port), family).iter() {
            let group = Group { port, endpoint: Some(socket_address(endpoint)), client: None };
            tally.groups.entry(group).or_default();
        }
    }
}

fn family_of(group: &Group) -> Option<(usize, IpFamily)> {
    Some((group.port, IpFamily::of(&group.endpoint?.ip())))
}

/// The open connections of each service port and family, divided by its endpoints.
fn even_shares(index: &ServiceIndex<'_>, tally: &Tally<Group>) -> HashMap<(usize, IpFamily), f64> {
    let mut open = HashMap::<_, u64>::new();
    for (group, counts) in &tally.groups {
        if let Some(key) = family_of(group) {
            *open.entry(key).or_default() += counts.open;
        }
    }

    let mut shares = HashMap::new();
    for ((port, family), open) in open {
        let endpoints = shared_pool(index.service(port), family).len();
        if endpoints > 0 {
            shares.insert((port, family), open as f64 / endpoints as f64);
        }
    }
    shares
}

/// How many of the open connections of its service port an endpoint would have; none if new connections do not go to it.
fn even_share(index: &ServiceIndex<'_>, shares: &HashMap<(usize, IpFamily), f64>, group: &Group) -> Option<f64> {
    let endpoint = group.endpoint?;
    let family = IpFamily::of(&endpoint.ip());
    let pool = shared_pool(index.service(group.port), family);
    if contains(pool, endpoint) { shares.get(&(group.port, family)).copied() } else { Some(0.0) }
}

impl Section {
    fn new(index: &ServiceIndex<'_>, tally: Tally<Group>, even_of: impl Fn(&Group) -> Option<f64>) -> Self {
        let mut groups: Vec<_> = tally.groups.into_iter().collect();
        groups.sort_unstable_by_key(|(group, counts)| {
            let most_first = if group.client.is_some() { Reverse(counts.connections()) } else { Reverse(0) };
            (most_first, *group)
        });

        let mut section = Self { others: tally.others, ..Self::default() };
        if section.others.connections() > 0 {
            section.more = 1;
        }
        for (group, counts) in groups {
            if group.client.is_some() && section.rows.len() >= MAX_CLIENTS {
                section.more += 1;
                section.others.add(&counts);
                continue;
            }
            let service = index.service(group.port);
            let key = &service.port.key;
            section.rows.push(Row {
                namespace: key.namespace.to_string(),
                service: key.name.to_string(),
                service_port: key.to_string(),
                endpoint: group.endpoint,
                client: group.client,
                in_use: group.endpoint.is_none_or(|endpoint| takes_new_connections(service, endpoint)),
                counts,
                even: even_of(&group),
            });
        }
        section
    }

    fn add(&mut self, other: Self) {
        self.more += other.more;
        self.others.add(&other.others);
        let mut rows: BTreeMap<RowKey, Row> = BTreeMap::new();
        for row in self.rows.drain(..).chain(other.rows) {
            match rows.entry(row.key()) {
                Entry::Vacant(vacant) => {
                    vacant.insert(row);
                }
                Entry::Occupied(mut present) => present.get_mut().add(&row),
            }
        }
        self.rows = rows.into_values().collect();
        if self.rows.iter().any(|row| row.client.is_some()) {
            self.rows.sort_by_key(|row| Reverse(row.counts.connections()));
        }
    }
}

impl Row {
    fn key(&self) -> RowKey {
        (self.service_port.clone(), self.endpoint, self.client)
    }

    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        // A node may leave an endpoint to others, because of topology hints.
        self.in_use |= other.in_use;
        self.even = match (self.even, other.even) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
    }
}
