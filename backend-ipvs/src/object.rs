//! The kernel objects that this backend programs: set entries, addresses, virtual servers and destinations. Each has a
//! key and a value, so that desired and observed state can be compared as maps.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use netlink::{
    ipset::IpsetEntry,
    ipvs::{Scheduling, VirtualServerKey},
};
use proto::model::{IpFamily, Protocol};

use crate::{mark::Mark, set::SetId};

/// The key of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Object {
    /// An entry of a set, without its mark.
    SetEntry(SetId, IpsetEntry),
    /// An address on the device `kube-ipvs0`.
    Address(IpAddr),
    /// A virtual server.
    Server(VirtualServerKey),
    /// A destination of a virtual server.
    Destination(VirtualServerKey, SocketAddr),
}

/// The value of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// An address, or a set entry without a mark, has none.
    Plain,
    /// The mark that a set entry gives packets.
    Mark(Mark),
    /// The scheduler of a virtual server, with its flags and timeout.
    Scheduling(Scheduling),
    /// The weight of a destination.
    Weight(Weight),
}

/// A destination's share of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Its weight. At weight 0 it keeps its established flows; such a destination is not created.
    Of(u32),
    /// Weight 0: the destination is deleted when its connections have ended, at the latest at this time (seconds since
    /// 1970). The time is stored in the destination's connection thresholds, which have no effect at weight 0.
    Draining(u32),
}

// === impl Value ===

impl Value {
    /// Whether it is the weight of a destination that only established flows use.
    pub(crate) fn is_established(&self) -> bool {
        matches!(self, Self::Weight(Weight::Of(0)))
    }
}

// === impl Object ===

impl Object {
    pub(crate) fn server(&self) -> Option<VirtualServerKey> {
        match self {
            Self::Server(server) => Some(*server),
            _ => None,
        }
    }

    pub(crate) fn family(&self) -> IpFamily {
        match self {
            Self::SetEntry(set, _) => set.family,
            Self::Address(address) => IpFamily::of(address),
            Self::Server(server) | Self::Destination(server, _) => server.family(),
        }
    }
}

// === Text ===

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetEntry(set, entry) => {
                f.write_str(set.name())?;
                let parts = [entry.ip.map(|ip| ip.to_string()), entry.port.map(|port| port.to_string())];
                parts.into_iter().flatten().try_for_each(|part| write!(f, " {part}"))
            }
            Self::Address(address) => write!(f, "address {address}"),
            Self::Server(server) => write!(f, "virtual server {server}"),
            Self::Destination(server, address) => write!(f, "destination {address} of {server}"),
        }
    }
}

/// The protocol of a virtual server of this backend.
pub(crate) fn protocol(server: &VirtualServerKey) -> Option<Protocol> {
    match server {
        VirtualServerKey::Address(protocol, _) => Some(*protocol),
        VirtualServerKey::FwMark(_, mark) => Mark::from_raw(*mark).and_then(|mark| mark.protocol()),
    }
}
