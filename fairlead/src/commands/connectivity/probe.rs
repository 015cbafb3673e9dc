//! One connection after the other to an address: whether it is made, how long that takes, and which endpoint took it.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use netlink::conntrack::{ConntrackHandle, Tuple};
use nix::errno::Errno;
use proto::model::Protocol;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout},
};

use super::plan::Target;

/// What became of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    pub(super) end: End,
    /// Until it was made, or until the answer.
    pub(super) took: Duration,
    /// Which endpoint took it; `None`: connection tracking does not say.
    pub(super) endpoint: Option<SocketAddr>,
    /// The first line of an answer by HTTP.
    pub(super) status: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A connection, or an answer.
    Answered,
    /// UDP: sent, and nothing came back, as from a server that does not know what to say.
    Sent,
    Refused,
    Silence,
    Failed(String),
}

/// What connections are made with.
#[derive(Debug)]
pub(super) struct Prober {
    pub(super) conntrack: Mutex<ConntrackHandle>,
    pub(super) patience: Duration,
    /// Asked for by HTTP, over TCP.
    pub(super) http: Option<String>,
}

/// As much of an answer as is looked at.
const ANSWER: usize = 256;

// === impl Prober ===

impl Prober {
    /// So many, one after the other. Where nothing answers, once is enough.
    pub(super) async fn try_out(&self, target: &Target, count: usize) -> Vec<Observation> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let observation = match target.protocol {
                Protocol::Udp => self.udp(target.address).await,
                _ => self.tcp(target.address).await,
            };
            let goes_on = matches!(observation.end, End::Answered | End::Sent);
            seen.push(observation);
            if !goes_on {
                break;
            }
        }
        seen
    }

    async fn tcp(&self, to: SocketAddr) -> Observation {
        let begun = Instant::now();
        let connected = timeout(self.patience, TcpStream::connect(to)).await;
        let took = begun.elapsed();
        let mut stream = match connected {
            Err(_) => return Observation { end: End::Silence, took, endpoint: None, status: None },
            Ok(Err(error)) => return Observation { end: end(&error), took, endpoint: None, status: None },
            Ok(Ok(stream)) => stream,
        };
        let endpoint = stream.local_addr().ok().and_then(|source| self.endpoint(Protocol::Tcp, source, to));
        let status = match &self.http {
            Some(path) => {
                let asked = timeout(self.patience, ask(&mut stream, to, path)).await;
                Some(asked.unwrap_or_else(|_| Ok("no answer".to_owned())).unwrap_or_else(|error| error.to_string()))
            }
            None => None,
        };
        Observation { end: End::Answered, took, endpoint, status }
    }

    async fn udp(&self, to: SocketAddr) -> Observation {
        let begun = Instant::now();
        let (end, endpoint) = self.datagram(to).await.unwrap_or_else(|error| (end(&error), None));
        Observation { end, took: begun.elapsed(), endpoint, status: None }
    }

    async fn datagram(&self, to: SocketAddr) -> io::Result<(End, Option<SocketAddr>)> {
        let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(to).await?;
        match socket.send(&[0]).await {
            // A filter on the way out says so; whether it refuses is heard afterwards.
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => {}
            sent => drop(sent?),
        }
        let endpoint = self.endpoint(Protocol::Udp, socket.local_addr()?, to);
        let mut answer = [0; ANSWER];
        let end = match timeout(self.patience, socket.recv(&mut answer)).await {
            Ok(received) => received.map(|_| End::Answered)?,
            Err(_) if endpoint.is_some_and(|endpoint| endpoint != to) => End::Sent,
            Err(_) => End::Silence,
        };
        Ok((end, endpoint))
    }

    /// Who answers, as connection tracking has it.
    fn endpoint(&self, protocol: Protocol, source: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        let mut conntrack = self.conntrack.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = conntrack.reply(protocol.number(), &Tuple { source, destination: to }).ok()??;
        Some(reply.source)
    }
}

async fn ask(stream: &mut TcpStream, to: SocketAddr, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: fairlead\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; ANSWER];
    let length = stream.read(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    Ok(match answer.lines().next() {
        Some(line) if line.starts_with("HTTP/") => line.to_owned(),
        _ => "no HTTP".to_owned(),
    })
}

fn end(error: &io::Error) -> End {
    match error.kind() {
        ErrorKind::ConnectionRefused => End::Refused,
        ErrorKind::TimedOut => End::Silence,
        _ => End::Failed(error.to_string()),
    }
}
