//! For fuzz targets: everything that decodes bytes of the kernel, and encodes the result again.

// A panic is how a fuzz target fails.
#![allow(clippy::missing_panics_doc)]

use rtnetlink::packet_core::{NetlinkDeserializable as _, NetlinkHeader};
use rtnetlink::packet_route::RouteNetlinkMessage;

use crate::{
    attr::attrs,
    conntrack::{
        abi,
        flow::{self, DumpedFlow},
    },
    genl,
    ipset::{IpsetEntry, codec as ipset_codec},
    ipvs::codec as ipvs_codec,
    message::{self, HEADER, Message, attributes, messages},
    nft, rtnl,
};

/// The messages of a datagram that are no errors. The errors are read, and left out.
fn replies(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    messages(datagram).filter(|message| match message.kind {
        message::ERROR | message::DONE => {
            let _ = message.error_reply().and_then(|reply| reply.check("fuzz"));
            let _ = ipset_codec::read_rejected_line(message.payload);
            false
        }
        _ => true,
    })
}

/// Objects and notifications of nf_tables.
pub fn nf_tables(datagram: &[u8]) {
    replies(datagram).for_each(|message| nft::fuzzing::message(&message));
}

/// Flows of connection tracking. The request to delete a flow must identify the same flow.
pub fn conntrack(datagram: &[u8]) {
    for Message { payload, .. } in replies(datagram) {
        if let Some(reply) = attributes(payload).and_then(|list| list.find(abi::TUPLE_REPLY)) {
            let _ = flow::read_tuple(reply.nested());
        }

        let Some(DumpedFlow::Open(open)) = flow::read(payload) else { continue };
        // The kernel never mixes families in a tuple.
        if open.original.source.is_ipv4() != open.original.destination.is_ipv4() {
            continue;
        }

        let mut request = Vec::new();
        flow::write_request(&mut request, abi::msg::DELETE, &open, 0, 1);
        let original = messages(&request).find_map(|message| attributes(message.payload)?.find(abi::TUPLE_ORIG));
        assert_eq!(original.and_then(|original| flow::read_tuple(original.nested())), Some(open.original));
    }
}

/// Sets and entries of ipset. An entry must be the same after it is written and read again.
pub fn ipset(datagram: &[u8]) {
    for Message { payload, .. } in replies(datagram) {
        let _ = (ipset_codec::read_size(payload), ipset_codec::read_set(payload));
        for entry in ipset_codec::read_entries(payload).into_iter().flatten() {
            let mut bytes = Vec::new();
            entry.write(&mut bytes, 1);
            let written = attrs(&bytes).next().and_then(|data| IpsetEntry::read(data.nested()));
            assert_eq!(written, Some(entry));
        }
    }
}

/// Virtual servers and destinations of IPVS, and families of generic netlink.
pub fn ipvs(datagram: &[u8]) {
    for Message { payload, .. } in replies(datagram) {
        let _ = genl::read_id(payload);
        let _ = (ipvs_codec::read_service(payload), ipvs_codec::read_scheduling(payload));
        let _ = ipvs_codec::read_timeouts(payload);
        if let Some(destination) = ipvs_codec::read_destination(payload) {
            // The counters are not written.
            let mut bytes = Vec::new();
            ipvs_codec::write_destination(&mut bytes, &destination);
            assert!(!bytes.is_empty());
        }
    }
}

/// Links, addresses and routes.
pub fn rtnetlink(datagram: &[u8]) {
    for message in messages(datagram) {
        let mut header = NetlinkHeader::default();
        header.message_type = message.kind;
        header.flags = message.flags;
        header.length = u32::try_from(HEADER + message.payload.len()).unwrap_or(u32::MAX);
        match RouteNetlinkMessage::deserialize(&header, message.payload) {
            Ok(RouteNetlinkMessage::NewAddress(message)) => drop(rtnl::read_address(&message)),
            Ok(RouteNetlinkMessage::NewLink(message)) => drop(rtnl::read_link(message)),
            _ => {}
        }
    }
}
