//! Flows in messages: read from a dump, and named in a deletion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{
    ConntrackZone, Tuple, UdpFlow,
    abi::{self, ip, proto, tuple},
};
use crate::{
    AddressFamily,
    attr::{Attr, Attrs, Put, attrs},
    message::{self, flags},
};

/// What a message of a dump holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracked {
    Udp(UdpFlow),
    /// A flow of another protocol.
    Other,
}

/// The content of a message; `None` when something is missing that must be there.
pub(super) fn read(payload: &[u8]) -> Option<Tracked> {
    let (mut original, mut reply, mut id, mut zone) = (None, None, None, ConntrackZone::Both(0));
    for attr in attrs(payload.get(abi::NFGENMSG..)?) {
        match attr.kind {
            abi::TUPLE_ORIG => {
                if protocol(attr.nested())? != abi::UDP {
                    return Some(Tracked::Other);
                }
                original = Some(read_tuple(attr.nested())?);
                if let Some(of_tuple) = attr.nested().find(tuple::ZONE) {
                    zone = ConntrackZone::Original(u16(&of_tuple)?);
                }
            }
            abi::TUPLE_REPLY => reply = Some(read_tuple(attr.nested())?),
            abi::ID => id = Some(attr.u32()?),
            abi::ZONE => zone = ConntrackZone::Both(u16(&attr)?),
            _ => {}
        }
    }
    Some(Tracked::Udp(UdpFlow { original: original?, reply: reply?, id: id?, zone }))
}

fn protocol(tuple: Attrs<'_>) -> Option<u8> {
    tuple.find(tuple::PROTO)?.nested().find(proto::NUM)?.payload.first().copied()
}

pub(super) fn read_tuple(attributes: Attrs<'_>) -> Option<Tuple> {
    let (mut source, mut destination) = (None, None);
    for attr in attributes.clone().find(tuple::IP)?.nested() {
        match attr.kind {
            ip::V4_SRC => source = Some(IpAddr::from(<[u8; 4]>::try_from(attr.payload).ok()?)),
            ip::V4_DST => destination = Some(IpAddr::from(<[u8; 4]>::try_from(attr.payload).ok()?)),
            ip::V6_SRC => source = Some(IpAddr::from(<[u8; 16]>::try_from(attr.payload).ok()?)),
            ip::V6_DST => destination = Some(IpAddr::from(<[u8; 16]>::try_from(attr.payload).ok()?)),
            _ => {}
        }
    }
    let ports = attributes.find(tuple::PROTO)?.nested();
    let port = |kind| u16(&ports.clone().find(kind)?);
    Some(Tuple {
        source: SocketAddr::new(source?, port(proto::SRC_PORT)?),
        destination: SocketAddr::new(destination?, port(proto::DST_PORT)?),
    })
}

fn u16(attr: &Attr<'_>) -> Option<u16> {
    Some(u16::from_be_bytes(attr.payload.try_into().ok()?))
}

/// Appends a request to delete this flow, and no later one of the same tuples.
pub(super) fn write_delete(buf: &mut Vec<u8>, flow: &UdpFlow, more_flags: u16, seq: u32) {
    let family = if flow.original.destination.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 };
    let at = message::start(buf, abi::SUBSYSTEM | abi::msg::DELETE, flags::REQUEST | more_flags, seq);
    buf.extend_from_slice(&[family.number(), 0, 0, 0]);
    let original = buf.open(abi::TUPLE_ORIG);
    write_tuple(buf, abi::UDP, &flow.original);
    if let ConntrackZone::Original(zone) = flow.zone {
        buf.put(tuple::ZONE, &zone.to_be_bytes());
    }
    buf.close(original);
    buf.put_u32(abi::ID, flow.id);
    match flow.zone {
        ConntrackZone::Both(0) | ConntrackZone::Original(_) => {}
        ConntrackZone::Both(zone) => buf.put(abi::ZONE, &zone.to_be_bytes()),
    }
    message::finish(buf, at);
}

/// Appends the content of a tuple. `protocol`: `IPPROTO_*`.
pub(super) fn write_tuple(buf: &mut Vec<u8>, protocol: u8, tuple: &Tuple) {
    let addresses = buf.open(tuple::IP);
    match (tuple.source.ip(), tuple.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            put_v4(buf, ip::V4_SRC, source);
            put_v4(buf, ip::V4_DST, destination);
        }
        (source, destination) => {
            put_v6(buf, ip::V6_SRC, source);
            put_v6(buf, ip::V6_DST, destination);
        }
    }
    buf.close(addresses);
    let ports = buf.open(tuple::PROTO);
    buf.put(proto::NUM, &[protocol]);
    buf.put(proto::SRC_PORT, &tuple.source.port().to_be_bytes());
    buf.put(proto::DST_PORT, &tuple.destination.port().to_be_bytes());
    buf.close(ports);
}

fn put_v4(buf: &mut Vec<u8>, kind: u16, address: Ipv4Addr) {
    buf.put(kind, &address.octets());
}

/// The kernel never mixes families in a tuple, so there is nothing to map.
fn put_v6(buf: &mut Vec<u8>, kind: u16, address: IpAddr) {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    buf.put(kind, &Ipv6Addr::octets(&address));
}
