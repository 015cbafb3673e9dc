//! Sets and entries in messages, and the requests for them.

use super::{
    AddressFamily, Ipset, IpsetEntry, NewIpset, SkbInfo,
    abi::{self, attr, cmd, create},
};
use crate::{
    attr::{Attrs, Put, attrs},
    exchange::SEQ,
    message::{self, flags},
};

/// `AF_INET`, the family in the header of every request, also for IPv6 sets.
const INET: u8 = 2;
/// `AF_INET6`.
const INET6: u8 = 10;
/// So much of a message may be entries before the last: an attribute has at most 64 KiB, an entry far less than 1.
const MAX_ENTRIES_BYTES: usize = 60 << 10;

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

/// Appends a request to make a set; it is refused when there is one of that name.
pub(super) fn write_create(buf: &mut Vec<u8>, set: &NewIpset<'_>) {
    let at = start(buf, cmd::CREATE, flags::ACK | flags::CREATE | flags::EXCL);
    buf.put_str(attr::SETNAME, set.name);
    buf.put_str(attr::TYPENAME, set.set_type.name());
    buf.put(attr::REVISION, &[set.set_type.revision()]);
    buf.put(attr::FAMILY, &[if set.family == AddressFamily::V4 { INET } else { INET6 }]);
    let nest = buf.open(attr::DATA);
    if set.skbinfo == SkbInfo::Enabled {
        buf.put_u32(create::CADT_FLAGS | abi::NET_BYTEORDER, abi::WITH_SKBINFO);
    }
    buf.put_u32(create::HASHSIZE | abi::NET_BYTEORDER, set.hash_size);
    buf.put_u32(create::MAXELEM | abi::NET_BYTEORDER, set.max_entries);
    buf.close(nest);
    message::finish(buf, at);
}

/// Appends a request to remove all entries of a set.
pub(super) fn write_flush(buf: &mut Vec<u8>, name: &str) {
    let at = start(buf, cmd::FLUSH, flags::ACK);
    buf.put_str(attr::SETNAME, name);
    message::finish(buf, at);
}

/// Appends a request that swaps the content of two sets of the same type.
pub(super) fn write_swap(buf: &mut Vec<u8>, one: &str, other: &str) {
    let at = start(buf, cmd::SWAP, flags::ACK);
    buf.put_str(attr::SETNAME, one);
    buf.put_str(attr::SETNAME2, other);
    message::finish(buf, at);
}

/// Appends a request to add or delete as many of the entries as a message holds, and says how many these are. Entries
/// that exist already, or do not exist, are no errors; existing ones are updated.
pub(super) fn write_entries(buf: &mut Vec<u8>, command: u16, name: &str, entries: &[IpsetEntry]) -> usize {
    let at = start(buf, command, flags::ACK);
    buf.put_str(attr::SETNAME, name);
    // The kernel stores the number of the rejected entry here.
    buf.put_u32(attr::LINENO | abi::NET_BYTEORDER, 1);
    let nest = buf.open(attr::ADT);
    let begin = buf.len();
    let mut count = 0;
    for (line, entry) in (1..).zip(entries) {
        if buf.len() - begin > MAX_ENTRIES_BYTES {
            break;
        }
        entry.write(buf, line);
        count += 1;
    }
    buf.close(nest);
    message::finish(buf, at);
    count
}

/// Appends a question whether an entry is in a set, be it in a range of it.
pub(super) fn write_test(buf: &mut Vec<u8>, name: &str, entry: &IpsetEntry) {
    let at = start(buf, cmd::TEST, flags::ACK);
    buf.put_str(attr::SETNAME, name);
    entry.write(buf, 0);
    message::finish(buf, at);
}

/// Which entry was refused, counted from 1, by what came back of the request.
pub(super) fn read_refused_line(error: &[u8]) -> Option<u32> {
    let request = error.get(4 + message::HEADER + abi::NFGENMSG..)?;
    attrs(request).find(attr::LINENO)?.u32()
}

/// How many entries the set in a message of a list has.
pub(super) fn read_size(payload: &[u8]) -> Option<u32> {
    content(payload)?.find(attr::DATA)?.nested().find(create::ELEMENTS)?.u32()
}

fn start(buf: &mut Vec<u8>, command: u16, more_flags: u16) -> usize {
    let at = message::start(buf, abi::SUBSYSTEM | command, flags::REQUEST | more_flags, SEQ);
    buf.extend_from_slice(&[INET, 0, 0, 0]);
    buf.put(attr::PROTOCOL, &[abi::PROTOCOL]);
    at
}

/// The set in a message of a list; `None` when something is missing that must be there.
pub(super) fn read_set(payload: &[u8]) -> Option<Ipset> {
    let attributes = content(payload)?;
    let text = |kind| attributes.clone().find(kind)?.str().map(str::to_owned);
    let family = match *attributes.clone().find(attr::FAMILY)?.payload.first()? {
        INET => Some(AddressFamily::V4),
        INET6 => Some(AddressFamily::V6),
        _ => None,
    };
    Some(Ipset { name: text(attr::SETNAME)?, type_name: text(attr::TYPENAME)?, family })
}

/// The entries in a message of a list. A large set comes in several messages.
pub(super) fn read_entries(payload: &[u8]) -> Option<Vec<IpsetEntry>> {
    let Some(entries) = content(payload)?.find(attr::ADT) else { return Some(Vec::new()) };
    entries.nested().filter(|entry| entry.kind == attr::DATA).map(|entry| IpsetEntry::read(entry.nested())).collect()
}

fn content(payload: &[u8]) -> Option<Attrs<'_>> {
    Some(attrs(payload.get(abi::NFGENMSG..)?))
}
