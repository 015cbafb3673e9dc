//! Addresses, CIDRs, and packed endpoints.

use std::{net::IpAddr, num::NonZeroU16};

use bytes::Bytes;
use ipnet::IpNet;

use super::InvalidMessage;
use crate::{
    model::{Endpoint, FLAG_TERMINATING, IpFamily, PoolClass, pack_endpoint},
    v1,
};

/// The wire form of several endpoints.
pub(super) fn pack_endpoints(class: PoolClass, endpoints: &[Endpoint]) -> Bytes {
    let mut bytes = Vec::with_capacity(endpoints.len() * 19);
    for endpoint in endpoints {
        pack_endpoint(class, endpoint, &mut bytes);
    }
    bytes.into()
}

/// The endpoints of a packed field.
pub(super) fn unpack_endpoints(
    class: PoolClass,
    family: IpFamily,
    bytes: &[u8],
    field: &str,
) -> Result<Vec<Endpoint>, InvalidMessage> {
    let address_len = family.address_len();
    let flags_len = usize::from(class == PoolClass::Local);
    let entry_len = address_len + 2 + flags_len;
    if !bytes.len().is_multiple_of(entry_len) {
        let reason = format!("{} bytes are not a multiple of {entry_len}", bytes.len());
        return Err(InvalidMessage::new(field, reason));
    }

    let mut endpoints = Vec::with_capacity(bytes.len() / entry_len);
    for (at, entry) in bytes.chunks_exact(entry_len).enumerate() {
        let (address, rest) = entry.split_at(address_len);
        let address = unpack_address(address, &format!("{field}[{at}]"))?;
        let Some(port) = NonZeroU16::new(u16::from_be_bytes([rest[0], rest[1]])) else {
            return Err(InvalidMessage::new(format!("{field}[{at}]"), "port is 0"));
        };
        let terminating = rest.get(2).is_some_and(|flags| flags & FLAG_TERMINATING != 0);
        endpoints.push(Endpoint { address, port, terminating });
    }
    Ok(endpoints)
}

/// The wire form of an address.
#[must_use]
pub fn pack_address(address: &IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::copy_from_slice(&address.octets()),
        IpAddr::V6(address) => Bytes::copy_from_slice(&address.octets()),
    }
}

/// The address of a field.
///
/// # Errors
/// If it has neither 4 nor 16 bytes. The error names `field`.
pub fn unpack_address(bytes: &[u8], field: &str) -> Result<IpAddr, InvalidMessage> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        Ok(IpAddr::from(octets))
    } else if let Ok(octets) = <[u8; 16]>::try_from(bytes) {
        Ok(IpAddr::from(octets))
    } else {
        Err(InvalidMessage::new(field, format!("{} bytes are not an IP address", bytes.len())))
    }
}

/// Addresses in the order of the message.
pub(super) fn addresses(wire: &[Bytes], field: &str) -> Result<Vec<IpAddr>, InvalidMessage> {
    let entries = wire.iter().enumerate();
    entries.map(|(at, bytes)| unpack_address(bytes, &format!("{field}[{at}]"))).collect()
}

impl From<&IpNet> for v1::Cidr {
    fn from(range: &IpNet) -> Self {
        Self { address: pack_address(&range.addr()), prefix_length: range.prefix_len().into() }
    }
}

impl TryFrom<&v1::Cidr> for IpNet {
    type Error = InvalidMessage;

    fn try_from(wire: &v1::Cidr) -> Result<Self, InvalidMessage> {
        let address = unpack_address(&wire.address, "address")?;
        let length = u8::try_from(wire.prefix_length).ok();
        let Some(range) = length.and_then(|length| Self::new(address, length).ok()) else {
            let reason = format!("/{} is too long for {address}", wire.prefix_length);
            return Err(InvalidMessage::new("prefix_length", reason));
        };
        Ok(range.trunc())
    }
}
