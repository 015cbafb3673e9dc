//! The segment that makes a client send: a SYN ACK in the name of the endpoint, which takes the way of its replies.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink::conntrack::Flow;
use proto::model::IpFamily;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::Nat;

/// `IPPROTO_RAW`: the caller writes the IP header.
const IPPROTO_RAW: i32 = 255;

/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// The bytes of a TCP header without options.
const TCP_HEADER: usize = 20;

const FLAGS_SYN_ACK: u8 = 0x12;
const HOPS: u8 = 64;

/// Sends probes of one family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct ProbeSocket(Socket);

impl ProbeSocket {
    /// Requires `CAP_NET_RAW`.
    pub(super) fn open(family: IpFamily) -> io::Result<Self> {
        let domain = match family {
            IpFamily::V4 => Domain::IPV4,
            IpFamily::V6 => Domain::IPV6,
        };
        Socket::new(domain, Type::RAW, Some(Protocol::from(IPPROTO_RAW))).map(Self)
    }

    /// Sends a probe from the endpoint of a connection to its client. The kernel translates it like a reply. IPVS
    /// does so before the kernel takes back that it masquerades; with netfilter that comes first.
    pub(super) fn send(&self, flow: &Flow, nat: Nat) -> io::Result<()> {
        let to = match nat {
            Nat::Ipvs => flow.original.source,
            Nat::Netfilter => flow.reply.destination,
        };
        // The kernel takes the port from the segment.
        let address = SockAddr::from(SocketAddr::new(to.ip(), 0));
        self.0.send_to(&packet(flow.reply.source, to), &address).map(drop)
    }
}

/// The IP packet. Its sequence and acknowledgement numbers are arbitrary: a client of an open connection answers a SYN
/// with an ACK, whatever they are.
fn packet(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let source = address(from.ip());
    let destination = address(to.ip());

    let mut segment = Vec::with_capacity(TCP_HEADER);
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    // Five words of header; then the window, the checksum and the urgent pointer.
    segment.extend([5 << 4, FLAGS_SYN_ACK, 4, 0, 0, 0, 0, 0]);

    let checksum = checksum([&source[..], &destination, &[0, TCP, 0, TCP_HEADER as u8], &segment]);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());

    let mut packet = match from {
        // The kernel fills in the length, the identification and the checksum.
        SocketAddr::V4(_) => vec![0x45, 0, 0, 0, 0, 0, 0, 0, HOPS, TCP, 0, 0],
        SocketAddr::V6(_) => vec![0x60, 0, 0, 0, 0, TCP_HEADER as u8, TCP, HOPS],
    };
    packet.extend(source);
    packet.extend(destination);
    packet.extend(segment);
    packet
}

fn address(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// RFC 1071, of parts with an even length.
fn checksum(parts: [&[u8]; 4]) -> u16 {
    let words = parts.into_iter().flat_map(|part| part.chunks_exact(2));
    let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
