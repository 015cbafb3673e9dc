//! A connection that is closed when its client does not use it.
//!
//! ```text
//!   accepted ──24 bytes, in time──▶ HTTP/2 ──▶ calls ──the last one ends──▶ idle ──timeout──▶ error at the next read
//!        └── too slow ──▶ error                   ▲                           │
//!                                                 └────────── a call ─────────┘
//! ```
//!
//! HTTP/2 pings detect dead clients; this detects live clients without calls.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::server::Connected;
use tracing::debug;

use crate::identity::certificate::Names;

/// The length of the HTTP/2 connection preface in bytes (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// Limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Concurrent calls, including streams.
    pub calls: u32,
    /// How long a client may take to send the HTTP/2 preface, after the TLS handshake if there is one.
    pub preface: Duration,
    /// How long a connection may be without a call.
    pub idle: Duration,
    /// The interval of HTTP/2 pings. Clients send their own.
    pub keepalive: Duration,
    /// How long the answer to a ping may take. A node that lost its network is disconnected after the sum of both.
    pub keepalive_timeout: Duration,
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// `None` for a unix socket.
    pub(super) address: Option<SocketAddr>,
    /// The names in its certificate, which has been verified.
    pub(super) names: Option<Arc<Names>>,
    calls: Arc<Mutex<OpenCalls>>,
}

#[derive(Debug)]
struct OpenCalls {
    open: usize,
    /// When the last one ended.
    idle_since: Instant,
}

/// Counts a call until it is dropped.
#[derive(Debug)]
pub(super) struct CallGuard(Arc<Mutex<OpenCalls>>);

/// A connection.
pub(super) struct Connection<S> {
    stream: S,
    peer: Peer,
    idle: Duration,
    stage: ConnectionStage,
    deadline: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug)]
enum ConnectionStage {
    /// This many bytes of the HTTP/2 preface are missing.
    Preface(usize),
    Open,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            calls: 16,
            preface: Duration::from_secs(5),
            idle: Duration::from_secs(60),
            keepalive: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(20),
        }
    }
}

impl Peer {
    /// Counts a call, which keeps the connection open until it is dropped.
    pub(super) fn start_call(&self) -> CallGuard {
        with(&self.calls, |calls| calls.open += 1);
        CallGuard(self.calls.clone())
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        with(&self.0, |calls| {
            calls.open -= 1;
            calls.idle_since = Instant::now();
        });
    }
}

fn with<T>(calls: &Mutex<OpenCalls>, act: impl FnOnce(&mut OpenCalls) -> T) -> T {
    act(&mut calls.lock().unwrap_or_else(PoisonError::into_inner))
}

impl<S> Connection<S> {
    pub(super) fn new(
        stream: S,
        address: Option<SocketAddr>,
        names: Option<Arc<Names>>,
        limits: &ConnectionLimits,
    ) -> Self {
        let calls = Arc::new(Mutex::new(OpenCalls { open: 0, idle_since: Instant::now() }));
        let peer = Peer { address, names, calls };
        let deadline = Box::pin(sleep_until(Instant::now() + limits.preface));
        Self { stream, peer, idle: limits.idle, stage: ConnectionStage::Preface(PREFACE_BYTES), deadline }
    }

    /// Fails when a timeout of the connection has expired. Otherwise wakes the task at the next deadline.
    fn check(&mut self, context: &mut Context<'_>) -> Result<()> {
        while self.deadline.as_mut().poll(context).is_ready() {
            let until = match self.stage {
                ConnectionStage::Preface(_) => None,
                ConnectionStage::Open => self.next_check(),
            };
            let Some(until) = until else {
                debug!(client = ?self.peer.address, stage = ?self.stage, "closing unused connection");
                return Err(Error::new(ErrorKind::TimedOut, "the connection is unused"));
            };
            self.deadline.as_mut().reset(until);
        }
        Ok(())
    }

    /// When to check again whether the connection is idle; `None` when it has been idle for too long.
    fn next_check(&self) -> Option<Instant> {
        let now = Instant::now();
        let since = with(&self.peer.calls, |calls| if calls.open > 0 { now } else { calls.idle_since });
        Some(since + self.idle).filter(|until| *until > now)
    }

    fn received(&mut self, bytes: usize) {
        if let ConnectionStage::Preface(missing) = self.stage {
            self.stage = match missing.saturating_sub(bytes) {
                0 => {
                    self.deadline.as_mut().reset(Instant::now() + self.idle);
                    ConnectionStage::Open
                }
                missing => ConnectionStage::Preface(missing),
            };
        }
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.received(bytes);
            // Registers the waker with the new deadline.
            self.check(context)?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
