//! A packet that opens a connection, as far as rules ask for it.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use netlink::nft::PayloadBase;
use serde::Serialize;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP; the packet is a SYN.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP; the packet is an INIT.
    Sctp,
}

/// How the packet comes into the node's rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A process of this node sends it.
    Node,
    /// It arrives through an interface; an empty name: through one that is not known.
    Interface(String),
}

/// A packet, as it is when a rule looks at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// Whose.
    pub source: SocketAddr,
    /// Where to.
    pub destination: SocketAddr,
    /// How.
    pub protocol: Protocol,
    /// Where it came in.
    pub entry: Entry,
}

/// How long the headers are that a rule may read: IPv6, and as much of TCP.
const HEADER: usize = 40;
/// The flag of a packet that opens a TCP connection, and where it is.
const TCP_SYN: (usize, u8) = (13, 0x02);

// === impl Protocol ===

impl Protocol {
    /// `IPPROTO_*`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Tcp, Self::Udp, Self::Sctp];
        let found = all.into_iter().find(|protocol| protocol.to_string() == text.to_lowercase());
        found.ok_or_else(|| format!("{text:?}: expected tcp, udp or sctp"))
    }
}

// === impl Packet ===

impl Packet {
    /// Bytes of a header; `None` where it has none of these.
    pub(crate) fn bytes(&self, base: PayloadBase, offset: u32, len: u32) -> Option<Vec<u8>> {
        let mut header = [0; HEADER];
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
                    header[TCP_SYN.0] = TCP_SYN.1;
                }
            }
        }
        let from = offset as usize;
        header.get(from..from.checked_add(len as usize)?).map(<[u8]>::to_vec)
    }

    /// Whether it is IPv4.
    pub(crate) fn is_v4(&self) -> bool {
        self.destination.is_ipv4()
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.protocol, self.source, self.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_where_rules_read_them() {
        let mut packet = Packet {
            source: "10.0.0.1:4096".parse().unwrap(),
            destination: "10.96.0.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            entry: Entry::Node,
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
