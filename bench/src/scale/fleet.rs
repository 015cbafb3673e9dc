//! All nodes of a cluster, on one thread inside a namespace; and the thread of whatever else has to run there.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::Netns;
use proto::digest::DigestVector;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};

use super::board::Board;
use super::node::{Common, Mirror, Node, Start};

/// How many bytes are read at a time.
const SCRATCH: usize = 64 << 10;
/// Of so many nodes one keeps what it is told.
const MIRRORED: u32 = 1_000;
/// How often it is looked whether something has come about.
const POLL: Duration = Duration::from_millis(2);

/// A thread in a namespace with a runtime of its own. Its tasks end with it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

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

/// How they connect.
#[derive(Debug)]
pub(crate) enum Connect {
    /// As nodes that hold nothing.
    Empty,
    /// As nodes that come back.
    Resume,
    /// As nodes that come back to another frontend, with these digests.
    Digests(Vec<DigestVector>),
}

impl Worker {
    pub(crate) fn start(netns: &Netns) -> Result<Self> {
        let (started, starting) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let netns = netns.clone();
        let thread = thread::spawn(move || {
            netns.run(|| {
                let runtime = Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => {
                        // Nobody listens when the start was given up.
                        let _ = started.send(Ok(runtime.handle().clone()));
                        // An error says the same: the owner is gone.
                        let _ = runtime.block_on(stopped);
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        });
        let handle = starting.recv().context("a thread has died")??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

impl Fleet {
    pub(crate) fn new(netns: &Netns, frontend: SocketAddr, board: Arc<Board>, nodes: u32) -> Result<Self> {
        let scratch = Mutex::new(vec![0; SCRATCH].into());
        let mirror = |number: u32| number.is_multiple_of(MIRRORED).then(|| Mirror::new(number));
        Ok(Self {
            worker: Worker::start(netns)?,
            common: Arc::new(Common { frontend, board, scratch }),
            nodes: (0..nodes).map(|number| Arc::new(Node::new(number, mirror(number)))).collect(),
            leave: watch::Sender::new(0),
            open: Arc::default(),
            failure: Arc::default(),
        })
    }

    /// Connects all nodes at once.
    pub(crate) fn connect(&self, how: &Connect) {
        self.common.board.consistent.store(0, Ordering::Relaxed);
        for (place, node) in self.nodes.iter().enumerate() {
            let start = match how {
                Connect::Empty => Start::Empty,
                Connect::Resume => Start::Resume,
                Connect::Digests(digests) => Start::Digests(Box::new(digests[place].clone())),
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

    /// Waits until every node is up to date since it connected. Gives the time from `start` on.
    pub(crate) fn consistent(&self, start: Instant, deadline: Duration) -> Result<Duration> {
        let all = self.nodes.len() as u64;
        let board = &self.common.board;
        self.until(start, deadline, || board.consistent.load(Ordering::Relaxed) == all)
            .with_context(|| format!("{} of {all} nodes are up to date", board.consistent.load(Ordering::Relaxed)))
    }

    /// Closes all streams.
    pub(crate) fn leave(&self, deadline: Duration) -> Result<()> {
        self.leave.send_modify(|times| *times += 1);
        self.gone(Instant::now(), deadline).map(|_| ())
    }

    /// Waits until no stream is open. Gives the time from `start` on.
    pub(crate) fn gone(&self, start: Instant, deadline: Duration) -> Result<Duration> {
        self.until(start, deadline, || self.open.load(Ordering::Relaxed) == 0).context("streams stay open")
    }

    /// Waits until every node has been told, by a bookmark, that it must hold what the cluster says, and checks that those that keep what they
    /// are told do.
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
            let differing = node.held().map_or(0, |held| held.differing(digests).count());
            ensure!(differing == 0, "a node holds something else: {differing} entries of its digests differ");
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
