//! A long-lived connection: a message, its echo, a pause, and so on. At most one message is in flight, so that each
//! loss is counted once and each latency is a whole round trip.

use std::{
    collections::BTreeMap,
    io::{BufReader, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use super::{Progress, Traffic};
use crate::{
    client::{Probe, probe},
    netns::Netns,
    wire::{Failure, Protocol},
};

/// A long-lived TCP connection or UDP flow.
pub type Stream = Traffic<StreamReport>;

/// The results of the messages of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Messages sent.
    pub sent: u64,
    /// Messages that were echoed in time.
    pub echoed: u64,
    /// Messages that were not echoed in time.
    pub lost: u64,
    /// Rejections and resets. The first one ends a TCP stream; a UDP stream continues.
    pub resets: u64,
    /// The longest round trip.
    pub slowest: Duration,
    /// The number of messages that each pod echoed. Several pods are possible over UDP only.
    pub pods: BTreeMap<String, u64>,
}

/// The client's socket.
enum Channel {
    Tcp { pod: String, connection: BufReader<TcpStream> },
    Udp(UdpSocket),
}

// === impl Stream ===

impl Stream {
    pub(crate) fn open(
        netns: &Netns,
        probe: Probe,
        protocol: Protocol,
        to: SocketAddr,
        interval: Duration,
    ) -> Result<Self, Failure> {
        let mut channel = netns.run(|| Channel::open(probe, protocol, to))?;
        let interval = super::pause(interval);
        Ok(Self::spawn(netns, "stream", move |progress| run(&mut channel, interval, progress)))
    }

    /// Waits until `count` more messages were echoed; `false` after the deadline or the end of the connection.
    #[must_use]
    pub fn wait_echoes(&self, count: u64, deadline: Duration) -> bool {
        let wanted = self.report().echoed + count;
        self.wait_until(deadline, |report| report.echoed >= wanted)
    }

    /// As [`Self::wait_echoes`] for each of these, of which the messages are counted from the same moment on.
    ///
    /// # Panics
    /// After the deadline, or if a connection has ended.
    #[track_caller]
    pub fn wait_for_echoes(streams: &[Self], count: u64, deadline: Duration) {
        let wanted: Vec<_> = streams.iter().map(|stream| stream.report().echoed + count).collect();
        for (stream, wanted) in streams.iter().zip(wanted) {
            let are_echoed = stream.wait_until(deadline, |report| report.echoed >= wanted);
            assert!(are_echoed, "{:?}", stream.report());
        }
    }
}

// === impl StreamReport ===

impl StreamReport {
    /// No message was lost, and no connection rejected or reset.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.resets == 0
    }
}

// === impl Channel ===

impl Channel {
    fn open(probe: Probe, protocol: Protocol, to: SocketAddr) -> Result<Self, Failure> {
        match protocol {
            Protocol::Tcp => {
                let (reply, connection) = probe.connect(to)?;
                connection.get_ref().set_read_timeout(Some(probe.deadline))?;
                connection.get_ref().set_write_timeout(Some(probe.deadline))?;
                Ok(Self::Tcp { pod: reply.pod, connection })
            }
            Protocol::Udp => Ok(Self::Udp(probe.udp_socket(to)?)),
            Protocol::Sctp => Err(Failure::Other("the SCTP client establishes no associations".into())),
        }
    }

    /// Sends one message and waits for its echo; returns the name of the server.
    fn echo(&mut self, message: [u8; 8]) -> Result<String, Failure> {
        match self {
            Self::Tcp { pod, connection } => {
                connection.get_mut().write_all(&message)?;
                // After a loss an older echo may come first.
                loop {
                    let mut echo = [0; 8];
                    connection.read_exact(&mut echo)?;
                    if echo == message {
                        return Ok(pod.clone());
                    }
                }
            }
            Self::Udp(socket) => {
                socket.send(&message)?;
                loop {
                    let mut buffer = [0; 256];
                    let length = socket.recv(&mut buffer)?;
                    let (reply, echo) = probe::split_datagram(&buffer[..length])?;
                    if echo == message {
                        return Ok(reply.pod);
                    }
                }
            }
        }
    }
}

fn run(channel: &mut Channel, interval: Duration, progress: &Progress<StreamReport>) {
    for number in 0u64.. {
        let start = Instant::now();
        progress.update(|report| report.sent += 1);
        let echoed = channel.echo(number.to_be_bytes());
        let elapsed = start.elapsed();
        let ends = matches!(channel, Channel::Tcp { .. }) && !matches!(echoed, Ok(_) | Err(Failure::TimedOut));
        progress.update(|report| match echoed {
            Ok(pod) => {
                report.echoed += 1;
                report.slowest = report.slowest.max(elapsed);
                *report.pods.entry(pod).or_default() += 1;
            }
            Err(Failure::TimedOut) => report.lost += 1,
            Err(_) => report.resets += 1,
        });
        if ends || !progress.pause_until(start + interval) {
            return;
        }
    }
}
