//! Probes a VIP: opens connections one after the other, measures them, and looks up the endpoint of each in conntrack.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Mutex,
    time::Duration,
};

use netlink::conntrack::{ConntrackHandle, Tuple};
use nix::errno::Errno;
use proto::model::{IpFamily, Protocol};
use runtime::lock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout},
};

use super::plan::ProbeTarget;
use crate::http_get::request_text;

/// The result of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    pub(super) outcome: ConnectionOutcome,
    /// Until it was established, or until the reply.
    pub(super) duration: Duration,
    /// The endpoint, if conntrack has it.
    pub(super) endpoint: Option<SocketAddr>,
    /// The status line of the HTTP response.
    pub(super) status: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionOutcome {
    /// A connection, or a reply.
    Answered,
    /// UDP: sent to an endpoint, without a reply. Servers may ignore what they do not understand.
    Sent,
    Refused,
    NoReply,
    Failed(String),
}

/// Opens connections.
#[derive(Debug)]
pub(super) struct Prober {
    pub(super) conntrack: Mutex<ConntrackHandle>,
    pub(super) timeout: Duration,
    /// The path of an HTTP request over TCP connections.
    pub(super) http: Option<String>,
}

impl ConnectionOutcome {
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Self::Answered | Self::Sent)
    }
}

/// How much of a reply is read, in bytes.
const REPLY_BYTES: usize = 256;

impl Prober {
    /// Opens `count` connections one after the other, and stops at the first failure.
    pub(super) async fn probe(&self, target: &ProbeTarget, count: usize) -> Vec<Observation> {
        let mut observations = Vec::new();
        for _ in 0..count {
            let observation = match target.protocol {
                Protocol::Udp => self.udp(target.address).await,
                _ => self.tcp(target.address).await,
            };
            observations.push(observation);
            if observations.iter().any(|observation| !observation.outcome.is_success()) {
                break;
            }
        }
        observations
    }

    async fn tcp(&self, to: SocketAddr) -> Observation {
        let start = Instant::now();
        let (outcome, stream) = match timeout(self.timeout, TcpStream::connect(to)).await {
            Err(_) => (ConnectionOutcome::NoReply, None),
            Ok(Err(error)) => (outcome(&error), None),
            Ok(Ok(stream)) => (ConnectionOutcome::Answered, Some(stream)),
        };
        let mut observation = Observation { outcome, duration: start.elapsed(), endpoint: None, status: None };
        let Some(mut stream) = stream else { return observation };
        let source = stream.local_addr().ok();
        observation.endpoint = source.and_then(|source| self.endpoint(Protocol::Tcp, source, to));
        if let Some(path) = &self.http {
            let response = timeout(self.timeout, http_status(&mut stream, to, path)).await;
            let response = response.unwrap_or_else(|_| Ok("no HTTP response".to_owned()));
            observation.status = Some(response.unwrap_or_else(|error| error.to_string()));
        }
        observation
    }

    async fn udp(&self, to: SocketAddr) -> Observation {
        let start = Instant::now();
        let (outcome, endpoint) = self.datagram(to).await.unwrap_or_else(|error| (outcome(&error), None));
        Observation { outcome, duration: start.elapsed(), endpoint, status: None }
    }

    async fn datagram(&self, to: SocketAddr) -> io::Result<(ConnectionOutcome, Option<SocketAddr>)> {
        let socket = UdpSocket::bind((IpFamily::of(&to.ip()).unspecified(), 0)).await?;
        socket.connect(to).await?;
        match socket.send(&[0]).await {
            // A rule on the output path dropped or rejected it. ICMP errors arrive at the receive.
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => {}
            result => drop(result?),
        }
        let endpoint = self.endpoint(Protocol::Udp, socket.local_addr()?, to);
        let mut reply = [0; REPLY_BYTES];
        let outcome = match timeout(self.timeout, socket.recv(&mut reply)).await {
            Ok(received) => received.map(|_| ConnectionOutcome::Answered)?,
            Err(_) if endpoint.is_some_and(|endpoint| endpoint != to) => ConnectionOutcome::Sent,
            Err(_) => ConnectionOutcome::NoReply,
        };
        Ok((outcome, endpoint))
    }

    /// The endpoint of a connection, from its conntrack entry.
    fn endpoint(&self, protocol: Protocol, source: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        let mut conntrack = lock(&self.conntrack);
        let reply = conntrack.reply(protocol.number(), &Tuple { source, destination: to }).ok()??;
        Some(reply.source)
    }
}

/// Sends a request over a connection, and returns the status line of the response.
async fn http_status(stream: &mut TcpStream, to: SocketAddr, path: &str) -> io::Result<String> {
    stream.write_all(request_text(to, path).as_bytes()).await?;
    let mut reply = [0; REPLY_BYTES];
    let length = stream.read(&mut reply).await?;
    let reply = String::from_utf8_lossy(&reply[..length]);
    Ok(match reply.lines().next() {
        Some(line) if line.starts_with("HTTP/") => line.to_owned(),
        _ => "not an HTTP response".to_owned(),
    })
}

fn outcome(error: &io::Error) -> ConnectionOutcome {
    match error.kind() {
        ErrorKind::ConnectionRefused => ConnectionOutcome::Refused,
        ErrorKind::TimedOut => ConnectionOutcome::NoReply,
        _ => ConnectionOutcome::Failed(error.to_string()),
    }
}
