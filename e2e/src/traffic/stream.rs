//! One long-lived connection: a message, its echo, a pause, and so on. One message is under way at a time, so that each
//! loss is counted once and each latency is a whole round trip.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Progress;
use crate::client::{Probe, probe};
use crate::netns::Netns;
use crate::wire::{Failure, Protocol};

/// A running stream.
#[derive(Debug)]
pub struct Stream {
    progress: Arc<Progress<StreamReport>>,
    thread: Option<JoinHandle<()>>,
}

/// What a stream has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Messages sent.
    pub sent: u64,
    /// Messages that came back in time.
    pub echoed: u64,
    /// Messages that did not come back in time.
    pub lost: u64,
    /// Refusals and resets. The first one ends a TCP stream; a UDP stream goes on.
    pub resets: u64,
    /// The longest round trip.
    pub slowest: Duration,
    /// Who answered how many messages. More than one pod only over UDP.
    pub pods: BTreeMap<String, u64>,
}

/// An open connection to one side.
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
        let progress = Arc::new(Progress::default());
        let thread = netns.spawn("stream", {
            let progress = Arc::clone(&progress);
            move || {
                run(&mut channel, interval, &progress);
                progress.end();
            }
        });
        Ok(Self { progress, thread: Some(thread) })
    }

    /// Waits for `count` more messages to come back; `false` if they do not within `deadline` or the connection ended.
    #[must_use]
    pub fn wait_echoes(&self, count: u64, deadline: Duration) -> bool {
        let wanted = self.progress.report().echoed + count;
        self.progress.wait_until(deadline, |report| report.echoed >= wanted)
    }

    /// Waits until it has seen `enough`; `false` if it has not within `deadline` or the connection ended before.
    #[must_use]
    pub fn wait_until(&self, deadline: Duration, enough: impl FnMut(&StreamReport) -> bool) -> bool {
        self.progress.wait_until(deadline, enough)
    }

    /// What it has seen so far.
    pub fn report(&self) -> StreamReport {
        self.progress.report()
    }

    /// Closes it.
    pub fn finish(mut self) -> StreamReport {
        self.join();
        self.progress.report()
    }

    fn join(&mut self) {
        self.progress.stop();
        if let Some(thread) = self.thread.take() {
            // It panics nowhere, and drop must not.
            let _ = thread.join();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.join();
    }
}

// === impl StreamReport ===

impl StreamReport {
    /// Nothing was lost, refused or reset.
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
            Protocol::Sctp => Err(Failure::Other("the SCTP probe makes no associations".into())),
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
        let took = start.elapsed();
        let ends = matches!(channel, Channel::Tcp { .. }) && !matches!(echoed, Ok(_) | Err(Failure::TimedOut));
        progress.update(|report| match echoed {
            Ok(pod) => {
                report.echoed += 1;
                report.slowest = report.slowest.max(took);
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
