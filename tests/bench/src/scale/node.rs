//! One node: a connection, a stream, and an Ack for every commit and bookmark; nothing is programmed. A few nodes also
//! keep their state, as a backend does, and verify its digests; the others read only the head of each message.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use backend::NodeState;
use proto::{
    digest::{Digest, DigestVector},
    encoded::{self, EncodedMessage},
    model::{Ack, ClientMessage, Epoch, Hello, NodeInfo, Revision, Role, ServerMessage, SourceVersion},
};
use runtime::Backoff;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    sync::watch,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};
use tokio_rustls::TlsConnector;

use super::{
    cluster::node_name,
    http2::{self, Reader, Stream},
    message_head::{HEAD, MessageHead},
    metrics::{Arrivals, FleetMetrics},
};

const PATH: &str = "/fairlead.v1.Fairlead/Watch";
/// Keepalive interval of a backend's client.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The shortest and the longest delay before a backend reconnects.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));
const MODE_RESUME: u64 = 1;
const MODE_REPAIR: u64 = 2;

/// Shared by all nodes.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) frontends: Vec<SocketAddr>,
    /// TLS for each node; `None`: plain TCP.
    pub(crate) tls: Option<NodeTls>,
    pub(crate) metrics: Arc<FleetMetrics>,
    /// The read buffer. One is enough, since all nodes run on one thread.
    pub(crate) scratch: Mutex<Box<[u8]>>,
}

/// The name of the frontends, and the credentials of each node.
#[derive(Debug)]
pub(crate) struct NodeTls {
    pub(crate) frontend: ServerName<'static>,
    pub(crate) nodes: Vec<Arc<ClientConfig>>,
}

/// A node, connected or not.
#[derive(Debug)]
pub(crate) struct Node {
    number: u32,
    epoch: AtomicU64,
    revision: AtomicU64,
    /// Counts the connections, which alternate between the frontends.
    connections: AtomicUsize,
    /// The digest of the last bookmark; 0 since the last commit.
    digest: AtomicU64,
    /// The committed state, if this node keeps it.
    replica: Option<Mutex<Replica>>,
}

#[derive(Debug)]
pub(crate) struct Replica {
    state: NodeState,
}

/// The state that a node reports when it connects.
#[derive(Clone, Debug)]
pub(crate) enum Start {
    /// Nothing.
    Empty,
    /// The epoch and revision.
    Resume,
    /// The epoch, revision and digests.
    Digests(Box<DigestVector>),
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Connecting,
    /// A message of the frontend arrived.
    Connected,
}

/// An open stream.
struct Session<'a> {
    node: &'a Node,
    metrics: &'a FleetMetrics,
    arrivals: Arrivals,
    /// The number of the last commit or bookmark.
    number: u64,
    drain: Option<u64>,
}

impl Node {
    pub(crate) fn new(number: u32, replica: Option<Replica>) -> Self {
        Self {
            number,
            epoch: AtomicU64::default(),
            revision: AtomicU64::default(),
            connections: AtomicUsize::new(number as usize),
            digest: AtomicU64::default(),
            replica: replica.map(Mutex::new),
        }
    }

    /// The digest in the last bookmark; 0 if there was none since the last commit.
    pub(crate) fn digest(&self) -> u64 {
        self.digest.load(Ordering::Relaxed)
    }

    /// The digests of the committed state, if this node keeps it.
    pub(crate) fn digests(&self) -> Option<DigestVector> {
        let replica = self.replica.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(replica.state.digests().clone())
    }

    /// Connects, with retries, and follows the stream until `leave` changes, the frontend ends it, or the delay after a
    /// drain message is over.
    pub(crate) async fn follow(&self, common: &Common, start: Start, mut leave: watch::Receiver<u32>) -> Result<()> {
        let mut backoff = Backoff::new(RECONNECT.0, RECONNECT.1);
        loop {
            let mut progress = Progress::Connecting;
            match self.try_follow(common, start.clone(), &mut leave, &mut progress).await {
                // More nodes connect at once than the kernel's listen queue holds.
                Err(_) if progress == Progress::Connecting => {
                    common.metrics.refused.fetch_add(1, Ordering::Relaxed);
                    sleep(backoff.next_delay()).await;
                }
                ended => return ended,
            }
        }
    }

    async fn try_follow(
        &self,
        common: &Common,
        start: Start,
        leave: &mut watch::Receiver<u32>,
        progress: &mut Progress,
    ) -> Result<()> {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let frontend = common.frontends[connection % common.frontends.len()];
        let stream = TcpStream::connect(frontend).await.context("connect")?;
        stream.set_nodelay(true)?;
        match &common.tls {
            None => self.follow_over(stream, common, start, leave, progress).await,
            Some(tls) => {
                let connector = TlsConnector::from(tls.nodes[self.number as usize].clone());
                let stream = connector.connect(tls.frontend.clone(), stream).await.context("TLS handshake")?;
                self.follow_over(stream, common, start, leave, progress).await
            }
        }
    }

    async fn follow_over(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        common: &Common,
        start: Start,
        leave: &mut watch::Receiver<u32>,
        progress: &mut Progress,
    ) -> Result<()> {
        let metrics = &*common.metrics;
        let hello = encoded::encode_client_message(&ClientMessage::Hello(self.hello(start)));
        let mut out = http2::call(PATH, "frontend", None, &hello);
        let mut reader = Reader::default();
        let mut session = Session { node: self, metrics, arrivals: metrics.arrivals(), number: 0, drain: None };
        let keep = if self.replica.is_some() { usize::MAX } else { HEAD };
        // Real nodes do not send their keepalives at the same time.
        let first = Instant::now() + KEEPALIVE.mul_f64(fastrand::f64());
        let mut keepalive = interval_at(first, KEEPALIVE);
        keepalive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !out.is_empty() {
                metrics.sent.fetch_add(out.len() as u64, Ordering::Relaxed);
                stream.write_all(&out).await.context("write")?;
                stream.flush().await.context("write")?;
                out.clear();
            }
            if let Some(millis) = session.drain {
                let delay = Duration::from_millis(millis).mul_f64(fastrand::f64());
                metrics.depart(delay);
                sleep(delay).await;
                return Ok(());
            }
            tokio::select! {
                read = read(&mut stream, common, |bytes| {
                    reader.take(bytes, keep, &mut out, |message, out| session.on_message(message, out))
                }) => {
                    let read = read?;
                    *progress = Progress::Connected;
                    if read == Stream::Ended {
                        metrics.broken.fetch_add(1, Ordering::Relaxed);
                        return Ok(());
                    }
                }
                _ = keepalive.tick() => http2::ping(&mut out),
                _ = leave.changed() => {
                    metrics.arrived_before(self.number, &mut session.arrivals, u64::MAX);
                    return Ok(());
                }
            }
        }
    }

    fn hello(&self, start: Start) -> Hello {
        let resume = (Epoch(self.epoch.load(Ordering::Relaxed)), Revision(self.revision.load(Ordering::Relaxed)));
        let (resume, digests) = match start {
            Start::Empty => (None, None),
            Start::Resume => (Some(resume), None),
            Start::Digests(digests) => (Some(resume), Some(digests)),
        };
        Hello {
            version: proto::PROTOCOL_VERSION,
            node: node_name(self.number).into(),
            role: Role::Backend,
            backend: "bench".to_owned(),
            backend_version: env!("CARGO_PKG_VERSION").to_owned(),
            resume,
            digests,
            source_version: SourceVersion(0),
            kind_versions: proto::model::KindVersions::default(),
            started: None,
        }
    }
}

impl Replica {
    pub(crate) fn new(node: u32) -> Self {
        Self { state: NodeState::new(NodeInfo::unknown(node_name(node))) }
    }

    /// Applies a message and returns the digest of the state.
    fn apply(&mut self, message: &[u8]) -> Result<Digest> {
        let message = EncodedMessage::from_bytes(message.to_vec().into()).decode().context("a message")?;
        if let ServerMessage::Batch(batch) = message.try_into().context("a message")? {
            let rejected = self.state.apply(batch.operations);
            ensure!(rejected.is_empty(), "rejected: {rejected:?}");
        }
        Ok(self.state.digests().total())
    }
}

impl Session<'_> {
    fn on_message(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let Self { node, metrics, .. } = *self;
        let replica = node.replica.as_ref().map(|replica| replica.lock().unwrap_or_else(PoisonError::into_inner));
        let digest = replica.map(|mut replica| replica.apply(message)).transpose()?;
        match MessageHead::read(&message[..message.len().min(HEAD)])? {
            MessageHead::Welcome { epoch, mode } => {
                node.epoch.store(epoch, Ordering::Relaxed);
                let count = match mode {
                    MODE_RESUME => &metrics.resumed,
                    MODE_REPAIR => &metrics.repaired,
                    _ => return Ok(()),
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            MessageHead::Batch { target, commit: true, trigger } => {
                metrics.commit(node.number, &mut self.arrivals, trigger);
                node.digest.store(0, Ordering::Relaxed);
                self.ack(target, digest, out);
            }
            MessageHead::Bookmark { revision, digest: expected } => {
                node.digest.store(expected, Ordering::Relaxed);
                self.ack(revision, digest, out);
            }
            MessageHead::Drain { max_delay_millis } => self.drain = Some(max_delay_millis),
            MessageHead::Batch { commit: false, .. } | MessageHead::Other => {}
        }
        Ok(())
    }

    fn ack(&mut self, revision: u64, digest: Option<Digest>, out: &mut Vec<u8>) {
        self.node.revision.store(revision, Ordering::Relaxed);
        self.number += 1;
        let ack = Ack::complete(self.number, digest);
        http2::send(out, &encoded::encode_client_message(&ClientMessage::Ack(ack)));
        if self.number == 1 {
            self.metrics.consistent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Waits for bytes and calls `take` with them.
async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    common: &Common,
    mut take: impl FnMut(&[u8]) -> Result<Stream>,
) -> Result<Stream> {
    std::future::poll_fn(|context| {
        let mut scratch = common.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = ReadBuf::new(&mut scratch);
        Pin::new(&mut *stream).poll_read(context, &mut buffer).map(|read| {
            read.context("read")?;
            if buffer.filled().is_empty() {
                return Ok(Stream::Ended);
            }
            common.metrics.received.fetch_add(buffer.filled().len() as u64, Ordering::Relaxed);
            take(buffer.filled())
        })
    })
    .await
}
