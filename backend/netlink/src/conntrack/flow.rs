//! Flows in messages: read from a dump, and identified in a deletion.

use std::net::SocketAddr;

use ::proto::model::{IpFamily, Protocol};

use super::{
    ConntrackZone, Flow, Tuple,
    abi::{self, ip, proto, protoinfo, tcp_state, tuple},
};
use crate::{
    attr::{Attrs, Put},
    family,
    message::{self, attributes, flags},
};

/// The content of a message of a dump.
#[derive(Debug)]
pub(crate) enum DumpedFlow {
    Open(Flow),
    /// A closed TCP connection, or a flow of another protocol.
    Ignored,
}

/// Reads a message of a dump; `None` if a required attribute is missing.
pub(crate) fn read(payload: &[u8]) -> Option<DumpedFlow> {
    let mut original = None;
    let mut reply = None;
    let mut id = None;
    let mut zone = ConntrackZone::Both(0);
    let mut protocol = None;
    let mut tcp_state = None;
    let mut status = 0;

    for attr in attributes(payload)? {
        match attr.kind {
            abi::TUPLE_ORIG => {
                protocol = Protocol::from_number(protocol_number(attr.nested())?);
                if protocol.is_none() {
                    return Some(DumpedFlow::Ignored);
                }
                original = Some(read_tuple(attr.nested())?);
                if let Some(of_tuple) = attr.nested().find(tuple::ZONE) {
                    zone = ConntrackZone::Original(of_tuple.u16()?);
                }
            }
            abi::TUPLE_REPLY => reply = Some(read_tuple(attr.nested())?),
            abi::STATUS => status = attr.u32()?,
            abi::PROTOINFO => {
                tcp_state = read_tcp_state(attr.nested());
                if matches!(tcp_state, Some(tcp_state::TIME_WAIT | tcp_state::CLOSE)) {
                    return Some(DumpedFlow::Ignored);
                }
            }
            abi::ID => id = Some(attr.u32()?),
            abi::ZONE => zone = ConntrackZone::Both(attr.u16()?),
            _ => {}
        }
    }

    let is_answered = status & abi::STATUS_ANSWERED == abi::STATUS_ANSWERED;
    let has_seen_reply = status & abi::STATUS_SEEN_REPLY != 0;
    Some(DumpedFlow::Open(Flow {
        protocol: protocol?,
        original: original?,
        reply: reply?,
        id: id?,
        zone,
        is_established: tcp_state == Some(tcp_state::ESTABLISHED) && is_answered,
        is_half_open: tcp_state == Some(tcp_state::SYN_SENT) && !has_seen_reply,
    }))
}

pub(super) fn protocol_number(tuple: Attrs<'_>) -> Option<u8> {
    tuple.find(tuple::PROTO)?.nested().find(proto::NUM)?.u8()
}

fn read_tcp_state(protocol_info: Attrs<'_>) -> Option<u8> {
    protocol_info.find(protoinfo::TCP)?.nested().find(protoinfo::TCP_STATE)?.u8()
}

pub(crate) fn read_tuple(attributes: Attrs<'_>) -> Option<Tuple> {
    let mut source = None;
    let mut destination = None;
    for attr in attributes.find(tuple::IP)?.nested() {
        match attr.kind {
            ip::V4_SRC | ip::V6_SRC => source = Some(attr.ip()?),
            ip::V4_DST | ip::V6_DST => destination = Some(attr.ip()?),
            _ => {}
        }
    }

    let ports = attributes.find(tuple::PROTO)?.nested();
    let port = |kind| ports.find(kind)?.u16();
    Some(Tuple {
        source: SocketAddr::new(source?, port(proto::SRC_PORT)?),
        destination: SocketAddr::new(destination?, port(proto::DST_PORT)?),
    })
}

/// Appends a request for this flow, or to delete it. A later flow with the same tuples has another id.
pub(crate) fn write_request(buf: &mut Vec<u8>, command: u16, flow: &Flow, more_flags: u16, seq: u32) {
    put(buf, command, more_flags, seq, IpFamily::of(&flow.original.destination.ip()), |buf| {
        buf.nest(abi::TUPLE_ORIG, |buf| {
            write_tuple(buf, flow.protocol.number(), &flow.original);
            if let ConntrackZone::Original(zone) = flow.zone {
                buf.put_u16(tuple::ZONE, zone);
            }
        });
        buf.put_u32(abi::ID, flow.id);
        match flow.zone {
            ConntrackZone::Both(0) | ConntrackZone::Original(_) => {}
            ConntrackZone::Both(zone) => buf.put_u16(abi::ZONE, zone),
        }
    });
}

/// Appends the content of a tuple. `protocol`: `IPPROTO_*`. The kernel never mixes families in a tuple.
pub(super) fn write_tuple(buf: &mut Vec<u8>, protocol: u8, tuple: &Tuple) {
    let [source, destination] = match IpFamily::of(&tuple.source.ip()) {
        IpFamily::V4 => [ip::V4_SRC, ip::V4_DST],
        IpFamily::V6 => [ip::V6_SRC, ip::V6_DST],
    };
    buf.nest(tuple::IP, |buf| {
        buf.put_ip(source, tuple.source.ip());
        buf.put_ip(destination, tuple.destination.ip());
    });
    buf.nest(tuple::PROTO, |buf| {
        buf.put(proto::NUM, &[protocol]);
        buf.put_u16(proto::SRC_PORT, tuple.source.port());
        buf.put_u16(proto::DST_PORT, tuple.destination.port());
    });
}

/// Appends a request; `body` appends its attributes.
pub(super) fn put(
    buf: &mut Vec<u8>,
    command: u16,
    more_flags: u16,
    seq: u32,
    family: IpFamily,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let flags = flags::REQUEST | more_flags;
    message::put(buf, abi::SUBSYSTEM | command, flags, seq, [family::number(family), 0, 0, 0], body);
}
