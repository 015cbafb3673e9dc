//! The reply of a server to a client, one line of text: `pod-a-1 172.16.0.1:40000 10.244.1.11:8080`. It is the greeting
//! over TCP, precedes the echoed payload over UDP, and is the state cookie over SCTP.

use std::{fmt, io, net::SocketAddr, str::FromStr};

use nix::libc;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP: a connection.
    Tcp,
    /// UDP: one datagram there and one back.
    Udp,
    /// SCTP: an INIT there and an INIT ACK back, without an association (see `sctp`).
    Sctp,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The name of the server.
    pub pod: String,
    /// The source address that the server saw, possibly translated.
    pub seen_source: SocketAddr,
    /// The server's own address and port.
    pub endpoint: SocketAddr,
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Rejected: a TCP reset to the SYN, an ICMP port unreachable, an SCTP ABORT.
    #[error("refused")]
    Refused,
    /// No answer within the deadline: dropped.
    #[error("timed out")]
    TimedOut,
    /// No route, prohibited by a router, or a protocol that the host does not support: all reported by ICMP.
    #[error("unreachable")]
    Unreachable,
    /// An established connection was reset or closed.
    #[error("connection lost")]
    Lost,
    /// Any other error, which no VIP causes.
    #[error("{0}")]
    Other(String),
}

// === impl Protocol ===

impl Protocol {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The name in a Service's `ports[].protocol`.
    pub fn kubernetes(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kubernetes())
    }
}

// === impl Reply ===

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pod, self.seen_source, self.endpoint)
    }
}

impl FromStr for Reply {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        let invalid = || Failure::Other(format!("not a reply: {line:?}"));
        let mut words = line.split_whitespace();
        let (Some(pod), Some(source), Some(endpoint), None) = (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(invalid());
        };
        Ok(Self {
            pod: pod.to_owned(),
            seen_source: source.parse().map_err(|_| invalid())?,
            endpoint: endpoint.parse().map_err(|_| invalid())?,
        })
    }
}

// === impl Failure ===

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            // The last two: ICMP protocol unreachable, and its counterpart in ICMPv6.
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::ENOPROTOOPT | libc::EPROTO) => {
                Self::Unreachable
            }
            Some(libc::ECONNRESET | libc::EPIPE) => Self::Lost,
            // EAGAIN: a socket's read timeout.
            Some(libc::ETIMEDOUT | libc::EAGAIN) => Self::TimedOut,
            _ => match error.kind() {
                io::ErrorKind::TimedOut => Self::TimedOut,
                io::ErrorKind::UnexpectedEof => Self::Lost,
                _ => Self::Other(error.to_string()),
            },
        }
    }
}
