//! Clients in any namespace: single requests, series of requests, and traffic in the background.

use std::{
    collections::BTreeMap,
    io::BufReader,
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use crate::{
    netns::Netns,
    pace::patience,
    traffic::{Churn, Stream},
    uml,
    wire::{Failure, Protocol, Reply},
};

pub(crate) mod probe;

/// Timeout of a request: on a busy machine, the server waits for a CPU. Requests that are expected to be dropped may
/// have a shorter one.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Timeout of the handshake of TCP, for which the kernel needs no process: below the second after which it retransmits
/// a SYN, which would hide that the first one was dropped.
const HANDSHAKE_DEADLINE: Duration = Duration::from_millis(800);
/// When a datagram is repeated in a guest, as TCP repeats a SYN: beside other programs, its kernel loses one in some
/// ten thousand packets.
const REPEAT: Duration = Duration::from_secs(2);

/// A client in a namespace; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    netns: Netns,
    probe: Probe,
}

/// The parameters of a request, which the calling thread makes in its own namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) deadline: Duration,
    /// Timeout of the handshake of TCP, if that is shorter.
    pub(crate) handshake: Duration,
    /// When a datagram without an answer is repeated.
    pub(crate) repeat: Duration,
}

// === impl Client ===

impl Client {
    /// A client in `netns`.
    pub fn new(netns: &Netns) -> Self {
        // A guest has a share of one CPU, also for its kernel.
        let deadline = patience(DEADLINE);
        let (handshake, repeat) = if uml::is_guest() { (deadline, REPEAT) } else { (HANDSHAKE_DEADLINE, deadline) };
        let probe = Probe { source: None, deadline, handshake, repeat };
        Self { netns: netns.clone(), probe }
    }

    /// The same client, with this source address instead of the kernel's choice.
    pub fn with_source(self, source: IpAddr) -> Self {
        self.with_source_port(SocketAddr::new(source, 0))
    }

    /// The same client, with this source address and port, so that all requests are one flow for conntrack. TCP
    /// connections are then closed by a reset, which frees the port.
    pub fn with_source_port(mut self, source: SocketAddr) -> Self {
        self.probe.source = Some(source);
        self
    }

    /// The same client, with this timeout instead of [`DEADLINE`].
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.probe.deadline = deadline;
        self
    }

    /// The same client, whose handshakes of TCP may take as long as a request. The kernel repeats a SYN that was
    /// dropped.
    pub fn with_slow_handshakes(mut self) -> Self {
        self.probe.handshake = self.probe.deadline;
        self
    }

    /// The source address of its packets to `to`.
    pub(crate) fn source_address_to(&self, to: SocketAddr) -> IpAddr {
        if let Some(source) = self.probe.source {
            return source.ip();
        }
        let any = match to {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        self.netns.run(|| {
            let socket = UdpSocket::bind(any).expect("a socket");
            socket.connect(to).expect("a route");
            socket.local_addr().expect("an address").ip()
        })
    }

    /// Whether it sends from this namespace.
    pub(crate) fn is_in(&self, netns: &Netns) -> bool {
        self.netns.name() == netns.name()
    }

    /// Connects, and reads the server's greeting.
    pub fn tcp(&self, to: SocketAddr) -> Result<Reply, Failure> {
        self.ask(Protocol::Tcp, to)
    }

    /// Sends a datagram, and reads the answer or an ICMP error.
    pub fn udp(&self, to: SocketAddr) -> Result<Reply, Failure> {
        self.ask(Protocol::Udp, to)
    }

    /// Sends an SCTP INIT, and reads the INIT ACK or an ICMP error.
    pub fn sctp(&self, to: SocketAddr) -> Result<Reply, Failure> {
        self.ask(Protocol::Sctp, to)
    }

    /// Makes one request.
    pub fn ask(&self, protocol: Protocol, to: SocketAddr) -> Result<Reply, Failure> {
        self.netns.run(|| self.probe.ask(protocol, to))
    }

    /// Opens a TCP connection whose messages are echoed. Its greeting is read.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<(Reply, BufReader<TcpStream>), Failure> {
        self.netns.run(|| self.probe.connect(to))
    }

    /// Sends requests one after the other until the callback stops or one of them fails.
    pub(crate) fn ask_until(
        &self,
        protocol: Protocol,
        to: SocketAddr,
        mut is_enough: impl FnMut(Reply) -> bool + Send,
    ) -> Result<(), Failure> {
        self.netns.run(|| {
            while !is_enough(self.probe.ask(protocol, to)?) {}
            Ok(())
        })
    }

    /// Makes `requests` requests, one after the other. Returns how many each pod answered, or the first failure.
    pub fn spread(
        &self,
        protocol: Protocol,
        to: SocketAddr,
        requests: usize,
    ) -> Result<BTreeMap<String, usize>, Failure> {
        self.netns.run(|| {
            let mut pods = BTreeMap::new();
            for _ in 0..requests {
                *pods.entry(self.probe.ask(protocol, to)?.pod).or_default() += 1;
            }
            Ok(pods)
        })
    }

    /// Opens a TCP connection or UDP flow that sends a message every `interval` and expects its echo.
    pub fn stream(&self, protocol: Protocol, to: SocketAddr, interval: Duration) -> Result<Stream, Failure> {
        Stream::open(&self.netns, self.probe, protocol, to, interval)
    }

    /// Makes new connections, at most `per_second` of them, for at most `bound`.
    pub fn churn(&self, protocol: Protocol, to: SocketAddr, per_second: u32, bound: Duration) -> Churn {
        Churn::start(&self.netns, self.probe, protocol, to, per_second, bound)
    }
}
