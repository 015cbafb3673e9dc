//! Links and addresses in messages. Numbers are in the machine's byte order, addresses in the network's.

use std::net::IpAddr;

use super::{
    Device, State,
    abi::{self, address, link},
};
use crate::{
    attr::{Put, attrs},
    exchange::SEQ,
    message::{self, flags},
};

/// Appends a request for a link by its name.
pub(super) fn write_find(buf: &mut Vec<u8>, name: &str) {
    write_named(buf, abi::GET_LINK, name);
}

/// Appends a request to delete a link by its name.
pub(super) fn write_delete(buf: &mut Vec<u8>, name: &str) {
    write_named(buf, abi::DELETE_LINK, name);
}

/// The number of the link is 0: its name tells which.
fn write_named(buf: &mut Vec<u8>, kind: u16, name: &str) {
    let at = message::start(buf, kind, flags::REQUEST | flags::ACK, SEQ);
    buf.extend_from_slice(&[0; abi::IFINFOMSG]);
    buf.put_str(link::NAME, name);
    message::finish(buf, at);
}

/// Appends a request to make a dummy device that is up.
pub(super) fn write_create_dummy(buf: &mut Vec<u8>, name: &str) {
    let more_flags = flags::CREATE | flags::EXCL;
    let at = message::start(buf, abi::NEW_LINK, flags::REQUEST | flags::ACK | more_flags, SEQ);
    write_ifinfomsg(buf, 0);
    buf.put_str(link::NAME, name);
    let info = buf.open(link::INFO);
    buf.put(link::KIND, b"dummy");
    buf.close(info);
    message::finish(buf, at);
}

/// Appends a request to set a link up.
pub(super) fn write_up(buf: &mut Vec<u8>, index: u32) {
    let at = message::start(buf, abi::NEW_LINK, flags::REQUEST | flags::ACK, SEQ);
    write_ifinfomsg(buf, index);
    message::finish(buf, at);
}

/// One that is, or comes, up.
fn write_ifinfomsg(buf: &mut Vec<u8>, index: u32) {
    buf.extend_from_slice(&[0; 4]);
    buf.extend_from_slice(&index.to_ne_bytes());
    buf.extend_from_slice(&abi::UP.to_ne_bytes());
    buf.extend_from_slice(&abi::UP.to_ne_bytes());
}

/// Appends a request for the addresses of a link.
pub(super) fn write_list(buf: &mut Vec<u8>, family: u8, index: u32) {
    let at = message::start(buf, abi::GET_ADDRESS, flags::REQUEST | flags::DUMP, SEQ);
    write_ifaddrmsg(buf, family, 0, 0, index);
    message::finish(buf, at);
}

/// Appends what a request says of an address.
pub(super) fn write_address(buf: &mut Vec<u8>, index: u32, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => {
            write_ifaddrmsg(buf, abi::INET, 32, abi::SCOPE_HOST, index);
            buf.put(address::LOCAL, &v4.octets());
            buf.put(address::ADDRESS, &v4.octets());
        }
        IpAddr::V6(v6) => {
            write_ifaddrmsg(buf, abi::INET6, 128, abi::SCOPE_UNIVERSE, index);
            buf.put(address::LOCAL, &v6.octets());
            buf.put(address::ADDRESS, &v6.octets());
            buf.put(address::FLAGS, &(abi::NODAD | abi::NOPREFIXROUTE).to_ne_bytes());
            // `struct ifa_cacheinfo`: preferred for no time, valid for ever, and two times that count for nothing.
            let mut cacheinfo = [0; 16];
            cacheinfo[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
            buf.put(address::CACHEINFO, &cacheinfo);
        }
    }
}

fn write_ifaddrmsg(buf: &mut Vec<u8>, family: u8, prefix: u8, scope: u8, index: u32) {
    buf.extend_from_slice(&[family, prefix, 0, scope]);
    buf.extend_from_slice(&index.to_ne_bytes());
}

/// The link in an answer; `None` when it is too short.
pub(super) fn read_device(payload: &[u8]) -> Option<Device> {
    let header = payload.first_chunk::<{ abi::IFINFOMSG }>()?;
    let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let state = if word(8) & abi::UP == 0 { State::Down } else { State::Up };
    Some(Device { index: word(4), state })
}

/// The address in a message of a list, and whose it is. Without an address for those that IPv6 makes (`fe80::`).
pub(super) fn read_address(payload: &[u8]) -> Option<(u32, Option<IpAddr>)> {
    let header = payload.first_chunk::<{ abi::IFADDRMSG }>()?;
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let attributes = attrs(&payload[abi::IFADDRMSG..]);
    // IFA_LOCAL is the device's own, where it is told; IFA_ADDRESS may be that of the other end.
    let local = attributes.clone().find(address::LOCAL).or_else(|| attributes.find(address::ADDRESS))?;
    let ip: IpAddr = match header[0] {
        abi::INET => <[u8; 4]>::try_from(local.payload).ok()?.into(),
        abi::INET6 => <[u8; 16]>::try_from(local.payload).ok()?.into(),
        _ => return None,
    };
    let is_kernels = header[0] == abi::INET6 && header[3] == abi::SCOPE_LINK;
    Some((index, (!is_kernels).then_some(ip)))
}
