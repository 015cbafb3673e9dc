//! A packet that opens a connection, with the fields that rules can match.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ::iptables::Side;
use netlink::nft::PayloadBase;
use proto::model::{IpFamily, Protocol};
use serde::Serialize;

/// Where the packet comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketOrigin {
    /// It is sent by a process of this node.
    Node,
    /// It is received on this interface; an empty name when the interface is unknown.
    Interface(String),
}

/// A packet. A TCP packet is a SYN, an SCTP packet an INIT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// The source address and port.
    pub source: SocketAddr,
    /// The destination address and port.
    pub destination: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where it comes from.
    pub origin: PacketOrigin,
}

/// The length of the headers that a rule may read: that of IPv6, and as much of TCP.
const HEADER_LEN: usize = 40;
/// The offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;
const SYN: u8 = 0x02;

impl Packet {
    /// Whether these bytes of a header follow from this struct. Other bytes depend on the sender or on the link: DSCP,
    /// flow labels, lengths, TTL, sequence numbers, windows, checksums, options, MAC addresses. The packet is not a
    /// fragment.
    pub(crate) fn knows(&self, base: PayloadBase, offset: u32, len: u32) -> bool {
        const END: u32 = u32::MAX;
        let unknown: &[(u32, u32)] = match (base, self.family(), self.protocol) {
            (PayloadBase::Link, ..) => return false,
            (PayloadBase::Network, IpFamily::V4, _) => &[(1, 6), (8, 9), (10, 12)],
            (PayloadBase::Network, IpFamily::V6, _) => &[(1, 6), (7, 8)],
            (PayloadBase::Transport, _, Protocol::Tcp) => &[(4, 8), (12, 13), (14, 18), (20, END)],
            (PayloadBase::Transport, _, Protocol::Udp) => &[(4, END)],
            (PayloadBase::Transport, _, Protocol::Sctp) => &[(8, END)],
        };
        let to = offset.saturating_add(len);
        unknown.iter().all(|(first, end)| to <= *first || *end <= offset)
    }

    /// Bytes of a header; `None` when the header has no such bytes.
    pub(crate) fn bytes(&self, base: PayloadBase, offset: u32, len: u32) -> Option<Vec<u8>> {
        let mut header = [0; HEADER_LEN];
        match base {
            PayloadBase::Link => return None,
            PayloadBase::Network => match (self.source.ip(), self.destination.ip()) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    header[0] = 0x45;
                    header[9] = self.protocol.number();
                    header[12..16].copy_from_slice(&source.octets());
                    header[16..20].copy_from_slice(&destination.octets());
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    header[0] = 0x60;
                    header[6] = self.protocol.number();
                    header[8..24].copy_from_slice(&source.octets());
                    header[24..40].copy_from_slice(&destination.octets());
                }
                _ => return None,
            },
            PayloadBase::Transport => {
                header[..2].copy_from_slice(&self.source.port().to_be_bytes());
                header[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
                if self.protocol == Protocol::Tcp {
                    header[TCP_FLAGS] = SYN;
                }
            }
        }

        let from = offset as usize;
        header.get(from..from.checked_add(len as usize)?).map(<[u8]>::to_vec)
    }

    /// The address and port of a side.
    pub(crate) fn end(&self, side: Side) -> SocketAddr {
        if side == Side::Source { self.source } else { self.destination }
    }

    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(&self.destination.ip())
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.protocol.lower(), self.source, self.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_depend_on_the_sender_are_not_known() {
        let packet = Packet {
            source: "10.0.0.1:4096".parse().unwrap(),
            destination: "10.96.0.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            origin: PacketOrigin::Node,
        };
        let knows = |base, offset, len| packet.knows(base, offset, len);
        // The protocol, both addresses, the ports, the flags.
        assert!(knows(PayloadBase::Network, 9, 1) && knows(PayloadBase::Network, 12, 8));
        assert!(knows(PayloadBase::Transport, 0, 4) && knows(PayloadBase::Transport, 13, 1));
        // DSCP, the length, the TTL, the window, options, the link.
        assert!(!knows(PayloadBase::Network, 1, 1) && !knows(PayloadBase::Network, 2, 2));
        assert!(!knows(PayloadBase::Network, 8, 2));
        assert!(!knows(PayloadBase::Transport, 14, 2) && !knows(PayloadBase::Transport, 20, 4));
        assert!(!knows(PayloadBase::Link, 6, 6));
        let udp = Packet { protocol: Protocol::Udp, ..packet.clone() };
        assert!(udp.knows(PayloadBase::Transport, 2, 2) && !udp.knows(PayloadBase::Transport, 4, 2));
    }

    #[test]
    fn header_fields_are_at_their_offsets() {
        let mut packet = Packet {
            source: "10.0.0.1:4096".parse().unwrap(),
            destination: "10.96.0.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            origin: PacketOrigin::Node,
        };
        assert_eq!(packet.bytes(PayloadBase::Network, 16, 4), Some(vec![10, 96, 0, 1]));
        assert_eq!(packet.bytes(PayloadBase::Network, 9, 1), Some(vec![6]));
        assert_eq!(packet.bytes(PayloadBase::Transport, 0, 4), Some(vec![16, 0, 0, 80]));
        assert_eq!(packet.bytes(PayloadBase::Transport, 13, 1), Some(vec![2]));
        assert_eq!(packet.bytes(PayloadBase::Transport, 39, 2), None);
        packet.destination = "[fd00::1]:80".parse().unwrap();
        assert_eq!(packet.bytes(PayloadBase::Network, 16, 4), None, "no packet has both families");
        packet.source = "[fd00::2]:80".parse().unwrap();
        assert_eq!(packet.bytes(PayloadBase::Network, 38, 2), Some(vec![0, 1]));
    }
}
