//! An entry of a set and its encoding.

use std::net::IpAddr;

use super::abi::{self, attr, data};
use crate::attr::{Attrs, Put};

/// An entry of a set. It has the fields of the set's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpsetEntry {
    /// The first address.
    pub ip: Option<IpAddr>,
    /// The prefix length of `ip`, if it is a network.
    pub prefix: Option<u8>,
    /// The transport protocol, `IPPROTO_*`.
    pub protocol: Option<u8>,
    /// The port.
    pub port: Option<u16>,
    /// The second address.
    pub ip2: Option<IpAddr>,
    /// The prefix length of `ip2`, if it is a network.
    pub prefix2: Option<u8>,
    /// The mark that the target `SET --map-mark` sets on packets. It is not part of the entry's key.
    pub mark: Option<u32>,
}

// === impl IpsetEntry ===

impl IpsetEntry {
    /// Appends the entry; `line` is the number that the kernel reports if it rejects the entry.
    pub(crate) fn write(&self, buf: &mut Vec<u8>, line: u32) {
        buf.nest(attr::DATA, |buf| {
            put_ip(buf, data::IP, self.ip);
            if let Some(prefix) = self.prefix {
                buf.put(data::CIDR, &[prefix]);
            }
            if let Some(port) = self.port {
                buf.put_u16(data::PORT | abi::NET_BYTEORDER, port);
            }
            if let Some(protocol) = self.protocol {
                buf.put(data::PROTO, &[protocol]);
            }
            put_ip(buf, data::IP2, self.ip2);
            if let Some(prefix) = self.prefix2 {
                buf.put(data::CIDR2, &[prefix]);
            }
            if let Some(mark) = self.mark {
                // The low half is the mask of the bits that the mark replaces: all.
                buf.put_u64(data::SKBMARK | abi::NET_BYTEORDER, u64::from(mark) << 32 | u64::from(u32::MAX));
            }
            buf.put_u32(attr::LINENO | abi::NET_BYTEORDER, line);
        });
    }

    /// `None` if a field is malformed. The kernel omits the prefix lengths of single addresses.
    pub(crate) fn read(fields: Attrs<'_>) -> Option<Self> {
        let mut entry = Self::default();
        for field in fields {
            match field.kind {
                data::IP => entry.ip = Some(field.nested().next()?.ip()?),
                data::CIDR => entry.prefix = field.u8(),
                data::PORT => entry.port = Some(field.u16()?),
                data::PROTO => entry.protocol = Some(field.u8()?),
                data::IP2 => entry.ip2 = Some(field.nested().next()?.ip()?),
                data::CIDR2 => entry.prefix2 = field.u8(),
                data::SKBMARK => entry.mark = Some((field.u64()? >> 32) as u32),
                _ => {}
            }
        }
        Some(entry)
    }
}

fn put_ip(buf: &mut Vec<u8>, kind: u16, ip: Option<IpAddr>) {
    let Some(ip) = ip else { return };
    let family = if ip.is_ipv4() { abi::IPV4 } else { abi::IPV6 };
    buf.nest(kind, |buf| buf.put_ip(family | abi::NET_BYTEORDER, ip));
}
