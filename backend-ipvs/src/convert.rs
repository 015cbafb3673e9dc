//! Converts between the types of the model and those of the kernel.

use netlink::{AddressFamily, ipvs::IpvsProtocol};
use proto::model::{IpFamily, PerFamily, Protocol};

pub(crate) fn ipvs_protocol(protocol: Protocol) -> IpvsProtocol {
    match protocol {
        Protocol::Tcp => IpvsProtocol::Tcp,
        Protocol::Udp => IpvsProtocol::Udp,
        Protocol::Sctp => IpvsProtocol::Sctp,
    }
}

/// Converts a protocol back.
pub(crate) fn model_protocol(protocol: IpvsProtocol) -> Protocol {
    match protocol {
        IpvsProtocol::Tcp => Protocol::Tcp,
        IpvsProtocol::Udp => Protocol::Udp,
        IpvsProtocol::Sctp => Protocol::Sctp,
    }
}

pub(crate) fn ipvs_family(family: IpFamily) -> AddressFamily {
    PerFamily { v4: AddressFamily::V4, v6: AddressFamily::V6 }[family]
}
