//! Entries of the table as a dump lists them, whatever their protocol and state: to count connections.

use ::proto::model::Protocol;

use super::{
    Tuple,
    abi::{self, counters, protoinfo, sctp_state, tcp_state, tuple},
    flow::{protocol_number, read_tuple},
};
use crate::{
    attr::{Attr, Attrs},
    message::attributes,
};

/// A connection of TCP or SCTP, or a flow of UDP, in zone 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its protocol.
    pub protocol: Protocol,
    /// The direction of its first packet, before NAT.
    pub original: Tuple,
    /// The direction of the replies, before NAT is undone.
    pub reply: Tuple,
    /// How far it is.
    pub stage: Stage,
    /// Its traffic in both directions; `None` if the kernel does not count (`net.netfilter.nf_conntrack_acct`), or did
    /// not when the entry was created.
    pub traffic: Option<Traffic>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The handshake is not complete, or the first packets of UDP have no answer.
    HalfOpen,
    /// It is established, or UDP packets were answered.
    Open,
    /// A peer has closed or reset it.
    Closing,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of packets.
    pub packets: u64,
    /// Their bytes, with the headers from the IP header on.
    pub bytes: u64,
}

/// The content of a message of a dump.
#[derive(Debug)]
pub(super) enum DumpedEntry {
    Tracked(Entry),
    /// Of another protocol, or in another zone.
    Ignored,
}

/// Reads a message of a dump; `None` if a required attribute is missing.
pub(super) fn read(payload: &[u8]) -> Option<DumpedEntry> {
    let mut original = None;
    let mut reply = None;
    let mut protocol = None;
    let mut status = 0;
    let mut protocol_info = None;
    let mut traffic: Option<Traffic> = None;

    for attr in attributes(payload)? {
        match attr.kind {
            abi::TUPLE_ORIG => {
                protocol = Protocol::from_number(protocol_number(attr.nested())?);
                if protocol.is_none() || attr.nested().find(tuple::ZONE).is_some() {
                    return Some(DumpedEntry::Ignored);
                }
                original = Some(read_tuple(attr.nested())?);
            }
            abi::TUPLE_REPLY => reply = Some(read_tuple(attr.nested())?),
            abi::STATUS => status = attr.u32()?,
            abi::PROTOINFO => protocol_info = Some(attr),
            // The kernel leaves out zone 0.
            abi::ZONE => return Some(DumpedEntry::Ignored),
            abi::COUNTERS_ORIG | abi::COUNTERS_REPLY => {
                let of_direction = read_traffic(attr.nested())?;
                let sum = traffic.get_or_insert_default();
                sum.packets += of_direction.packets;
                sum.bytes += of_direction.bytes;
            }
            _ => {}
        }
    }

    let protocol = protocol?;
    let has_seen_reply = status & abi::STATUS_SEEN_REPLY != 0;
    Some(DumpedEntry::Tracked(Entry {
        protocol,
        original: original?,
        reply: reply?,
        stage: stage(protocol, protocol_info, has_seen_reply),
        traffic,
    }))
}

/// `info`: `CTA_PROTOINFO`, which has the state of the protocol.
fn stage(protocol: Protocol, info: Option<Attr<'_>>, has_seen_reply: bool) -> Stage {
    let without_state = if has_seen_reply { Stage::Open } else { Stage::HalfOpen };
    let nested = |of_protocol, state| info?.nested().find(of_protocol)?.nested().find(state)?.u8();
    match protocol {
        Protocol::Udp => without_state,
        Protocol::Tcp => match nested(protoinfo::TCP, protoinfo::TCP_STATE) {
            None => without_state,
            Some(..tcp_state::ESTABLISHED | tcp_state::SYN_SENT2) => Stage::HalfOpen,
            Some(tcp_state::ESTABLISHED) => Stage::Open,
            Some(_) => Stage::Closing,
        },
        Protocol::Sctp => match nested(protoinfo::SCTP, protoinfo::SCTP_STATE) {
            None => without_state,
            Some(sctp_state::CLOSED | sctp_state::SHUTDOWN_SENT..=sctp_state::SHUTDOWN_ACK_SENT) => Stage::Closing,
            // Another path of an association that is open.
            Some(sctp_state::ESTABLISHED | sctp_state::HEARTBEAT_ACKED) => Stage::Open,
            Some(_) => Stage::HalfOpen,
        },
    }
}

fn read_traffic(of_direction: Attrs<'_>) -> Option<Traffic> {
    Some(Traffic {
        packets: of_direction.find(counters::PACKETS)?.u64()?,
        bytes: of_direction.find(counters::BYTES)?.u64()?,
    })
}
