//! What leads to a service port, as the beginning of a key. In [`super::Map::Hairpin`] it is the endpoint that a packet
//! was sent on to.

use std::net::IpAddr;

use backend::dataplane::Vip;
use netlink::nft::{FieldReader, Fields};
use proto::model::{IpFamily, Protocol};

/// What the keys of a map are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VipShape {
    /// [`Vip::AddressPort`].
    Vip,
    /// [`Vip::NodePort`].
    NodePort,
    /// [`Vip::Address`].
    Address,
}

// === impl VipShape ===

impl VipShape {
    /// Which keys are made from a VIP.
    pub(crate) const fn of(vip: &Vip) -> Self {
        match vip {
            Vip::AddressPort { .. } => Self::Vip,
            Vip::NodePort { .. } => Self::NodePort,
            Vip::Address(_) => Self::Address,
        }
    }

    /// The next fields of a key.
    pub(super) fn read(self, fields: &mut FieldReader<'_>, family: IpFamily) -> Option<Vip> {
        let address = match self {
            Self::Address => return address(fields, family).map(Vip::Address),
            Self::Vip => Some(address(fields, family)?),
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

/// The next field, of a family.
pub(super) fn address(fields: &mut FieldReader<'_>, family: IpFamily) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => fields.ipv4().map(IpAddr::V4),
        IpFamily::V6 => fields.ipv6().map(IpAddr::V6),
    }
}
