//! Virtual servers and destinations in messages. Numbers are in the machine's byte order, addresses and ports in the
//! network's.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{
    AddressFamily, Destination, IpvsProtocol, IpvsTimeouts, Scheduling, VirtualServerKey,
    abi::{self, dest, svc},
};
use crate::{
    attr::{Attr, Attrs, Put, attrs},
    genl,
};

/// An address takes 16 bytes, whatever its family (`union nf_inet_addr`).
const ADDRESS: usize = 16;

/// Appends what names a virtual server.
pub(super) fn write_service(buf: &mut Vec<u8>, service: &VirtualServerKey) {
    let nest = buf.open(abi::SERVICE);
    write_name(buf, service);
    buf.close(nest);
}

/// Appends a virtual server and all that can be set of it.
pub(super) fn write_scheduling(buf: &mut Vec<u8>, service: &VirtualServerKey, scheduling: &Scheduling) {
    let nest = buf.open(abi::SERVICE);
    write_name(buf, service);
    buf.put_str(svc::SCHED_NAME, &scheduling.scheduler);
    // `struct ip_vs_flags`: the flags, and which of them are meant.
    let mut flags = [0xff; 8];
    flags[..4].copy_from_slice(&scheduling.flags.to_ne_bytes());
    buf.put(svc::FLAGS, &flags);
    buf.put(svc::TIMEOUT, &scheduling.timeout.to_ne_bytes());
    // Each client by itself: a mask in IPv4, the length of a prefix in IPv6.
    let mask: u32 = if service.family() == AddressFamily::V4 { u32::MAX } else { 128 };
    buf.put(svc::NETMASK, &mask.to_ne_bytes());
    buf.close(nest);
}

/// Appends all timeouts.
pub(super) fn write_timeouts(buf: &mut Vec<u8>, timeouts: &IpvsTimeouts) {
    buf.put(abi::TIMEOUT_TCP, &timeouts.tcp.to_ne_bytes());
    buf.put(abi::TIMEOUT_TCP_FIN, &timeouts.tcp_fin.to_ne_bytes());
    buf.put(abi::TIMEOUT_UDP, &timeouts.udp.to_ne_bytes());
}

fn write_name(buf: &mut Vec<u8>, service: &VirtualServerKey) {
    match service {
        VirtualServerKey::Address(protocol, address) => {
            buf.put(svc::AF, &u16::from(AddressFamily::of(&address.ip()).number()).to_ne_bytes());
            buf.put(svc::PROTOCOL, &u16::from(protocol.number()).to_ne_bytes());
            buf.put(svc::ADDR, &address_bytes(address.ip()));
            buf.put(svc::PORT, &address.port().to_be_bytes());
        }
        VirtualServerKey::FwMark(family, mark) => {
            buf.put(svc::AF, &u16::from(family.number()).to_ne_bytes());
            buf.put(svc::FWMARK, &mark.to_ne_bytes());
        }
    }
}

/// Appends all that can be set of a destination.
pub(super) fn write_destination(buf: &mut Vec<u8>, destination: &Destination) {
    let nest = buf.open(abi::DEST);
    let address = &destination.address;
    buf.put(dest::ADDR_FAMILY, &u16::from(AddressFamily::of(&address.ip()).number()).to_ne_bytes());
    buf.put(dest::ADDR, &address_bytes(address.ip()));
    buf.put(dest::PORT, &address.port().to_be_bytes());
    buf.put(dest::FWD_METHOD, &destination.forwarding.to_ne_bytes());
    buf.put(dest::WEIGHT, &destination.weight.to_ne_bytes());
    buf.put(dest::U_THRESH, &destination.upper_threshold.to_ne_bytes());
    buf.put(dest::L_THRESH, &destination.lower_threshold.to_ne_bytes());
    buf.close(nest);
}

/// The virtual server in a message of a dump; `None` when something is missing that must be there.
pub(super) fn read_service(payload: &[u8]) -> Option<VirtualServerKey> {
    let nest = content(payload, abi::SERVICE)?;
    let family = family(&nest.clone().find(svc::AF)?)?;
    if let Some(mark) = nest.clone().find(svc::FWMARK) {
        return Some(VirtualServerKey::FwMark(family, mark.ne_u32()?));
    }
    let protocol = IpvsProtocol::from_number(nest.clone().find(svc::PROTOCOL)?.ne_u16()?)?;
    let ip = ip(family, &nest.clone().find(svc::ADDR)?)?;
    Some(VirtualServerKey::Address(protocol, SocketAddr::new(ip, port(&nest.clone().find(svc::PORT)?)?)))
}

/// How the virtual server in a message of a dump schedules.
pub(super) fn read_scheduling(payload: &[u8]) -> Option<Scheduling> {
    let nest = content(payload, abi::SERVICE)?;
    let flags = nest.clone().find(svc::FLAGS)?.payload.first_chunk::<4>()?;
    Some(Scheduling {
        scheduler: nest.clone().find(svc::SCHED_NAME)?.str()?.into(),
        flags: u32::from_ne_bytes(*flags) & !abi::HASHED,
        timeout: nest.clone().find(svc::TIMEOUT)?.ne_u32()?,
    })
}

/// The timeouts in an answer.
pub(super) fn read_timeouts(payload: &[u8]) -> Option<IpvsTimeouts> {
    let attributes = attrs(payload.get(genl::HEADER..)?);
    let number = |kind| attributes.clone().find(kind)?.ne_u32();
    Some(IpvsTimeouts {
        tcp: number(abi::TIMEOUT_TCP)?,
        tcp_fin: number(abi::TIMEOUT_TCP_FIN)?,
        udp: number(abi::TIMEOUT_UDP)?,
    })
}

/// The destination in a message of a dump. `of` is the family of its virtual server: older kernels do not tell the
/// destination's, which is the same there.
pub(super) fn read_destination(payload: &[u8], of: AddressFamily) -> Option<Destination> {
    let nest = content(payload, abi::DEST)?;
    let number = |kind| nest.clone().find(kind)?.ne_u32();
    let family = match nest.clone().find(dest::ADDR_FAMILY) {
        Some(attr) => family(&attr)?,
        None => of,
    };
    let ip = ip(family, &nest.clone().find(dest::ADDR)?)?;
    Some(Destination {
        address: SocketAddr::new(ip, port(&nest.clone().find(dest::PORT)?)?),
        forwarding: number(dest::FWD_METHOD)?,
        weight: number(dest::WEIGHT)?,
        upper_threshold: number(dest::U_THRESH)?,
        lower_threshold: number(dest::L_THRESH)?,
        active: number(dest::ACTIVE_CONNS)?,
        inactive: number(dest::INACT_CONNS)?,
    })
}

fn content(payload: &[u8], kind: u16) -> Option<Attrs<'_>> {
    Some(attrs(payload.get(genl::HEADER..)?).find(kind)?.nested())
}

fn family(attr: &Attr<'_>) -> Option<AddressFamily> {
    AddressFamily::from_number(attr.ne_u16()?)
}

fn port(attr: &Attr<'_>) -> Option<u16> {
    Some(u16::from_be_bytes(attr.payload.try_into().ok()?))
}

fn ip(family: AddressFamily, attr: &Attr<'_>) -> Option<IpAddr> {
    let bytes = attr.payload.first_chunk::<ADDRESS>()?;
    Some(match family {
        AddressFamily::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        AddressFamily::V6 => Ipv6Addr::from(*bytes).into(),
    })
}

fn address_bytes(ip: IpAddr) -> [u8; ADDRESS] {
    match ip {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; ADDRESS];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
    }
}
