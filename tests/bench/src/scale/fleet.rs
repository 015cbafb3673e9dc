//! All nodes of a cluster, on one thread inside a network namespace.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::Netns;
use proto::digest::DigestVector;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{sync::watch, time::sleep};

use super::{
    metrics::FleetMetrics,
    node::{Common, Node, NodeTls, Replica, Start},
};
use crate::worker::Worker;

/// Size of the read buffer in bytes.
const SCRATCH: usize = 64 << 10;
/// One of this many nodes keeps its state.
const REPLICAS: u32 = 1_000;
/// The longest time until a node whose stream has ended connects again.
const RECONNECT: Duration = Duration::from_millis(500);
/// Interval between checks of a condition.
const POLL: Duration = Duration::from_millis(2);

/// The nodes.
#[derive(Debug)]
pub(crate) struct Fleet {
    worker: Worker,
    common: Arc<Common>,
    nodes: Vec<Arc<Node>>,
    leave: watch::Sender<u32>,
    open: Arc<AtomicU64>,
    failure: Arc<Mutex<Option<anyhow::Error>>>,
}

/// How nodes connect.
#[derive(Debug)]
pub(crate) enum Connect {
    /// Without state.
    Empty,
    /// With the revision of the last connection.
    Resume,
    /// With these digests, as to another frontend.
    Digests(Vec<DigestVector>),
}

impl Fleet {
    pub(crate) fn new(netns: &Netns, frontend: SocketAddr, metrics: Arc<FleetMetrics>, nodes: u32) -> Result<Self> {
        Self::with(netns, vec![frontend], None, metrics, nodes)
    }

    /// Nodes that connect to one of these frontends in turn, over TLS, each with credentials of its own.
    pub(crate) fn over_tls(
        netns: &Netns,
        frontends: Vec<SocketAddr>,
        metrics: Arc<FleetMetrics>,
        (name, credentials): (&'static str, Vec<Arc<ClientConfig>>),
    ) -> Result<Self> {
        let nodes = u32::try_from(credentials.len()).context("the number of nodes")?;
        let frontend = ServerName::try_from(name).context("the name of the frontends")?;
        Self::with(netns, frontends, Some(NodeTls { frontend, nodes: credentials }), metrics, nodes)
    }

    fn with(
        netns: &Netns,
        frontends: Vec<SocketAddr>,
        tls: Option<NodeTls>,
        metrics: Arc<FleetMetrics>,
        nodes: u32,
    ) -> Result<Self> {
        let scratch = Mutex::new(vec![0; SCRATCH].into());
        let replica = |number: u32| number.is_multiple_of(REPLICAS).then(|| Replica::new(number));
        Ok(Self {
            worker: Worker::start(netns)?,
            common: Arc::new(Common { frontends, tls, metrics, scratch }),
            nodes: (0..nodes).map(|number| Arc::new(Node::new(number, replica(number)))).collect(),
            leave: watch::Sender::new(0),
            open: Arc::default(),
            failure: Arc::default(),
        })
    }

    /// Connects all nodes at once.
    pub(crate) fn connect(&self, how: &Connect) {
        self.common.metrics.consistent.store(0, Ordering::Relaxed);
        for (number, node) in self.nodes.iter().enumerate() {
            let start = match how {
                Connect::Empty => Start::Empty,
                Connect::Resume => Start::Resume,
                Connect::Digests(digests) => Start::Digests(Box::new(digests[number].clone())),
            };
            self.open.fetch_add(1, Ordering::Relaxed);
            let (node, common, leave) = (node.clone(), self.common.clone(), self.leave.subscribe());
            let (open, failure) = (self.open.clone(), self.failure.clone());
            self.worker.handle.spawn(async move {
                if let Err(error) = node.follow(&common, start, leave).await {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Connects all nodes, and again each time their stream ends, until [`Self::leave`].
    pub(crate) fn keep(&self) {
        for node in &self.nodes {
            self.open.fetch_add(1, Ordering::Relaxed);
            let (node, common, leave) = (node.clone(), self.common.clone(), self.leave.subscribe());
            let open = self.open.clone();
            self.worker.handle.spawn(async move {
                while !leave.has_changed().unwrap_or(true) {
                    if node.follow(&common, Start::Resume, leave.clone()).await.is_err() {
                        common.metrics.broken.fetch_add(1, Ordering::Relaxed);
                    }
                    sleep(RECONNECT.mul_f64(fastrand::f64())).await;
                }
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Waits until every node is up to date. Returns the time since `start`.
    pub(crate) fn consistent(&self, start: Instant, deadline: Duration) -> Result<Duration> {
        let all = self.nodes.len() as u64;
        let metrics = &self.common.metrics;
        self.until(start, deadline, || metrics.consistent.load(Ordering::Relaxed) == all)
            .with_context(|| format!("{} of {all} nodes are up to date", metrics.consistent.load(Ordering::Relaxed)))
    }

    /// Closes all streams.
    pub(crate) fn leave(&self, deadline: Duration) -> Result<()> {
        self.leave.send_modify(|times| *times += 1);
        self.gone(Instant::now(), deadline).map(|_| ())
    }

    /// Waits until no stream is open. Returns the time since `start`.
    pub(crate) fn gone(&self, start: Instant, deadline: Duration) -> Result<Duration> {
        self.until(start, deadline, || self.open.load(Ordering::Relaxed) == 0).context("streams stay open")
    }

    /// Waits until a bookmark with the expected digest has reached every node, and compares the state of the nodes that
    /// keep it.
    pub(crate) fn agree(&self, expected: &[DigestVector], deadline: Duration) -> Result<()> {
        let agrees = |(node, digests): (&Arc<Node>, &DigestVector)| node.digest() == digests.total().0;
        let waited = self
            .until(Instant::now(), deadline, || self.nodes.iter().zip(expected).all(agrees))
            .map(|_| ())
            .with_context(|| {
                let agreeing = self.nodes.iter().zip(expected).filter(|pair| agrees(*pair)).count();
                format!("{agreeing} of {} nodes have the right digest", self.nodes.len())
            });
        for (node, digests) in self.nodes.iter().zip(expected) {
            let differing = node.digests().map_or(0, |replica| replica.differing(digests).count());
            ensure!(differing == 0, "the state of a node differs in {differing} entries of its digest vector");
        }
        waited
    }

    fn until(&self, start: Instant, deadline: Duration, done: impl Fn() -> bool) -> Result<Duration> {
        let end = Instant::now() + deadline;
        while !done() {
            if let Some(error) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(error.context("a node"));
            }
            if Instant::now() > end {
                bail!("not within {deadline:?}");
            }
            thread::sleep(POLL);
        }
        Ok(start.elapsed())
    }
}
