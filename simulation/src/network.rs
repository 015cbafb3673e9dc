//! The network between nodes and frontends: connections with latency, that are refused, stall for a while, or end at
//! one side before the other.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, bail};
use backend::{Connect, Session, SessionMessages};
use fastrand::Rng;
use frontend::Frontend;
use futures::{FutureExt as _, future::BoxFuture};
use proto::model::{ClientMessage, Hello, ServerMessage};
use runtime::Shutdown;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

use crate::{
    kernel::SimulatedKernel,
    oracle::{NodeOracle, StreamMirror},
    trace::{Trace, trace},
};

/// The network. Clones share it.
#[derive(Clone)]
pub(crate) struct Network(Arc<NetworkState>);

struct NetworkState {
    trace: Trace,
    inner: Mutex<NetworkInner>,
    /// Changes with every fault, so that those that wait look again.
    changed: watch::Sender<u64>,
}

struct NetworkInner {
    rng: Rng,
    frontends: Vec<Option<Listening>>,
    /// Pairs of node and frontend between which nothing arrives.
    partitions: BTreeSet<(usize, usize)>,
    /// Pairs whose connections end at once.
    cuts: BTreeSet<(usize, usize, u64)>,
    connections: u64,
    /// The longest latency, in microseconds.
    latency: u64,
}

/// A frontend that accepts connections.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) frontend: Frontend,
    pub(crate) shutdown: Shutdown,
    /// Changes when the process is killed.
    pub(crate) killed: watch::Receiver<bool>,
}

/// Connects one node.
pub(crate) struct NodeConnect {
    pub(crate) network: Network,
    pub(crate) node: usize,
    pub(crate) oracle: NodeOracle,
    pub(crate) kernel: SimulatedKernel,
    /// Whether the node withholds a loss.
    pub(crate) is_withheld: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Network {
    pub(crate) fn new(rng: Rng, trace: Trace, frontends: usize) -> Self {
        let inner = NetworkInner {
            rng,
            frontends: vec![None; frontends],
            partitions: BTreeSet::new(),
            cuts: BTreeSet::new(),
            connections: 0,
            latency: 2_000,
        };
        Self(Arc::new(NetworkState { trace, inner: Mutex::new(inner), changed: watch::Sender::new(0) }))
    }

    pub(crate) fn listen(&self, frontend: usize, listening: Option<Listening>) {
        self.lock().frontends[frontend] = listening;
        self.changed();
    }

    /// The frontends that accept connections.
    pub(crate) fn listening(&self) -> Vec<Listening> {
        self.lock().frontends.iter().flatten().cloned().collect()
    }

    pub(crate) fn partition(&self, pair: (usize, usize)) {
        self.lock().partitions.insert(pair);
        self.changed();
    }

    pub(crate) fn heal(&self) {
        self.lock().partitions.clear();
        self.changed();
    }

    pub(crate) fn set_latency(&self, micros: u64) {
        self.lock().latency = micros;
    }

    /// Ends all connections of a pair.
    pub(crate) fn cut(&self, (node, frontend): (usize, usize)) {
        let mut inner = self.lock();
        for connection in 0..inner.connections {
            inner.cuts.insert((node, frontend, connection));
        }
        drop(inner);
        self.changed();
    }

    fn changed(&self) {
        self.0.changed.send_modify(|number| *number += 1);
    }

    fn lock(&self) -> MutexGuard<'_, NetworkInner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latency(&self) -> Duration {
        let NetworkInner { rng, latency, .. } = &mut *self.lock();
        Duration::from_micros(rng.u64(10..=(*latency).max(10)))
    }

    /// Waits until nothing stalls this connection.
    async fn passes(&self, pair: (usize, usize)) {
        let mut changed = self.0.changed.subscribe();
        while self.lock().partitions.contains(&pair) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns when this connection is cut.
    async fn cut_off(&self, (node, frontend): (usize, usize), connection: u64) {
        let mut changed = self.0.changed.subscribe();
        while !self.lock().cuts.contains(&(node, frontend, connection)) {
            changed.borrow_and_update();
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Connect for NodeConnect {
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let Self { network, node, oracle, kernel, is_withheld } = self;
        let (network, node, kernel, is_withheld) = (network.clone(), *node, kernel.clone(), is_withheld.clone());
        let mirror = oracle.stream(&hello);
        async move {
            sleep(network.latency()).await;
            let (frontend, listening, connection) = {
                let mut inner = network.lock();
                let NetworkInner { rng, frontends, connections, .. } = &mut *inner;
                let frontend = rng.usize(..frontends.len());
                *connections += 1;
                (frontend, frontends[frontend].clone(), *connections)
            };
            let pair = (node, frontend);
            network.passes(pair).await;
            let Some(Listening { frontend: target, shutdown, mut killed }) = listening else { bail!("refused") };
            if *killed.borrow() {
                bail!("refused");
            }
            let trace = &network.0.trace;
            trace!(trace, "node {node} connects to frontend {frontend}, resume {:?}", hello.resume);
            let (to_frontend, from_frontend) = target.attach(hello, shutdown);
            let (to_node, messages) = mpsc::channel(4);
            let (replies, from_node) = mpsc::channel(4);
            let connection_ends = {
                let network = network.clone();
                async move {
                    tokio::select! {
                        biased;
                        _ = killed.wait_for(|killed| *killed) => {}
                        () = network.cut_off(pair, connection) => {}
                    }
                }
            };
            let pumps = Pumps { network, pair, mirror: Arc::new(Mutex::new(mirror)), kernel, is_withheld };
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = connection_ends => {}
                    () = pumps.to_node(from_frontend, to_node) => {}
                    () = pumps.to_frontend(from_node, to_frontend) => {}
                }
            });
            Ok(Session { messages: SessionMessages::Local(messages), replies })
        }
        .boxed()
    }
}

/// The two directions of a connection.
struct Pumps {
    network: Network,
    pair: (usize, usize),
    mirror: Arc<Mutex<StreamMirror>>,
    kernel: SimulatedKernel,
    is_withheld: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Pumps {
    async fn to_node(&self, mut from: mpsc::Receiver<ServerMessage>, to: mpsc::Sender<ServerMessage>) {
        loop {
            let message = tokio::select! {
                biased;
                () = to.closed() => return,
                message = from.recv() => message,
            };
            let Some(message) = message else { return };
            self.network.passes(self.pair).await;
            sleep(self.network.latency()).await;
            let Ok(permit) = to.reserve().await else { return };
            trace!(self.network.0.trace, "{:?} to node {}: {}", self.pair.1, self.pair.0, summary(&message));
            self.mirror().received(&message);
            permit.send(message);
        }
    }

    async fn to_frontend(&self, mut from: mpsc::Receiver<ClientMessage>, to: mpsc::Sender<ClientMessage>) {
        while let Some(message) = from.recv().await {
            self.mirror().sent(&message, &self.kernel, (self.is_withheld)());
            self.network.passes(self.pair).await;
            sleep(self.network.latency()).await;
            if to.send(message).await.is_err() {
                return;
            }
        }
    }

    fn mirror(&self) -> MutexGuard<'_, StreamMirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn summary(message: &ServerMessage) -> String {
    match message {
        ServerMessage::Welcome(welcome) => format!("welcome {} {:?}", welcome.epoch, welcome.mode),
        ServerMessage::Batch(batch) => format!(
            "batch {}..{}, {} operations{}",
            batch.base,
            batch.target,
            batch.operations.len(),
            if batch.commit { ", commit" } else { "" }
        ),
        ServerMessage::Bookmark(revision, _) => format!("bookmark {revision}"),
        ServerMessage::Drain(_) => "drain".to_owned(),
        ServerMessage::DigestRequest => "digest request".to_owned(),
    }
}
