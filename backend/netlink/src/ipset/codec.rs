//! Requests for sets and entries, and the sets and entries in replies.

use proto::model::IpFamily;

use super::{
    Ipset, IpsetEntry, NewIpset,
    abi::{self, attr, cmd, create},
};
use crate::{
    attr::{Put, attrs},
    exchange::SEQ,
    family,
    message::{self, attributes, flags},
};

/// Entries are appended to a message until they take more bytes than this, because an attribute has at most 64 KiB. An
/// entry takes less than 1 KiB.
const MAX_ENTRIES_BYTES: usize = 60 << 10;

/// Appends a request for all sets without their entries.
pub(super) fn write_list_headers(buf: &mut Vec<u8>) {
    put(buf, cmd::LIST, flags::DUMP | flags::ACK, |buf| {
        buf.put_u32(attr::FLAGS | abi::NET_BYTEORDER, abi::HEADERS_ONLY);
    });
}

/// Appends a request for a set with its entries.
pub(super) fn write_list(buf: &mut Vec<u8>, name: &str) {
    put(buf, cmd::LIST, flags::DUMP | flags::ACK, |buf| buf.put_str(attr::SETNAME, name));
}

/// Appends a request to destroy a set.
pub(super) fn write_destroy(buf: &mut Vec<u8>, name: &str) {
    put(buf, cmd::DESTROY, flags::ACK, |buf| buf.put_str(attr::SETNAME, name));
}

/// Appends a request to create a set; the kernel rejects it if the name exists.
pub(super) fn write_create(buf: &mut Vec<u8>, set: &NewIpset<'_>) {
    put(buf, cmd::CREATE, flags::ACK | flags::CREATE | flags::EXCL, |buf| {
        buf.put_str(attr::SETNAME, set.name);
        buf.put_str(attr::TYPENAME, set.set_type.name());
        buf.put(attr::REVISION, &[set.set_type.revision()]);
        buf.put(attr::FAMILY, &[family::number(set.family)]);
        buf.nest(attr::DATA, |buf| {
            if set.has_marks {
                buf.put_u32(create::CADT_FLAGS | abi::NET_BYTEORDER, abi::WITH_SKBINFO);
            }
            buf.put_u32(create::HASHSIZE | abi::NET_BYTEORDER, set.hash_size);
            buf.put_u32(create::MAXELEM | abi::NET_BYTEORDER, set.max_entries);
            if let Some(timeout) = set.timeout {
                buf.put_u32(create::TIMEOUT | abi::NET_BYTEORDER, timeout);
            }
        });
    });
}

/// Appends a request to add or delete as many of the entries as fit into a message, and returns their number. The
/// request has no `NLM_F_EXCL`: existing entries are updated, and missing entries are not an error.
pub(super) fn write_entries(buf: &mut Vec<u8>, command: u16, name: &str, entries: &[IpsetEntry]) -> usize {
    let mut count = 0;
    put(buf, command, flags::ACK, |buf| {
        buf.put_str(attr::SETNAME, name);
        // The kernel stores the number of the rejected entry here.
        buf.put_u32(attr::LINENO | abi::NET_BYTEORDER, 1);
        buf.nest(attr::ADT, |buf| {
            let start = buf.len();
            for (line, entry) in (1..).zip(entries) {
                if buf.len() - start > MAX_ENTRIES_BYTES {
                    break;
                }
                entry.write(buf, line);
                count += 1;
            }
        });
    });
    count
}

/// Appends a request to test whether an entry, or a range that contains it, is in a set.
pub(super) fn write_test(buf: &mut Vec<u8>, name: &str, entry: &IpsetEntry) {
    put(buf, cmd::TEST, flags::ACK, |buf| {
        buf.put_str(attr::SETNAME, name);
        entry.write(buf, 0);
    });
}

/// The number of the rejected entry, from 1, in the payload of an error.
pub(crate) fn read_rejected_line(error: &[u8]) -> Option<u32> {
    let request = error.get(4 + message::HEADER + message::SUBHEADER..)?;
    attrs(request).find(attr::LINENO)?.u32()
}

/// The number of entries of the set in a message of a list.
pub(crate) fn read_size(payload: &[u8]) -> Option<u32> {
    attributes(payload)?.find(attr::DATA)?.nested().find(create::ELEMENTS)?.u32()
}

/// The set in a message of a list; `None` if a required attribute is missing.
pub(crate) fn read_set(payload: &[u8]) -> Option<Ipset> {
    let attributes = attributes(payload)?;
    let text = |kind| attributes.find(kind)?.str().map(str::to_owned);
    Some(Ipset {
        name: text(attr::SETNAME)?,
        type_name: text(attr::TYPENAME)?,
        family: family::from_number(attributes.find(attr::FAMILY)?.u8()?.into()),
    })
}

/// The entries in a message of a list. A large set comes in several messages.
pub(crate) fn read_entries(payload: &[u8]) -> Option<Vec<IpsetEntry>> {
    let Some(entries) = attributes(payload)?.find(attr::ADT) else { return Some(Vec::new()) };
    entries.nested().filter(|entry| entry.kind == attr::DATA).map(|entry| IpsetEntry::read(entry.nested())).collect()
}

/// Appends a request. Its header has the family IPv4, also for IPv6 sets.
fn put(buf: &mut Vec<u8>, command: u16, more_flags: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let subheader = [family::number(IpFamily::V4), 0, 0, 0];
    message::put(buf, abi::SUBSYSTEM | command, flags::REQUEST | more_flags, SEQ, subheader, |buf| {
        buf.put(attr::PROTOCOL, &[abi::PROTOCOL]);
        body(buf);
    });
}
