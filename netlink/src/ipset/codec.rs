//! Sets and entries in messages, and the requests for them.

use std::net::IpAddr;

use super::{
    Entry, Family, Set,
    abi::{self, attr, cmd, data},
};
use crate::{
    attr::{Attr, Attrs, Put, attrs},
    exchange::SEQ,
    message::{self, flags},
};

/// `AF_INET`, which every request says, also for sets of the other family or of none.
const INET: u8 = 2;
/// `AF_INET6`.
const INET6: u8 = 10;

/// Appends a request for all sets without their entries.
pub(super) fn write_list_headers(buf: &mut Vec<u8>) {
    let at = start(buf, cmd::LIST, flags::DUMP | flags::ACK);
    buf.put_u32(attr::FLAGS | abi::NET_BYTEORDER, abi::HEADERS_ONLY);
    message::finish(buf, at);
}

/// Appends a request for a set with its entries.
pub(super) fn write_list(buf: &mut Vec<u8>, name: &str) {
    let at = start(buf, cmd::LIST, flags::DUMP | flags::ACK);
    buf.put_str(attr::SETNAME, name);
    message::finish(buf, at);
}

/// Appends a request to destroy a set.
pub(super) fn write_destroy(buf: &mut Vec<u8>, name: &str) {
    let at = start(buf, cmd::DESTROY, flags::ACK);
    buf.put_str(attr::SETNAME, name);
    message::finish(buf, at);
}

fn start(buf: &mut Vec<u8>, command: u16, more_flags: u16) -> usize {
    let at = message::start(buf, abi::SUBSYSTEM | command, flags::REQUEST | more_flags, SEQ);
    buf.extend_from_slice(&[INET, 0, 0, 0]);
    buf.put(attr::PROTOCOL, &[abi::PROTOCOL]);
    at
}

/// The set in a message of a list; `None` when something is missing that must be there.
pub(super) fn read_set(payload: &[u8]) -> Option<Set> {
    let attributes = content(payload)?;
    let text = |kind| attributes.clone().find(kind)?.str().map(str::to_owned);
    let family = match *attributes.clone().find(attr::FAMILY)?.payload.first()? {
        INET => Some(Family::V4),
        INET6 => Some(Family::V6),
        _ => None,
    };
    Some(Set { name: text(attr::SETNAME)?, kind: text(attr::TYPENAME)?, family })
}

/// The entries in a message of a list. A large set comes in several messages.
pub(super) fn read_entries(payload: &[u8]) -> Option<Vec<Entry>> {
    let Some(entries) = content(payload)?.find(attr::ADT) else { return Some(Vec::new()) };
    entries
        .nested()
        .filter(|entry| entry.kind == attr::DATA)
        .map(|entry| read_entry(entry.nested()))
        .collect()
}

fn read_entry(fields: Attrs<'_>) -> Option<Entry> {
    let mut entry = Entry::default();
    for field in fields {
        match field.kind {
            data::IP => entry.ip = Some(read_ip(&field)?),
            data::PORT => entry.port = Some(u16::from_be_bytes(field.payload.try_into().ok()?)),
            data::PROTO => entry.protocol = Some(*field.payload.first()?),
            _ => {}
        }
    }
    Some(entry)
}

fn read_ip(attr: &Attr<'_>) -> Option<IpAddr> {
    let address = attr.nested().next()?;
    match address.kind {
        abi::IPV4 => Some(<[u8; 4]>::try_from(address.payload).ok()?.into()),
        abi::IPV6 => Some(<[u8; 16]>::try_from(address.payload).ok()?.into()),
        _ => None,
    }
}

fn content(payload: &[u8]) -> Option<Attrs<'_>> {
    Some(attrs(payload.get(abi::NFGENMSG..)?))
}
