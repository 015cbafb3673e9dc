//! What the kernel holds for us, piece by piece: entries of sets, addresses, virtual servers, destinations. Each has a name and a
//! value; two states of the kernel differ by the pieces that they have.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use netlink::{
    ipset::IpsetEntry,
    ipvs::{IpvsProtocol, Scheduling, VirtualServerKey},
};
use proto::model::IpFamily;

use crate::{mark::Mark, set::SetId};

/// What a piece is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Object {
    /// An entry of a set, without its mark.
    SetEntry(SetId, IpsetEntry),
    /// An address on our device.
    Address(IpAddr),
    /// A virtual server.
    Server(VirtualServerKey),
    /// A destination of one.
    Destination(VirtualServerKey, SocketAddr),
}

/// What else there is to say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing: of addresses, and of entries without a mark.
    Plain,
    /// What an entry makes of packets.
    Mark(Mark),
    /// How a virtual server chooses.
    Scheduling(Scheduling),
    /// How many new connections a destination gets.
    Weight(Weight),
}

/// How many new connections a destination gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Its share.
    Of(u32),
    /// None: it is being removed, and goes when its connections have ended, or at this time (seconds since 1970). The kernel keeps the
    /// time where it keeps the limits of destinations, which are of no use to one of weight 0.
    Draining(u32),
}

// === text ===

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetEntry(set, entry) => {
                f.write_str(set.name())?;
                let words = [entry.ip.map(|ip| ip.to_string()), entry.port.map(|port| port.to_string())];
                words.into_iter().flatten().try_for_each(|word| write!(f, " {word}"))
            }
            Self::Address(address) => write!(f, "address {address}"),
            Self::Server(server) => write!(f, "virtual server {server}"),
            Self::Destination(server, address) => write!(f, "destination {address} of {server}"),
        }
    }
}

/// The protocol that a virtual server of ours serves.
pub(crate) fn protocol(server: &VirtualServerKey) -> Option<IpvsProtocol> {
    match server {
        VirtualServerKey::Address(protocol, _) => Some(*protocol),
        VirtualServerKey::FwMark(_, mark) => Mark::from_raw(*mark).and_then(|mark| mark.protocol()),
    }
}

/// The same in the words of IPVS.
pub(crate) fn ipvs_protocol(protocol: proto::model::Protocol) -> IpvsProtocol {
    match protocol {
        proto::model::Protocol::Tcp => IpvsProtocol::Tcp,
        proto::model::Protocol::Udp => IpvsProtocol::Udp,
        proto::model::Protocol::Sctp => IpvsProtocol::Sctp,
    }
}

/// The same in the words of IPVS.
pub(crate) fn ipvs_family(family: IpFamily) -> netlink::AddressFamily {
    match family {
        IpFamily::V4 => netlink::AddressFamily::V4,
        IpFamily::V6 => netlink::AddressFamily::V6,
    }
}
