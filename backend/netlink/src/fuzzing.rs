//! For fuzz targets: everything that decodes bytes of the kernel, and what is encoded again.

// A panic is how a fuzz target fails.
#![allow(clippy::missing_panics_doc)]

use rtnetlink::packet_core::{NetlinkDeserializable as _, NetlinkHeader};
use rtnetlink::packet_route::RouteNetlinkMessage;

use crate::{
    AddressFamily, conntrack, genl, ipset, ipvs,
    message::{self, HEADER, Message, messages},
    nft, rtnl,
};

/// The messages of a datagram that are no errors. Reads the errors.
fn replies(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    messages(datagram).filter(|message| match message.kind {
        message::ERROR | message::DONE => {
            let _ = message.error_reply().and_then(|reply| reply.check("fuzz"));
            let _ = ipset::fuzzing::error(message.payload);
            false
        }
        _ => true,
    })
}

/// Objects and notifications of nf_tables.
pub fn nf_tables(datagram: &[u8]) {
    replies(datagram).for_each(|message| nft::fuzzing::message(&message));
}

/// Flows of connection tracking.
pub fn conntrack(datagram: &[u8]) {
    replies(datagram).for_each(|message| conntrack::fuzzing::payload(message.payload));
}

/// Sets and entries of ipset.
pub fn ipset(datagram: &[u8]) {
    replies(datagram).for_each(|message| ipset::fuzzing::payload(message.payload));
}

/// Virtual servers and destinations of IPVS, and families of generic netlink.
pub fn ipvs(datagram: &[u8]) {
    for message in replies(datagram) {
        let _ = genl::read_id(message.payload);
        for family in [AddressFamily::V4, AddressFamily::V6] {
            ipvs::fuzzing::payload(message.payload, family);
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
