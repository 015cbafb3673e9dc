//! A connection that is closed when its client does not use it.
//!
//! ```text
//!   accepted ──▶ idle ──timeout──▶ error at the next read
//!                │  ▲
//!         a call ▼  │ the last one ends
//!               calls
//! ```
//!
//! HTTP/2 pings detect dead clients; this detects live clients without calls. Until its client is identified, a
//! connection may last a limited time and send a limited number of bytes, whatever they contain.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Poll},
};

use runtime::lock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Notify, futures::OwnedNotified},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::server::Connected;
use tracing::debug;

use super::admission::{Admission, Admitted};
use crate::identity::{Identity, certificate::Names};

/// How many bytes a client may send before it is identified, after TLS decryption: more than the 64 KiB that HTTP/2
/// allows before the SETTINGS of the server arrive, so that a client which sends a large request is answered.
const MAX_UNIDENTIFIED_BYTES: usize = 128 << 10;

/// The client of a connection, as its calls see it.
#[derive(Debug)]
pub(super) struct Peer {
    /// `None` for a unix socket.
    pub(super) address: Option<SocketAddr>,
    /// The names in its certificate, once that has been verified.
    pub(super) names: OnceLock<Names>,
    pub(super) admission: Arc<Admission>,
    /// Notified when the connection must be closed for another one.
    evicted: Arc<Notify>,
    usage: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    admitted: Admitted,
    open_calls: usize,
    /// When the last call ended.
    idle_since: Instant,
}

/// Counts a call until it is dropped.
#[derive(Debug)]
pub(super) struct CallGuard(Arc<Peer>);

pub(super) struct Connection<S> {
    stream: S,
    peer: Arc<Peer>,
    /// When to check again whether it is unused.
    deadline: Pin<Box<Sleep>>,
    /// When the client must have been identified.
    identified_by: Instant,
    /// How many bytes the client may still send before it is identified.
    unidentified_bytes: usize,
    evicted: Pin<Box<OwnedNotified>>,
    is_evicted: bool,
}

impl Peer {
    pub(super) fn new(admission: Arc<Admission>, address: Option<SocketAddr>) -> Arc<Self> {
        let evicted = Arc::<Notify>::default();
        let admitted = admission.admit(address.map(|address| address.ip()), evicted.clone());
        let usage = Mutex::new(Usage { admitted, open_calls: 0, idle_since: Instant::now() });
        Arc::new(Self { address, names: OnceLock::new(), admission, evicted, usage })
    }

    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip())
    }

    /// The client was identified: from now on its connection is counted by its first identity.
    pub(super) fn set_identity(&self, identity: &Identity) {
        let mut usage = lock(&self.usage);
        if matches!(usage.admitted, Admitted::Unidentified(_)) {
            usage.admitted = self.admission.admit_identity(identity, self.ip(), self.evicted.clone());
        }
    }

    /// Waits until the connection must be closed for another one.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
        self.count_eviction();
    }

    fn count_eviction(&self) {
        self.admission.count_eviction(&lock(&self.usage).admitted);
    }

    /// Counts a call, which keeps the connection open until it is dropped.
    pub(super) fn start_call(self: &Arc<Self>) -> CallGuard {
        lock(&self.usage).open_calls += 1;
        CallGuard(self.clone())
    }

    fn is_identified(&self) -> bool {
        !matches!(lock(&self.usage).admitted, Admitted::Unidentified(_))
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut usage = lock(&self.0.usage);
        usage.open_calls -= 1;
        usage.idle_since = Instant::now();
    }
}

impl<S> Connection<S> {
    pub(super) fn new(stream: S, peer: Arc<Peer>) -> Self {
        let limits = peer.admission.limits;
        let now = Instant::now();
        Self {
            stream,
            deadline: Box::pin(sleep_until(now)),
            identified_by: now + limits.identification,
            unidentified_bytes: MAX_UNIDENTIFIED_BYTES,
            evicted: Box::pin(peer.evicted.clone().notified_owned()),
            is_evicted: false,
            peer,
        }
    }

    /// Fails when a timeout of the connection has expired, or it must be closed for another one. Otherwise wakes the
    /// task at the next deadline.
    fn check(&mut self, context: &mut Context<'_>) -> Result<()> {
        if !self.is_evicted && self.evicted.as_mut().poll(context).is_ready() {
            self.is_evicted = true;
            self.peer.count_eviction();
        }
        if self.is_evicted {
            debug!(client = ?self.peer.address, "closing a connection in favour of another");
            return Err(Error::new(ErrorKind::ConnectionAborted, "too many connections, another one replaces it"));
        }

        while self.deadline.as_mut().poll(context).is_ready() {
            let Some(until) = self.next_check() else {
                debug!(client = ?self.peer.address, "closing unused connection");
                return Err(Error::new(ErrorKind::TimedOut, "the connection is unused"));
            };
            self.deadline.as_mut().reset(until);
        }
        Ok(())
    }

    /// When to check again whether the connection is unused; `None` when it has been for too long, or its client was
    /// not identified in time.
    fn next_check(&self) -> Option<Instant> {
        let now = Instant::now();
        let usage = lock(&self.peer.usage);
        let idle_since = if usage.open_calls > 0 { now } else { usage.idle_since };
        let mut until = idle_since + self.peer.admission.limits.idle;
        if matches!(usage.admitted, Admitted::Unidentified(_)) {
            until = until.min(self.identified_by);
        }
        if until > now { Some(until) } else { None }
    }

    /// Fails when a client that is not identified has sent too much.
    fn received(&mut self, bytes: usize) -> Result<()> {
        if self.peer.is_identified() {
            return Ok(());
        }

        let Some(left) = self.unidentified_bytes.checked_sub(bytes) else {
            debug!(client = ?self.peer.address, "closing a connection that sent too much before it was identified");
            return Err(Error::new(ErrorKind::InvalidData, "too many bytes before the client was identified"));
        };
        self.unidentified_bytes = left;
        Ok(())
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
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
            self.received(bytes)?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.check(context)?;
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
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
