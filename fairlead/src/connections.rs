//! Whose connections this node's kernel tracks: one pass over the conntrack table, compared with the state of the node.
//! Reads only.
//!
//! ```text
//!   conntrack table ──▶ Entry ──▶ ServiceIndex: translated for which service port, which endpoint? ─▶ Tally ─▶ Report
//!   state file ──▶ NodeState ───────▲          arriving at which endpoint of this node?
//! ```
//!
//! IPVS has a table of its own, but its backend makes IPVS keep its connections in conntrack too
//! (`net.ipv4.vs.conntrack`), with the endpoint in the direction of the replies, as NAT does. So one pass serves all
//! modes. Entries of other zones than 0 are left out: switches of network plugins keep them beside those of the kernel.

mod metrics;
mod report;
mod service_index;
mod source_ports;
mod sum;
mod tally;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use backend::{NodeState, ServiceName, dataplane::IPVS_DEVICE};
use clap::ValueEnum;
use netlink::conntrack::{ConntrackHandle, Entry};
use serde::{Deserialize, Serialize};

use service_index::{Place, ServiceIndex, ServicePortId};
use source_ports::SourcePorts;
use tally::Tally;

pub(crate) use metrics::ConnectionMetrics;
pub(crate) use report::{Report, Row, Section};
pub(crate) use source_ports::{MASQUERADE_PORTS, NEARLY_FULL_PERCENT, SourcePortUse};
pub(crate) use sum::Sum;
pub(crate) use tally::Counts;

/// Which connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Grouping {
    /// One row for each service port.
    Service,
    /// One row for each endpoint of a service port.
    Endpoint,
    /// One row for each client of a service port.
    Client,
}

/// What is counted in one pass.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) by: Grouping,
    /// Only the connections of this Service.
    pub(crate) service: Option<ServiceName>,
}

/// Connections that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Group {
    /// Of several service ports that share an endpoint, the first one.
    service_port: ServicePortId,
    endpoint: Option<SocketAddr>,
    client: Option<IpAddr>,
}

/// The counts of a pass. No connection is both translated and arriving.
#[derive(Debug, Default)]
struct Tallies {
    translated: Tally<Group>,
    arriving: Tally<Group>,
    source_ports: SourcePorts,
}

/// Counts the connections of the network namespace of the calling thread, which it blocks. `progress` is called with
/// the number of entries that were read, for each.
///
/// # Errors
/// When the state has no such Service, or the kernel cannot be read.
pub(crate) fn count(state: &NodeState, query: &Query, progress: impl FnMut(u64)) -> Result<Report> {
    let addresses =
        netlink::rtnl::addresses_except(&[IPVS_DEVICE]).context("cannot list the addresses of this node")?;
    let index = ServiceIndex::new(state, query.service.as_ref(), addresses);
    if let Some(service) = &query.service
        && state.ports_of(service).next().is_none()
    {
        bail!("this node has no Service {service} with a cluster IP: check the name, and `fairlead services`");
    }

    let mut tallies = Tallies::default();
    let tracked = visit(|entry| tallies.add(&index, query.by, entry), progress)?;
    Ok(Report::new(&index, query, tracked, tallies))
}

/// The destinations to which masquerading uses most source ports, in the network namespace of the calling thread, which
/// this blocks.
pub(crate) fn fullest_source_ports() -> Result<Vec<SourcePortUse>> {
    let mut ports = SourcePorts::default();
    visit(|entry| ports.add(entry), |_| {})?;
    Ok(ports.fullest())
}

/// Lists the table. Returns the number of entries.
fn visit(mut visit_entry: impl FnMut(&Entry), mut progress: impl FnMut(u64)) -> Result<u64> {
    let mut entries = 0;
    let mut table = ConntrackHandle::open().context("cannot open a netlink socket")?;
    table
        .entries(|entry| {
            visit_entry(entry);
            entries += 1;
            progress(entries);
            Ok(())
        })
        .context("cannot list the conntrack table: this needs root, with CAP_NET_ADMIN")?;
    Ok(entries)
}

impl Tallies {
    fn add(&mut self, index: &ServiceIndex<'_>, by: Grouping, entry: &Entry) {
        self.source_ports.add(entry);
        let Some(place) = index.place(entry) else { return };
        let (service_port, endpoint, tally) = match place {
            Place::Translated { service_port, endpoint } => (service_port, endpoint, &mut self.translated),
            // Whose connections they are is not known if several Services share the endpoint.
            Place::Arriving { .. } if by == Grouping::Service => return,
            Place::Arriving { service_port, endpoint } => (service_port, endpoint, &mut self.arriving),
        };

        let group = match by {
            Grouping::Service => Group { service_port, endpoint: None, client: None },
            Grouping::Endpoint => Group { service_port, endpoint: Some(endpoint), client: None },
            Grouping::Client => Group { service_port, endpoint: None, client: Some(entry.original.source.ip()) },
        };
        tally.add(group, entry);
    }
}
