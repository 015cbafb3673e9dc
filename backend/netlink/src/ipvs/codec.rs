//! Virtual servers and destinations in messages. Numbers are in host byte order, addresses and ports in network byte
//! order.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use proto::model::{IpFamily, Protocol};

use super::{
    Destination, IpvsTimeouts, Scheduling, VirtualServerKey,
    abi::{self, dest, svc},
};
use crate::{
    attr::{Attr, Attrs, Put},
    family,
    message::attributes,
};

/// An address takes 16 bytes, whatever its family (`union nf_inet_addr`).
const ADDRESS_BYTES: usize = 16;

/// Appends the key of a virtual server.
pub(super) fn write_service(buf: &mut Vec<u8>, service: &VirtualServerKey) {
    buf.nest(abi::SERVICE, |buf| write_key(buf, service));
}

/// Appends the key of a virtual server and its settings.
pub(super) fn write_scheduling(buf: &mut Vec<u8>, service: &VirtualServerKey, scheduling: &Scheduling) {
    buf.nest(abi::SERVICE, |buf| {
        write_key(buf, service);
        buf.put_str(svc::SCHED_NAME, &scheduling.scheduler);

        // `struct ip_vs_flags`: the flags and the mask of the flags to set.
        let mut flags = [0xff; 8];
        flags[..4].copy_from_slice(&scheduling.flags.to_ne_bytes());
        buf.put(svc::FLAGS, &flags);
        buf.put_ne_u32(svc::TIMEOUT, scheduling.timeout);

        // Persistence per client address: a mask in IPv4, a prefix length in IPv6.
        let mask: u32 = if service.family() == IpFamily::V4 { u32::MAX } else { 128 };
        buf.put_ne_u32(svc::NETMASK, mask);
    });
}

pub(super) fn write_timeouts(buf: &mut Vec<u8>, timeouts: &IpvsTimeouts) {
    buf.put_ne_u32(abi::TIMEOUT_TCP, timeouts.tcp);
    buf.put_ne_u32(abi::TIMEOUT_TCP_FIN, timeouts.tcp_fin);
    buf.put_ne_u32(abi::TIMEOUT_UDP, timeouts.udp);
}

fn write_key(buf: &mut Vec<u8>, service: &VirtualServerKey) {
    buf.put_ne_u16(svc::AF, family::number(service.family()).into());
    match service {
        VirtualServerKey::Address(protocol, address) => {
            buf.put_ne_u16(svc::PROTOCOL, protocol.number().into());
            buf.put(svc::ADDR, &address_bytes(address.ip()));
            buf.put_u16(svc::PORT, address.port());
        }
        VirtualServerKey::FwMark(_, mark) => buf.put_ne_u32(svc::FWMARK, *mark),
    }
}

/// Appends the key of a destination and its settings.
pub(crate) fn write_destination(buf: &mut Vec<u8>, destination: &Destination) {
    buf.nest(abi::DEST, |buf| {
        let address = &destination.address;
        buf.put_ne_u16(dest::ADDR_FAMILY, family::number(IpFamily::of(&address.ip())).into());
        buf.put(dest::ADDR, &address_bytes(address.ip()));
        buf.put_u16(dest::PORT, address.port());
        buf.put_ne_u32(dest::FWD_METHOD, destination.forwarding);
        buf.put_ne_u32(dest::WEIGHT, destination.weight);
        buf.put_ne_u32(dest::U_THRESH, destination.upper_threshold);
        buf.put_ne_u32(dest::L_THRESH, destination.lower_threshold);
    });
}

/// The virtual server in a message of a dump; `None` if a required attribute is missing.
pub(crate) fn read_service(payload: &[u8]) -> Option<VirtualServerKey> {
    let nest = content(payload, abi::SERVICE)?;
    let family = read_family(&nest.find(svc::AF)?)?;
    if let Some(mark) = nest.find(svc::FWMARK) {
        return Some(VirtualServerKey::FwMark(family, mark.ne_u32()?));
    }

    let protocol = Protocol::from_number(nest.find(svc::PROTOCOL)?.ne_u16()?.try_into().ok()?)?;
    let ip = read_ip(family, &nest.find(svc::ADDR)?)?;
    let port = nest.find(svc::PORT)?.u16()?;
    Some(VirtualServerKey::Address(protocol, SocketAddr::new(ip, port)))
}

/// The scheduling of the virtual server in a message of a dump.
pub(crate) fn read_scheduling(payload: &[u8]) -> Option<Scheduling> {
    let nest = content(payload, abi::SERVICE)?;
    let flags = nest.find(svc::FLAGS)?.payload.first_chunk::<4>()?;
    Some(Scheduling {
        scheduler: nest.find(svc::SCHED_NAME)?.str()?.into(),
        flags: u32::from_ne_bytes(*flags) & !abi::HASHED,
        timeout: nest.find(svc::TIMEOUT)?.ne_u32()?,
    })
}

pub(crate) fn read_timeouts(payload: &[u8]) -> Option<IpvsTimeouts> {
    let attributes = attributes(payload)?;
    let number = |kind| attributes.find(kind)?.ne_u32();
    Some(IpvsTimeouts {
        tcp: number(abi::TIMEOUT_TCP)?,
        tcp_fin: number(abi::TIMEOUT_TCP_FIN)?,
        udp: number(abi::TIMEOUT_UDP)?,
    })
}

/// The destination in a message of a dump.
pub(crate) fn read_destination(payload: &[u8]) -> Option<Destination> {
    let nest = content(payload, abi::DEST)?;
    let family = read_family(&nest.find(dest::ADDR_FAMILY)?)?;
    let ip = read_ip(family, &nest.find(dest::ADDR)?)?;
    let port = nest.find(dest::PORT)?.u16()?;

    let number = |kind| nest.find(kind)?.ne_u32();
    Some(Destination {
        address: SocketAddr::new(ip, port),
        forwarding: number(dest::FWD_METHOD)?,
        weight: number(dest::WEIGHT)?,
        upper_threshold: number(dest::U_THRESH)?,
        lower_threshold: number(dest::L_THRESH)?,
        active: number(dest::ACTIVE_CONNS)?,
        inactive: number(dest::INACT_CONNS)?,
    })
}

/// The attributes nested in the attribute of this kind.
fn content(payload: &[u8], kind: u16) -> Option<Attrs<'_>> {
    Some(attributes(payload)?.find(kind)?.nested())
}

fn read_family(attr: &Attr<'_>) -> Option<IpFamily> {
    family::from_number(attr.ne_u16()?)
}

fn read_ip(family: IpFamily, attr: &Attr<'_>) -> Option<IpAddr> {
    let bytes = attr.payload.first_chunk::<ADDRESS_BYTES>()?;
    Some(match family {
        IpFamily::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        IpFamily::V6 => Ipv6Addr::from(*bytes).into(),
    })
}

fn address_bytes(ip: IpAddr) -> [u8; ADDRESS_BYTES] {
    match ip {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut bytes = [0; ADDRESS_BYTES];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
    }
}
