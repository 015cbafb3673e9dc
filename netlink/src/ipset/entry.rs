//! An entry of a set, in messages.

use std::net::IpAddr;

use super::abi::{self, attr, data};
use crate::attr::{Attr, Attrs, Put};

/// An entry, as far as its set's kind has these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpsetEntry {
    /// The (first) address.
    pub ip: Option<IpAddr>,
    /// Its prefix length, where it is a network.
    pub prefix: Option<u8>,
    /// The protocol that the port is of: `IPPROTO_*`.
    pub protocol: Option<u8>,
    /// The port.
    pub port: Option<u16>,
    /// The second address.
    pub ip2: Option<IpAddr>,
    /// Its prefix length, where it is a network.
    pub prefix2: Option<u8>,
    /// The mark that packets get; no part of what an entry is known by.
    pub mark: Option<u32>,
}

// === impl IpsetEntry ===

impl IpsetEntry {
    /// Appends it; `line` is what the kernel calls it by, if it refuses it.
    pub(super) fn write(&self, buf: &mut Vec<u8>, line: u32) {
        let nest = buf.open(attr::DATA);
        put_ip(buf, data::IP, self.ip);
        if let Some(prefix) = self.prefix {
            buf.put(data::CIDR, &[prefix]);
        }
        if let Some(port) = self.port {
            buf.put(data::PORT | abi::NET_BYTEORDER, &port.to_be_bytes());
        }
        if let Some(protocol) = self.protocol {
            buf.put(data::PROTO, &[protocol]);
        }
        put_ip(buf, data::IP2, self.ip2);
        if let Some(prefix) = self.prefix2 {
            buf.put(data::CIDR2, &[prefix]);
        }
        if let Some(mark) = self.mark {
            // And which bits of the packet's it replaces: all.
            buf.put_u64(data::SKBMARK | abi::NET_BYTEORDER, u64::from(mark) << 32 | u64::from(u32::MAX));
        }
        buf.put_u32(attr::LINENO | abi::NET_BYTEORDER, line);
        buf.close(nest);
    }

    /// `None` when a field is broken. Prefixes of single addresses are left out.
    pub(super) fn read(fields: Attrs<'_>) -> Option<Self> {
        let mut entry = Self::default();
        for field in fields {
            match field.kind {
                data::IP => entry.ip = Some(read_ip(&field)?),
                data::CIDR => entry.prefix = field.payload.first().copied(),
                data::PORT => entry.port = Some(u16::from_be_bytes(field.payload.try_into().ok()?)),
                data::PROTO => entry.protocol = Some(*field.payload.first()?),
                data::IP2 => entry.ip2 = Some(read_ip(&field)?),
                data::CIDR2 => entry.prefix2 = field.payload.first().copied(),
                data::SKBMARK => entry.mark = Some((field.u64()? >> 32) as u32),
                _ => {}
            }
        }
        Some(entry)
    }
}

fn put_ip(buf: &mut Vec<u8>, kind: u16, ip: Option<IpAddr>) {
    let Some(ip) = ip else { return };
    let nest = buf.open(kind);
    match ip {
        IpAddr::V4(v4) => buf.put(abi::IPV4 | abi::NET_BYTEORDER, &v4.octets()),
        IpAddr::V6(v6) => buf.put(abi::IPV6 | abi::NET_BYTEORDER, &v6.octets()),
    }
    buf.close(nest);
}

fn read_ip(attr: &Attr<'_>) -> Option<IpAddr> {
    let address = attr.nested().next()?;
    match address.kind {
        abi::IPV4 => Some(<[u8; 4]>::try_from(address.payload).ok()?.into()),
        abi::IPV6 => Some(<[u8; 16]>::try_from(address.payload).ok()?.into()),
        _ => None,
    }
}
