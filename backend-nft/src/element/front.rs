//! What leads to a service port: the beginning of every key.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use netlink::nft::{FieldReader, Fields};
use proto::model::{Family, Protocol};

/// What a packet is addressed to; in [`super::Map::Hairpin`], the endpoint that it was sent on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Front {
    /// An address and a port.
    Vip {
        /// A cluster IP, external IP or load-balancer IP.
        address: IpAddr,
        /// The port there.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// A port at the node's own addresses.
    NodePort {
        /// The port.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
    },
    /// An address, whatever the port and the protocol.
    Address(IpAddr),
}

/// What the keys of a map are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontKind {
    /// [`Front::Vip`].
    Vip,
    /// [`Front::NodePort`].
    NodePort,
    /// [`Front::Address`].
    Address,
}

// === impl Front ===

impl Front {
    /// Which keys are made from it.
    pub(crate) const fn kind(&self) -> FrontKind {
        match self {
            Self::Vip { .. } => FrontKind::Vip,
            Self::NodePort { .. } => FrontKind::NodePort,
            Self::Address(_) => FrontKind::Address,
        }
    }

    /// Appends it to a key.
    pub(super) fn put(&self, fields: Fields) -> Fields {
        match *self {
            Self::Vip { address, port, protocol } => fields.addr(address).proto(protocol.number()).port(port),
            Self::NodePort { port, protocol } => fields.proto(protocol.number()).port(port),
            Self::Address(address) => fields.addr(address),
        }
    }

    /// The next fields of a key.
    pub(super) fn read(fields: &mut FieldReader<'_>, kind: FrontKind, family: Family) -> Option<Self> {
        let address = match kind {
            FrontKind::Address => return address(fields, family).map(Self::Address),
            FrontKind::Vip => Some(address(fields, family)?),
            FrontKind::NodePort => None,
        };
        let number = fields.proto()?;
        let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)?;
        let port = fields.port()?;
        Some(match address {
            Some(address) => Self::Vip { address, port, protocol },
            None => Self::NodePort { port, protocol },
        })
    }
}

/// The next field, of a family.
pub(super) fn address(fields: &mut FieldReader<'_>, family: Family) -> Option<IpAddr> {
    match family {
        Family::V4 => fields.ipv4().map(IpAddr::V4),
        Family::V6 => fields.ipv6().map(IpAddr::V6),
    }
}

impl fmt::Display for Front {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp` or `10.96.0.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip { address, port, protocol } => {
                write!(f, "{}/{}", SocketAddr::new(*address, *port), protocol.lower())
            }
            Self::NodePort { port, protocol } => write!(f, "node port {port}/{}", protocol.lower()),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}
