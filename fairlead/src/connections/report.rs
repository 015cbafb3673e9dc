//! The result of a pass over the conntrack table.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use backend::ServicePortState;
use proto::model::IpFamily;
use serde::{Deserialize, Serialize};

use super::{
    Group, Grouping, Query, SourcePortUse, Tallies,
    service_index::{ServiceIndex, ServicePortId, contains, shared_pool, socket_address, takes_new_connections},
    tally::{Counts, Tally},
};

/// The most rows of a section, because a Service that is open to the internet may have a client for each connection.
const MAX_ROWS: usize = 1000;

/// The connections of a node, or of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) by: Grouping,
    /// The number of connections of TCP, UDP and SCTP in the conntrack table, of whatever destinations.
    pub(crate) tracked: u64,
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
    /// By service port and endpoint, or the service ports or clients with most connections first. The 1,000 groups with
    /// most connections have a row.
    pub(crate) rows: Vec<Row>,
    /// The number of groups without a row. It is an estimate if not all groups were counted one by one, and if the
    /// reports of nodes were added.
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
    /// How many of the open connections of the service port the endpoint would have if all endpoints that share new
    /// connections had the same number: 0 for others. `None` for other groups than endpoints, for connections that
    /// arrive, and if the traffic policies of the service port differ.
    pub(crate) even: Option<f64>,
}

impl Report {
    /// `query`: what was counted.
    pub(super) fn new(index: &ServiceIndex<'_>, query: &Query, tracked: u64, tallies: Tallies) -> Self {
        let Tallies { mut translated, arriving, source_ports } = tallies;
        if query.by == Grouping::Endpoint && query.service.is_some() {
            add_endpoints_without_connections(index, &mut translated);
        }

        let shares = even_shares(index, &translated);
        let by = query.by;
        Self {
            by,
            tracked,
            translated: Section::new(index, by, translated, |group| even_share(index, &shares, group)),
            arriving: Section::new(index, by, arriving, |_| None),
            source_ports: source_ports.fullest(),
        }
    }
}

/// An endpoint without a connection is what an uneven share looks like.
fn add_endpoints_without_connections(index: &ServiceIndex<'_>, tally: &mut Tally<Group>) {
    let mut families: Vec<_> = tally.groups.keys().filter_map(family_of).collect();
    families.sort_unstable();
    families.dedup();
    for (service_port, family) in families {
        let Some(pool) = shared_pool(index.service_port(service_port), family) else { continue };
        for endpoint in pool.iter() {
            let group = Group { service_port, endpoint: Some(socket_address(endpoint)), client: None };
            tally.groups.entry(group).or_default();
        }
    }
}

fn family_of(group: &Group) -> Option<(ServicePortId, IpFamily)> {
    Some((group.service_port, IpFamily::of(&group.endpoint?.ip())))
}

/// The open connections of each service port and family, divided by its endpoints.
fn even_shares(index: &ServiceIndex<'_>, tally: &Tally<Group>) -> HashMap<(ServicePortId, IpFamily), f64> {
    let mut open = HashMap::<_, u64>::new();
    for (group, counts) in &tally.groups {
        if let Some(key) = family_of(group) {
            *open.entry(key).or_default() += counts.open;
        }
    }

    let mut shares = HashMap::new();
    for ((service_port, family), open) in open {
        let endpoints = shared_pool(index.service_port(service_port), family).map_or(0, |pool| pool.len());
        if endpoints > 0 {
            shares.insert((service_port, family), open as f64 / endpoints as f64);
        }
    }
    shares
}

/// See [`Row::even`].
fn even_share(
    index: &ServiceIndex<'_>,
    shares: &HashMap<(ServicePortId, IpFamily), f64>,
    group: &Group,
) -> Option<f64> {
    let endpoint = group.endpoint?;
    let family = IpFamily::of(&endpoint.ip());
    let pool = shared_pool(index.service_port(group.service_port), family)?;
    if contains(pool, endpoint) { shares.get(&(group.service_port, family)).copied() } else { Some(0.0) }
}

impl Section {
    fn new(
        index: &ServiceIndex<'_>,
        by: Grouping,
        tally: Tally<Group>,
        even_of: impl Fn(&Group) -> Option<f64>,
    ) -> Self {
        let mut groups: Vec<_> = tally.groups.into_iter().collect();
        groups.sort_unstable_by_key(|(group, counts)| (Reverse(counts.connections()), *group));

        let mut section = Self { others: tally.others, ..Self::default() };
        if section.others.connections() > 0 {
            // The number of their groups is unknown: they count as one.
            section.more = 1;
        }
        for (_, counts) in groups.iter().skip(MAX_ROWS) {
            section.more += 1;
            section.others.add(counts);
        }
        groups.truncate(MAX_ROWS);
        if by == Grouping::Endpoint {
            groups.sort_unstable_by_key(|(group, _)| *group);
        }

        for (group, counts) in groups {
            section.rows.push(Row::new(index.service_port(group.service_port), &group, counts, even_of(&group)));
        }
        section
    }
}

impl Row {
    fn new(service: &ServicePortState, group: &Group, counts: Counts, even: Option<f64>) -> Self {
        let key = &service.port.key;
        Self {
            namespace: key.namespace.to_string(),
            service: key.name.to_string(),
            service_port: key.to_string(),
            endpoint: group.endpoint,
            client: group.client,
            in_use: group.endpoint.is_none_or(|endpoint| takes_new_connections(service, endpoint)),
            counts,
            even,
        }
    }
}
