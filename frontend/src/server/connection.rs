//! A connection, whatever it runs over, that ends when its client does not use it.
//!
//! ```text
//!   accepted ──24 bytes, in time──▶ HTTP/2 ──▶ calls ──the last one ends──▶ idle, for so long ──▶ an error at the next read
//!        └── too slow ──▶ an error                ▲                           │
//!                                                 └────────── a call ─────────┘
//! ```
//!
//! HTTP/2's pings find out who is gone; this finds out who is there for nothing.

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

/// The length of what a client of HTTP/2 says first (RFC 9113, section 3.4).
const PREFACE: usize = 24;

/// What one connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Calls at a time, and so streams.
    pub calls: u32,
    /// How long a client may take to begin with HTTP/2, after its TLS handshake if there is one.
    pub preface: Duration,
    /// How long a connection may be without a call.
    pub idle: Duration,
    /// How often a connection is asked whether it is alive. Clients ask on their side.
    pub keepalive: Duration,
    /// How long the answer may take; a node that lost its network is gone after both.
    pub keepalive_timeout: Duration,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// `None` for a unix socket.
    pub(super) address: Option<SocketAddr>,
    /// The names of its certificate, which a client authority of ours has signed.
    pub(super) names: Option<Arc<Names>>,
    calls: Arc<Mutex<Calls>>,
}

/// What a connection is used for.
#[derive(Debug)]
struct Calls {
    open: usize,
    /// When the last one ended.
    idle_since: Instant,
}

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Call(Arc<Mutex<Calls>>);

/// A connection.
pub(super) struct Connection<S> {
    stream: S,
    peer: Peer,
    idle: Duration,
    stage: Stage,
    deadline: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many bytes are missing before HTTP/2 begins.
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
    pub(super) fn new(address: Option<SocketAddr>, names: Option<Arc<Names>>) -> Self {
        let calls = Calls { open: 0, idle_since: Instant::now() };
        Self { address, names, calls: Arc::new(Mutex::new(calls)) }
    }

    /// Keeps the connection until it is dropped.
    pub(super) fn call(&self) -> Call {
        with(&self.calls, |calls| calls.open += 1);
        Call(self.calls.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        with(&self.0, |calls| {
            calls.open -= 1;
            calls.idle_since = Instant::now();
        });
    }
}

fn with<T>(calls: &Mutex<Calls>, act: impl FnOnce(&mut Calls) -> T) -> T {
    act(&mut calls.lock().unwrap_or_else(PoisonError::into_inner))
}

impl<S> Connection<S> {
    pub(super) fn new(stream: S, peer: Peer, limits: &ConnectionLimits) -> Self {
        let deadline = Box::pin(sleep_until(Instant::now() + limits.preface));
        Self { stream, peer, idle: limits.idle, stage: Stage::Preface(PREFACE), deadline }
    }

    /// Fails when the client has had its time. Wakes the task when it is time to look again.
    fn check(&mut self, context: &mut Context<'_>) -> Result<()> {
        while self.deadline.as_mut().poll(context).is_ready() {
            let until = match self.stage {
                Stage::Preface(_) => None,
                Stage::Open => self.used_until(),
            };
            let Some(until) = until else {
                debug!(client = ?self.peer.address, stage = ?self.stage, "a connection is not used, closing it");
                return Err(Error::new(ErrorKind::TimedOut, "the connection is not used"));
            };
            self.deadline.as_mut().reset(until);
        }
        Ok(())
    }

    /// When the connection is next worth a look; `None` when it has been idle for too long.
    fn used_until(&self) -> Option<Instant> {
        let now = Instant::now();
        let since = with(&self.peer.calls, |calls| if calls.open > 0 { now } else { calls.idle_since });
        Some(since + self.idle).filter(|until| *until > now)
    }

    fn received(&mut self, bytes: usize) {
        if let Stage::Preface(missing) = self.stage {
            self.stage = match missing.saturating_sub(bytes) {
                0 => {
                    self.deadline.as_mut().reset(Instant::now() + self.idle);
                    Stage::Open
                }
                missing => Stage::Preface(missing),
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
            // A deadline that has moved must be waited for from now on.
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
