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
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout},
};

use super::plan::ProbeTarget;

/// The result of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    pub(super) outcome: ConnectionOutcome,
    /// Until it was established, or until the reply.
    pub(super) duration: Duration,
    /// The endpoint, if conntrack has it.
    pub(super) endpoint: Option<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectionOutcome {
    /// A connection, or a reply.
    Answered,
    /// UDP: sent to an endpoint, without a reply. Servers may ignore a datagram that they do not understand.
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
}

impl ConnectionOutcome {
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Self::Answered | Self::Sent)
    }
}

impl Prober {
    /// Opens `count` connections one after the other, and stops at the first failure.
    pub(super) async fn probe(&self, target: &ProbeTarget, count: usize) -> Vec<Observation> {
        let mut observations = Vec::new();
        for _ in 0..count {
            let observation = match target.protocol {
                Protocol::Udp => self.udp(target.address).await,
                _ => self.tcp(target.address).await,
            };
            let is_success = observation.outcome.is_success();
            observations.push(observation);
            if !is_success {
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
        let duration = start.elapsed();
        let source = stream.as_ref().and_then(|stream| stream.local_addr().ok());
        let endpoint = source.and_then(|source| self.endpoint(Protocol::Tcp, source, to));
        Observation { outcome, duration, endpoint }
    }

    async fn udp(&self, to: SocketAddr) -> Observation {
        let start = Instant::now();
        let (outcome, endpoint) = self.datagram(to).await.unwrap_or_else(|error| (outcome(&error), None));
        Observation { outcome, duration: start.elapsed(), endpoint }
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
        // What does not fit is discarded.
        let mut reply = [0];
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

fn outcome(error: &io::Error) -> ConnectionOutcome {
    match error.kind() {
        ErrorKind::ConnectionRefused => ConnectionOutcome::Refused,
        ErrorKind::TimedOut => ConnectionOutcome::NoReply,
        _ => ConnectionOutcome::Failed(error.to_string()),
    }
}
