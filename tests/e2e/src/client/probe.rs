//! A request over each protocol, which the calling thread makes in its own namespace.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket},
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};
use socket2::{Domain, Socket, Type};

use super::Probe;
use crate::{
    plan::IpFamily,
    sctp::{Chunk, IPPROTO_SCTP, Packet},
    wire::{Failure, Protocol, Reply},
};

/// Between two attempts to use a source port that is still in use.
const PORT_POLL: Duration = Duration::from_millis(5);

impl Probe {
    /// Makes one request.
    pub(crate) fn ask(self, protocol: Protocol, to: SocketAddr) -> Result<Reply, Failure> {
        match protocol {
            Protocol::Tcp => self.tcp(to),
            Protocol::Udp => self.udp(to),
            Protocol::Sctp => self.sctp(to),
        }
    }

    /// Opens a TCP connection, reads its greeting, and closes it. With any source port, the server has closed it too:
    /// no node counts it as a connection any more, which a withdrawn virtual server of IPVS would wait for.
    fn tcp(self, to: SocketAddr) -> Result<Reply, Failure> {
        let (reply, stream) = self.connect(to)?;
        if self.source.is_none_or(|source| source.port() == 0) {
            let mut stream = stream.into_inner();
            let closed = stream.set_read_timeout(Some(self.deadline.min(self.handshake)));
            // What happens after the answer is not what was asked for.
            let _ = closed.and_then(|()| stream.shutdown(Shutdown::Write)).and_then(|()| stream.read(&mut [0]));
        }
        Ok(reply)
    }

    /// Opens a TCP connection and reads its greeting; what is sent on it is echoed.
    pub(crate) fn connect(self, to: SocketAddr) -> Result<(Reply, BufReader<TcpStream>), Failure> {
        let start = Instant::now();
        let socket = loop {
            let socket = self.socket(to, Type::STREAM, None)?;
            match socket.connect_timeout(&to.into(), self.deadline.min(self.handshake)) {
                // A child process that has not executed its program yet has a copy of the last socket of this port.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable && start.elapsed() < self.deadline => {
                    thread::sleep(PORT_POLL);
                }
                connected => {
                    connected?;
                    break socket;
                }
            }
        };
        // Once established, the connection ignores transient ICMP errors, as usual.
        report_icmp_errors(&socket, to, IcmpErrors::Fatal)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.left(start)))?;
        let mut reader = BufReader::new(stream);
        let mut greeting = String::new();
        if reader.read_line(&mut greeting)? == 0 {
            return Err(Failure::Lost);
        }
        Ok((greeting.parse()?, reader))
    }

    /// A UDP socket connected to `to`, which also reports ICMP errors.
    pub(crate) fn udp_socket(self, to: SocketAddr) -> Result<UdpSocket, Failure> {
        let socket = self.socket(to, Type::DGRAM, None)?;
        if self.source.is_none_or(|source| source.port() == 0) {
            bind_to_fresh_port(&socket, self.source, to)?;
        }
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(self.deadline))?;
        Ok(socket.into())
    }

    fn udp(self, to: SocketAddr) -> Result<Reply, Failure> {
        let start = Instant::now();
        let socket = self.udp_socket(to)?;
        let mut buffer = [0; 256];
        loop {
            sent(socket.send(b"ping"))?;
            socket.set_read_timeout(Some(self.left(start).min(self.repeat)))?;
            match socket.recv(&mut buffer) {
                Err(error) if self.is_to_repeat(&error, start) => {}
                received => return Ok(split_datagram(&buffer[..received?])?.0),
            }
        }
    }

    fn sctp(self, to: SocketAddr) -> Result<Reply, Failure> {
        let start = Instant::now();
        let socket = self.socket(to, Type::RAW, Some(IPPROTO_SCTP.into()))?;
        // The kernel rejects an address for a raw IPv6 socket if its port is not the number of the protocol.
        socket.connect(&SocketAddr::new(to.ip(), 0).into())?;
        let tag = next_number();
        let source_port = match self.source {
            Some(source) if source.port() != 0 => source.port(),
            _ => fresh_port(tag),
        };
        let init = Packet { source_port, destination_port: to.port(), verification_tag: 0, chunk: Chunk::Init { tag } };
        sent((&socket).write(&init.encode()))?;
        loop {
            socket.set_read_timeout(Some(self.left(start).min(self.repeat)))?;
            let mut buffer = [0; 512];
            let length = match (&socket).read(&mut buffer) {
                Err(error) if self.is_to_repeat(&error, start) => {
                    sent((&socket).write(&init.encode()))?;
                    continue;
                }
                read => read?,
            };
            let Some(packet) = Packet::decode(strip_ip_header(to, &buffer[..length])) else { continue };
            // A raw socket receives every SCTP packet of the host: answers to other probes are skipped.
            if (packet.source_port, packet.destination_port, packet.verification_tag) != (to.port(), source_port, tag) {
                continue;
            }
            match packet.chunk {
                Chunk::InitAck { cookie, .. } => return String::from_utf8_lossy(&cookie).parse(),
                Chunk::Abort => return Err(Failure::Refused),
                Chunk::Init { .. } => {}
            }
        }
    }

    fn socket(self, to: SocketAddr, kind: Type, protocol: Option<socket2::Protocol>) -> Result<Socket, Failure> {
        let socket = Socket::new(Domain::for_address(to), kind, protocol)?;
        report_icmp_errors(&socket, to, IcmpErrors::All)?;
        let binds_later = |source: &SocketAddr| kind == Type::DGRAM && source.port() == 0;
        if let Some(mut source) = self.source.filter(|source| !binds_later(source)) {
            if kind == Type::RAW {
                source.set_port(0);
            }
            if kind == Type::STREAM && source.port() != 0 {
                // Closed by a reset: the next request from the same port must not wait for this one's TIME_WAIT.
                socket.set_linger(Some(Duration::ZERO))?;
            }
            socket.set_reuse_address(true)?;
            socket.bind(&source.into())?;
        }
        Ok(socket)
    }

    /// Whether a read failed since its answer is late, and not yet at the deadline.
    fn is_to_repeat(self, error: &io::Error, start: Instant) -> bool {
        // Linux reports the timeout of a socket as EAGAIN.
        error.kind() == ErrorKind::WouldBlock && start.elapsed() < self.deadline
    }

    /// The time until the deadline, but not zero, which a socket takes for no timeout.
    fn left(self, start: Instant) -> Duration {
        self.deadline.saturating_sub(start.elapsed()).max(Duration::from_millis(1))
    }
}

/// The result of sending, without EPERM: if an output rule rejects or drops a packet, the call fails in both cases. The
/// next read of the socket distinguishes them by the ICMP error, as for packets that are stopped further on.
fn sent(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => Err(error),
        _ => Ok(()),
    }
}

/// Which ICMP errors a socket reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IcmpErrors {
    /// The kernel's default: only port unreachable for UDP and SCTP, and for TCP no error that arrives while connect()
    /// still locks the socket. Between namespaces errors do arrive that early, and the next SYN follows after a second.
    Fatal,
    /// All of them, immediately.
    All,
}

fn report_icmp_errors(socket: &Socket, to: SocketAddr, errors: IcmpErrors) -> io::Result<()> {
    let all = errors == IcmpErrors::All;
    match IpFamily::of(&to.ip()) {
        IpFamily::V4 => setsockopt(socket, sockopt::Ipv4RecvErr, &all)?,
        IpFamily::V6 => setsockopt(socket, sockopt::Ipv6RecvErr, &all)?,
    }
    Ok(())
}

/// A datagram of a server: its reply, and the echoed payload.
pub(crate) fn split_datagram(datagram: &[u8]) -> Result<(Reply, &[u8]), Failure> {
    let end = datagram.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| Failure::Other("a datagram without a reply line".into()))?;
    Ok((String::from_utf8_lossy(&datagram[..end]).parse()?, &datagram[end + 1..]))
}

/// A raw IPv4 socket reads the IP header too, a raw IPv6 socket does not.
pub(crate) fn strip_ip_header(family: SocketAddr, packet: &[u8]) -> &[u8] {
    match packet.first() {
        Some(first) if family.is_ipv4() => packet.get(usize::from(first & 0xf) * 4..).unwrap_or_default(),
        _ => packet,
    }
}

/// Binds to a port that was not used before. The kernel would choose a random one, for which conntrack may still have
/// an entry with the endpoint of an earlier flow.
fn bind_to_fresh_port(socket: &Socket, source: Option<SocketAddr>, to: SocketAddr) -> io::Result<()> {
    let any: IpAddr = match IpFamily::of(&to.ip()) {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    loop {
        let address = source.map_or(any, |source| source.ip());
        let bound = socket.bind(&SocketAddr::new(address, fresh_port(next_number())).into());
        match bound {
            // A stream uses it.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            _ => return bound,
        }
    }
}

/// A port of the kernel's ephemeral range; 28,000 consecutive numbers give different ones.
fn fresh_port(number: u32) -> u16 {
    u16::try_from(32_768 + number % 28_000).expect("below 65,536")
}

/// A number that is not 0, from a start that differs between processes.
fn next_number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    (process::id() << 8).wrapping_add(NUMBER.fetch_add(1, Ordering::Relaxed)).max(1)
}
