//! The network between nodes and frontends: connections with latency, that are refused, stall for a while, deliver
//! slowly, or end at one side before the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, bail};
use backend::{
    Connect, FrontendAddress, Session,
    drained::{DrainStreams, LevelsStream},
};
use fastrand::Rng;
use frontend::Frontend;
use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use proto::{
    encoded::{EncodedMessage, encode_client_message},
    fuzzing::client_message,
    model::{Batch, Bookmark, ClientMessage, Hello, ServerMessage},
    node_set::NodeSet,
    v1::DrainLevels,
};
use runtime::Shutdown;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};

use crate::{
    kernel::SimulatedKernel,
    objects::node_name,
    oracle::{NodeOracle, StreamMirror},
    trace::{Trace, trace},
};

/// After this time without an answer, an end of a connection whose other end is gone is closed.
const KEEPALIVE: Duration = Duration::from_secs(30);

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
    /// How the connections of a pair end, up to the one with this number.
    cuts: BTreeMap<(usize, usize), (Cut, u64)>,
    connections: u64,
    /// The longest latency, in microseconds.
    latency: u64,
    /// The longest time between two parts of a batch, in microseconds.
    gap: u64,
    /// Nodes that take this long for each message, in microseconds.
    slow: BTreeMap<usize, u64>,
    /// Nodes whose next batch loses an operation.
    lossy: BTreeSet<usize>,
    /// When a frontend last ended.
    last_removed: Option<Instant>,
    /// The frontend of each node's last session, and its connection.
    sessions: BTreeMap<usize, (usize, u64)>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both sides notice.
    Closed,
    /// The frontend notices; the node sees an idle connection.
    NodeUnaware,
    /// The node notices; the frontend sees an idle connection, for a while.
    FrontendUnaware,
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
}

impl Network {
    pub(crate) fn new(rng: Rng, trace: Trace, frontends: usize) -> Self {
        let inner = NetworkInner {
            rng,
            frontends: vec![None; frontends],
            partitions: BTreeSet::new(),
            cuts: BTreeMap::new(),
            connections: 0,
            latency: 2_000,
            gap: 0,
            slow: BTreeMap::new(),
            lossy: BTreeSet::new(),
            last_removed: None,
            sessions: BTreeMap::new(),
        };
        Self(Arc::new(NetworkState { trace, inner: Mutex::new(inner), changed: watch::Sender::new(0) }))
    }

    pub(crate) fn listen(&self, frontend: usize, listening: Option<Listening>) {
        let mut inner = self.lock();
        if listening.is_none() {
            inner.last_removed = Some(Instant::now());
        }
        inner.frontends[frontend] = listening;
        drop(inner);
        self.changed();
    }

    /// A session of a node has ended.
    fn session_ended(&self, node: usize, connection: u64) {
        let mut inner = self.lock();
        if inner.sessions.get(&node).is_some_and(|(_, current)| *current == connection) {
            inner.sessions.remove(&node);
        }
    }

    /// Returns when this connection ends, and how.
    async fn ended(&self, pair: (usize, usize), connection: u64, killed: &mut watch::Receiver<bool>) -> Cut {
        tokio::select! {
            biased;
            _ = killed.wait_for(|killed| *killed) => Cut::Closed,
            cut = self.cut_off(pair, connection) => cut,
        }
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
        let mut inner = self.lock();
        inner.partitions.clear();
        inner.slow.clear();
        inner.gap = 0;
        inner.lossy.clear();
        drop(inner);
        self.changed();
    }

    pub(crate) fn set_latency(&self, micros: u64) {
        self.lock().latency = micros;
    }

    pub(crate) fn set_gap(&self, micros: u64) {
        self.lock().gap = micros;
    }

    pub(crate) fn set_slow(&self, node: usize, micros: u64) {
        self.lock().slow.insert(node, micros);
    }

    pub(crate) fn set_lossy(&self, node: usize) {
        self.lock().lossy.insert(node);
    }

    /// Ends all connections of a pair.
    pub(crate) fn cut(&self, pair: (usize, usize), cut: Cut) {
        let mut inner = self.lock();
        let connections = inner.connections;
        inner.cuts.insert(pair, (cut, connections));
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

    /// What is added to the latency of a part of a message to a node.
    fn delay(&self, node: usize, part: usize) -> Duration {
        let NetworkInner { rng, slow, gap, .. } = &mut *self.lock();
        let gap = if part > 0 { rng.u64(0..=*gap) } else { 0 };
        let micros = slow.get(&node).copied().unwrap_or_default() + gap;
        Duration::from_micros(micros)
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
    async fn cut_off(&self, pair: (usize, usize), connection: u64) -> Cut {
        let mut changed = self.0.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some((cut, last)) = self.lock().cuts.get(&pair)
                && connection <= *last
            {
                return *cut;
            }
            if changed.changed().await.is_err() {
                return Cut::Closed;
            }
        }
    }

    /// A message of a node as the frontend decodes it; `None`: it is invalid.
    fn client_message(&self, sent: &ClientMessage) -> Option<ClientMessage> {
        let received = client_message(&encode_client_message(sent));
        if received.as_ref() != Some(sent) {
            self.0.trace.violation(format_args!("{sent:?} arrives as {received:?}"));
        }
        received
    }

    /// The parts in which a message arrives: a batch may come as several, as a large one does.
    fn parts(&self, node: usize, message: ServerMessage, oracle: &NodeOracle) -> Vec<ServerMessage> {
        let ServerMessage::Batch(mut batch) = message else { return vec![message] };
        let NetworkInner { rng, lossy, .. } = &mut *self.lock();
        if !batch.operations.is_empty() && lossy.remove(&node) {
            let lost = batch.operations.remove(rng.usize(..batch.operations.len()));
            trace!(self.0.trace, "an operation to node {node} is lost: {lost:?}");
            oracle.operation_lost();
        }
        let operations = batch.operations.len();
        if operations < 2 || rng.u8(0..4) > 0 {
            return vec![ServerMessage::Batch(batch)];
        }
        let rest = batch.operations.split_off(rng.usize(1..operations));
        let first = Batch {
            commit: false,
            source_version: Default::default(),
            kind_versions: Default::default(),
            operations: std::mem::take(&mut batch.operations),
            ..batch.clone()
        };
        [first, Batch { operations: rest, ..batch }].map(ServerMessage::Batch).into()
    }
}

impl Connect for NodeConnect {
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let Self { network, node, oracle, kernel } = self;
        let (network, node, oracle) = (network.clone(), *node, oracle.clone());
        let mirror = oracle.stream(&hello, kernel);
        async move {
            sleep(network.latency()).await;
            let (frontend, listening, connection) = {
                let mut inner = network.lock();
                let NetworkInner { rng, frontends, connections, .. } = &mut *inner;
                let frontend = rng.usize(..frontends.len());
                *connections += 1;
                (frontend, frontends[frontend].clone(), *connections)
            };
            let Some(ClientMessage::Hello(hello)) = network.client_message(&ClientMessage::Hello(hello)) else {
                bail!("no hello")
            };
            let pair = (node, frontend);
            network.passes(pair).await;
            let Some(Listening { frontend: target, shutdown, mut killed }) = listening else { bail!("refused") };
            if *killed.borrow() {
                bail!("refused");
            }
            let trace = &network.0.trace;
            trace!(trace, "node {node} connects to frontend {frontend}, resume {:?}", hello.resume);
            let (to_frontend, mut from_frontend) = target.attach(hello, shutdown);
            let (to_node, messages) = mpsc::channel(4);
            let (replies, mut from_node) = mpsc::channel(4);
            network.lock().sessions.insert(node, (frontend, connection));
            let connections = network.clone();
            let pumps = Pumps { network, pair, oracle, mirror: Arc::new(Mutex::new(mirror)) };
            tokio::spawn(async move {
                let cut = tokio::select! {
                    biased;
                    cut = connections.ended(pair, connection, &mut killed) => cut,
                    () = pumps.to_node(&mut from_frontend, &to_node) => Cut::Closed,
                    () = pumps.to_frontend(&mut from_node, &to_frontend) => Cut::Closed,
                };
                match cut {
                    Cut::Closed => {}
                    Cut::NodeUnaware => {
                        drop((to_frontend, from_frontend));
                        let _ = timeout(KEEPALIVE, async { while from_node.recv().await.is_some() {} }).await;
                        drop(to_node);
                    }
                    Cut::FrontendUnaware => {
                        drop((to_node, from_node));
                        connections.session_ended(node, connection);
                        sleep(KEEPALIVE).await;
                        drop((to_frontend, from_frontend));
                    }
                }
                connections.session_ended(node, connection);
            });
            Ok(Session { messages, replies })
        }
        .boxed()
    }
}

/// The streams `Drains` of one node.
pub(crate) struct NodeDrains {
    network: Network,
    node: usize,
    /// The nodes that frontends knew when they last said something.
    clusters: Arc<Mutex<BTreeMap<usize, NodeSet>>>,
}

impl NodeDrains {
    pub(crate) fn new(network: Network, node: usize) -> Self {
        Self { network, node, clusters: Arc::default() }
    }

    /// Whether a frontend knew these nodes.
    pub(crate) fn has_known(&self, cluster: NodeSet) -> bool {
        let clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.values().any(|known| *known == cluster)
    }
}

impl fmt::Debug for NodeDrains {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NodeDrains").field("node", &self.node).finish_non_exhaustive()
    }
}

impl DrainStreams for NodeDrains {
    fn own(&self) -> Option<FrontendAddress> {
        self.network.lock().sessions.get(&self.node).map(|(frontend, _)| frontend_address(*frontend))
    }

    fn addresses(&self) -> Vec<FrontendAddress> {
        let inner = self.network.lock();
        let listening = inner.frontends.iter().enumerate().filter(|(_, listening)| listening.is_some());
        listening.map(|(frontend, _)| frontend_address(frontend)).collect()
    }

    fn last_removed(&self) -> Option<Instant> {
        self.network.lock().last_removed
    }

    fn resolve(&self) -> BoxFuture<'static, Result<()>> {
        future::ready(Ok(())).boxed()
    }

    fn open(&self, address: &FrontendAddress) -> BoxFuture<'static, Result<LevelsStream>> {
        let network = self.network.clone();
        let node = self.node;
        let frontend = address.uri.parse::<usize>();
        let clusters = self.clusters.clone();
        let record = move |frontend, message: &Result<DrainLevels>| {
            let cluster = message.as_ref().ok().and_then(|message| message.cluster).unwrap_or_default();
            clusters.lock().unwrap_or_else(PoisonError::into_inner).insert(frontend, cluster);
        };
        let open = async move {
            let frontend = frontend?;
            let levels = network.open_drains((node, frontend)).await?;
            anyhow::Ok(levels.inspect(move |message| record(frontend, message)).boxed())
        };
        open.boxed()
    }
}

fn frontend_address(number: usize) -> FrontendAddress {
    FrontendAddress { uri: number.to_string(), server_name: None }
}

impl Network {
    async fn open_drains(&self, pair: (usize, usize)) -> Result<LevelsStream> {
        sleep(self.latency()).await;
        let (listening, connection) = {
            let mut inner = self.lock();
            inner.connections += 1;
            (inner.frontends[pair.1].clone(), inner.connections)
        };
        self.passes(pair).await;
        let Some(Listening { frontend, shutdown, mut killed }) = listening else { bail!("refused") };
        if *killed.borrow() {
            bail!("refused");
        }

        let mut levels = frontend.drains(&node_name(pair.0), shutdown)?;
        let (to_node, messages) = mpsc::channel(4);
        let network = self.clone();
        tokio::spawn(async move {
            let deliver = async {
                while let Some(message) = levels.next().await {
                    network.passes(pair).await;
                    sleep(network.latency()).await;
                    if to_node.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
                // What arrives of the end.
                network.passes(pair).await;
            };
            let cut = tokio::select! {
                biased;
                cut = network.ended(pair, connection, &mut killed) => cut,
                () = to_node.closed() => Cut::Closed,
                () = deliver => Cut::Closed,
            };
            match cut {
                Cut::Closed => {}
                Cut::NodeUnaware => {
                    drop(levels);
                    let _ = timeout(KEEPALIVE, to_node.closed()).await;
                }
                Cut::FrontendUnaware => {
                    drop(to_node);
                    sleep(KEEPALIVE).await;
                }
            }
        });
        Ok(stream::unfold(messages, async |mut messages| Some((messages.recv().await?, messages))).boxed())
    }
}

/// The two directions of a connection.
struct Pumps {
    network: Network,
    pair: (usize, usize),
    oracle: NodeOracle,
    mirror: Arc<Mutex<StreamMirror>>,
}

impl Pumps {
    async fn to_node(&self, from: &mut mpsc::Receiver<ServerMessage>, to: &mpsc::Sender<ServerMessage>) {
        let Self { network, pair: (node, frontend), oracle, .. } = self;
        loop {
            let message = tokio::select! {
                biased;
                () = to.closed() => return,
                message = from.recv() => message,
            };
            let Some(message) = message else { return };
            for (number, part) in network.parts(*node, message, oracle).into_iter().enumerate() {
                network.passes(self.pair).await;
                sleep(network.latency() + network.delay(*node, number)).await;
                let Ok(permit) = to.reserve().await else { return };
                trace!(network.0.trace, "{frontend} to node {node}: {}", summary(&part));
                let Some(received) = self.over_the_wire(&part) else { return };
                self.mirror().received(&part);
                permit.send(received);
            }
        }
    }

    async fn to_frontend(&self, from: &mut mpsc::Receiver<ClientMessage>, to: &mpsc::Sender<ClientMessage>) {
        let Self { network, pair, .. } = self;
        // Each message is checked when the node sends it.
        let (queue, mut queued) = mpsc::unbounded_channel();
        let receive = async {
            while let Some(message) = from.recv().await {
                self.mirror().sent(&message);
                let Some(message) = network.client_message(&message) else { return };
                let _ = queue.send(message);
            }
        };
        let deliver = async {
            while let Some(message) = queued.recv().await {
                network.passes(*pair).await;
                sleep(network.latency()).await;
                if to.send(message).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = receive => {}
            () = deliver => {}
        }
    }

    /// A message as the node decodes it; `None`: it is another one.
    fn over_the_wire(&self, sent: &ServerMessage) -> Option<ServerMessage> {
        let bytes = EncodedMessage::new(sent).to_bytes();
        let received = ServerMessage::try_from(EncodedMessage::from_bytes(bytes));
        match received {
            Ok(received) if received == *sent => Some(received),
            other => {
                self.network.0.trace.violation(format_args!("{sent:?} arrives as {other:?}"));
                None
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
        ServerMessage::Bookmark(Bookmark { revision, .. }) => format!("bookmark {revision}"),
        ServerMessage::Drain(_) => "drain".to_owned(),
        ServerMessage::DigestRequest => "digest request".to_owned(),
    }
}
