//! How many source ports masquerading uses to each destination. When all are in use, the kernel drops the packets of
//! new connections to it.

use std::{
    cmp::Reverse,
    net::{IpAddr, SocketAddr},
};

use netlink::conntrack::Entry;
use proto::model::Protocol;
use serde::{Deserialize, Serialize};

use super::tally::Tally;

/// The source ports that masquerading chooses from: 1024 to 65535, except for clients with a port below 1024.
pub(crate) const MASQUERADE_PORTS: u64 = 65_536 - 1024;
/// The use from which on it is reported, because a burst of new connections may need the rest.
pub(crate) const NEARLY_FULL_PERCENT: u64 = 80;
/// How many destinations are listed.
const LISTED: usize = 10;

/// Connections for which the kernel must choose different source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct PortSpace {
    protocol: Protocol,
    /// The address of the node that masquerading uses.
    source: IpAddr,
    /// An endpoint, or an address outside the cluster.
    destination: SocketAddr,
}

/// The use of source ports by destination.
#[derive(Debug, Default)]
pub(super) struct SourcePorts(Tally<PortSpace>);

/// The use of source ports to one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourcePortUse {
    /// In lower case.
    pub(crate) protocol: String,
    /// The node's address that is the source of the masqueraded packets.
    pub(crate) source: IpAddr,
    /// An endpoint, or an address outside the cluster.
    pub(crate) destination: SocketAddr,
    /// Of [`MASQUERADE_PORTS`].
    pub(crate) used: u64,
}

impl SourcePorts {
    /// Counts an entry if its source was masqueraded. A closed connection uses its port until its entry expires.
    pub(super) fn add(&mut self, entry: &Entry) {
        if entry.reply.destination == entry.original.source {
            return;
        }
        let space = PortSpace {
            protocol: entry.protocol,
            source: entry.reply.destination.ip(),
            destination: entry.reply.source,
        };
        self.0.add(space, entry);
    }

    /// The destinations to which most ports are used, first.
    pub(super) fn fullest(&self) -> Vec<SourcePortUse> {
        let mut list: Vec<_> = self.0.groups.iter().map(|(space, counts)| (*space, counts.connections())).collect();
        list.sort_unstable_by_key(|(space, used)| (Reverse(*used), *space));
        list.truncate(LISTED);

        let mut fullest = Vec::new();
        for (PortSpace { protocol, source, destination }, used) in list {
            fullest.push(SourcePortUse { protocol: protocol.lower().to_owned(), source, destination, used });
        }
        fullest
    }
}

/// Keeps the fullest of several nodes.
pub(super) fn keep_fullest(list: &mut Vec<SourcePortUse>) {
    list.sort_by_key(|ports| Reverse(ports.used));
    list.truncate(LISTED);
}

impl SourcePortUse {
    /// The share of the ports that is used.
    pub(crate) fn percent(&self) -> u64 {
        self.used * 100 / MASQUERADE_PORTS
    }
}
