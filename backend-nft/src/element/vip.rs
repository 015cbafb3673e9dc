//! VIPs as parts of map keys. In [`super::Map::Hairpin`] it is the endpoint to which a packet was translated.

use std::net::IpAddr;

use backend::dataplane::Vip;
use netlink::nft::{FieldReader, Fields};
use proto::model::{IpFamily, Protocol};

/// The fields of a VIP in the keys of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VipShape {
    /// [`Vip::AddressPort`].
    AddressPort,
    /// [`Vip::NodePort`].
    NodePort,
    /// [`Vip::Address`].
    Address,
}

// === impl VipShape ===

impl VipShape {
    /// The shape of a VIP.
    pub(crate) const fn of(vip: &Vip) -> Self {
        match vip {
            Vip::AddressPort { .. } => Self::AddressPort,
            Vip::NodePort { .. } => Self::NodePort,
            Vip::Address(_) => Self::Address,
        }
    }

    /// Reads a VIP from the next fields of a key.
    pub(super) fn read(self, fields: &mut FieldReader<'_>, family: IpFamily) -> Option<Vip> {
        let address = match self {
            Self::Address => return address(fields, family).map(Vip::Address),
            Self::AddressPort => Some(address(fields, family)?),
            Self::NodePort => None,
        };
        let number = fields.proto()?;
        let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)?;
        let port = fields.port()?;
        Some(match address {
            Some(address) => Vip::AddressPort { address, port, protocol },
            None => Vip::NodePort { port, protocol },
        })
    }
}

/// Appends a VIP to a key.
pub(super) fn put(vip: &Vip, fields: Fields) -> Fields {
    match *vip {
        Vip::AddressPort { address, port, protocol } => fields.addr(address).proto(protocol.number()).port(port),
        Vip::NodePort { port, protocol } => fields.proto(protocol.number()).port(port),
        Vip::Address(address) => fields.addr(address),
    }
}

/// Reads the address in the next field.
pub(super) fn address(fields: &mut FieldReader<'_>, family: IpFamily) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => fields.ipv4().map(IpAddr::V4),
        IpFamily::V6 => fields.ipv6().map(IpAddr::V6),
    }
}
