//! A frontend and a backend with a fake kernel, in one process. Their stream can be cut, and each can be restarted.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use backend::{
    Connect, Grpc, GrpcOptions, NodeState, Progress, ReconnectDelays, Runner, RunnerOptions, Session, StateFile,
    StoredState,
    testing::{Call, FakeKernel},
};
use frontend::{Config, Frontend, HistoryLimits, Listener, Rate, object::SourceUpdate};
use proto::{
    model::{
        Ack, Bookmark, ClientMessage, Epoch, Hello, NodeInfo, Revision, Role, ServerMessage, ServicePortKey,
        SourceVersion,
    },
    v1::{StatusRequest, fairlead_client::FairleadClient},
};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::cluster::{NODE, TestCluster};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The connection between backend and frontend.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Unix,
    InProcess,
}

/// How a backend is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StopMode {
    Graceful,
    Killed,
}

/// Frontend, backend, and the stream between them.
pub(crate) struct Fixture {
    transport: Transport,
    directory: tempfile::TempDir,
    kernel: FakeKernel,
    server: Arc<Mutex<RunningFrontend>>,
    backend: RunningBackend,
    cutter: StreamCutter,
    /// What was observed last.
    seen: Option<ObservedState>,
}

/// One run of a frontend.
struct RunningFrontend {
    frontend: Frontend,
    updates: mpsc::Sender<SourceUpdate>,
    shutdown: Shutdown,
    trigger: Trigger,
    serving: JoinHandle<anyhow::Result<()>>,
}

/// One run of a backend.
struct RunningBackend {
    progress: watch::Receiver<Progress>,
    trigger: Trigger,
    task: JoinHandle<anyhow::Result<()>>,
}

/// Cuts streams: the open one now, or any one after a number of messages.
#[derive(Clone)]
struct StreamCutter {
    now: watch::Sender<()>,
    after: Arc<AtomicUsize>,
}

/// The state that an observer of the stream has.
pub(crate) struct ObservedState {
    at: (Epoch, Revision),
    state: NodeState,
}

/// A [`Connect`] whose sessions can be cut.
struct CuttableConnect<C> {
    inner: C,
    cutter: StreamCutter,
}

impl<C: Connect> Connect for CuttableConnect<C> {
    fn connect(&mut self, hello: Hello) -> futures::future::BoxFuture<'static, anyhow::Result<Session>> {
        let connecting = self.inner.connect(hello);
        let cutter = self.cutter.clone();
        Box::pin(async move {
            let Session { mut messages, replies } = connecting.await?;
            let mut now = cutter.now.subscribe();
            let (sender, receiver) = mpsc::channel(1);
            tokio::spawn(async move {
                loop {
                    let message = tokio::select! {
                        _ = now.changed() => return,
                        () = sender.closed() => return,
                        message = messages.recv() => message,
                    };
                    let Some(message) = message else { return };
                    let left = cutter.after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                        Some(if left == usize::MAX { left } else { left.saturating_sub(1) })
                    });
                    if left == Ok(0) {
                        cutter.after.store(usize::MAX, Ordering::SeqCst);
                        return;
                    }
                    if sender.send(message).await.is_err() {
                        return;
                    }
                }
            });
            Ok(Session { messages: receiver, replies })
        })
    }
}

impl RunningFrontend {
    async fn start(address: &str, cluster: &TestCluster, history: usize) -> Self {
        let config = Config {
            commit_interval: Duration::from_millis(1),
            bookmark_interval: Duration::from_millis(20),
            max_drain_delay: Duration::from_millis(5),
            drain_grace: Duration::from_millis(50),
            history: HistoryLimits { entries: history, bytes: 16 << 20 },
            // The default limits of new streams are too low for this test, which cuts streams often.
            syncs_per_node: Rate { burst: 1000, every: Duration::from_millis(1) },
            ..Config::default()
        };
        let frontend = Frontend::new(config);
        let (trigger, shutdown) = Shutdown::channel();
        let (updates, receiver) = mpsc::channel(64);
        let guard = Ready::default().guard("cluster");
        let (engine, stop) = (frontend.clone(), shutdown.clone());
        tokio::spawn(async move { engine.run(receiver, guard, stop).await });
        let listener = Listener::bind(address).await.unwrap();
        let (server, stop) = (frontend.clone(), shutdown.clone());
        let serving = tokio::spawn(async move { server.serve(listener, stop).await });
        for update in cluster.initial() {
            updates.send(update).await.unwrap();
        }
        Self { frontend, updates, shutdown, trigger, serving }
    }

    fn attach(&self, hello: Hello) -> (mpsc::Sender<ClientMessage>, mpsc::Receiver<ServerMessage>) {
        self.frontend.attach(hello, self.shutdown.clone())
    }
}

impl Fixture {
    pub(crate) async fn start(transport: Transport, cluster: &TestCluster) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kernel = FakeKernel::default();
        let cutter = StreamCutter { now: watch::Sender::default(), after: Arc::new(AtomicUsize::new(usize::MAX)) };
        let address = format!("unix:{}", directory.path().join("socket").display());
        let server = Arc::new(Mutex::new(RunningFrontend::start(&address, cluster, 1000).await));
        let backend = RunningBackend::start(transport, &address, &directory, &kernel, &server, &cutter);
        Self { transport, directory, kernel, server, backend, cutter, seen: None }
    }

    fn address(&self) -> String {
        format!("unix:{}", self.directory.path().join("socket").display())
    }

    /// Delivers updates.
    pub(crate) async fn update(&self, updates: Vec<SourceUpdate>) {
        let sender = self.server.lock().unwrap().updates.clone();
        for update in updates {
            sender.send(update).await.unwrap();
        }
    }

    /// Cuts the stream.
    pub(crate) fn cut(&self) {
        self.cutter.now.send_replace(());
    }

    /// Cuts the stream after a number of messages.
    pub(crate) fn cut_after(&self, messages: usize) {
        self.cutter.after.store(messages, Ordering::SeqCst);
    }

    /// Ends the frontend and starts another one, with a new epoch and after `history` commits.
    pub(crate) async fn restart_frontend(&self, cluster: &TestCluster, history: usize) {
        let serving = {
            let mut server = self.server.lock().unwrap();
            server.trigger.fire();
            std::mem::replace(&mut server.serving, tokio::spawn(async { Ok(()) }))
        };
        timeout(TIMEOUT, serving).await.expect("serving ends").unwrap().unwrap();
        let next = RunningFrontend::start(&self.address(), cluster, history).await;
        *self.server.lock().unwrap() = next;
    }

    /// Stops the backend and starts another one with the same state file and kernel.
    pub(crate) async fn restart_backend(&mut self, mode: StopMode) {
        match mode {
            StopMode::Graceful => self.backend.trigger.fire(),
            StopMode::Killed => {
                // The facts of a Node object that was deleted are only there. There is no event for that.
                while self.backend.progress.borrow().node.is_retained
                    && !self.stored().is_some_and(|it| it.retains_node())
                {
                    sleep(Duration::from_millis(1)).await;
                }
                self.backend.task.abort();
            }
        }
        let ended = timeout(TIMEOUT, &mut self.backend.task).await.expect("the backend ends");
        assert_eq!(ended.is_ok(), matches!(mode, StopMode::Graceful));
        if matches!(mode, StopMode::Graceful) {
            self.assert_stored();
        }
        let address = self.address();
        self.backend =
            RunningBackend::start(self.transport, &address, &self.directory, &self.kernel, &self.server, &self.cutter);
    }

    /// The number of operations written to the kernel.
    pub(crate) fn writes(&self) -> usize {
        let calls = self.kernel.calls().into_iter();
        calls.map(|call| if let Call::Reconcile(n) | Call::Apply(n) = call { n } else { 0 }).sum()
    }

    /// Waits until the backend has the state that a new node would be sent.
    pub(crate) async fn assert_in_sync(&mut self, cluster: &TestCluster) {
        let seen = self.observe(cluster).await;
        let reached = |at: Option<(Epoch, Revision)>| {
            at.is_some_and(|(epoch, revision)| epoch == seen.at.0 && revision >= seen.at.1)
        };
        let programmed = self.backend.progress.wait_for(|progress| reached(progress.programmed));
        let progress = timeout(TIMEOUT, programmed).await.expect("it is programmed").unwrap().clone();
        assert_eq!(progress.committed, progress.programmed);
        assert_eq!((progress.protocol.rejected_operations, progress.protocol.digest_mismatches), (0, 0));
        assert_eq!(self.kernel.service_ports(), *seen.state.service_ports());
        self.assert_no_repairs().await;
        self.seen = Some(seen);
    }

    /// The state in the file.
    fn stored(&self) -> Option<NodeState> {
        Some(StoredState::read(&self.directory.path().join("state"), NODE).ok()?.state)
    }

    /// Checks that a backend that has ended in order has stored the state that was observed last.
    fn assert_stored(&self) {
        let seen = self.seen.as_ref().unwrap();
        let StoredState { epoch, revision, state, .. } =
            StoredState::read(&self.directory.path().join("state"), NODE).unwrap();
        assert_eq!(Some((epoch, revision)), self.backend.progress.borrow().committed);
        assert!(epoch == seen.at.0 && revision >= seen.at.1);
        assert_eq!(state.digests(), seen.state.digests());
        assert_eq!(state.service_ports(), seen.state.service_ports());
        // The facts of a Node object that was deleted are retained.
        assert!(state.retains_node() || state.node() == seen.state.node());
    }

    /// Checks that the frontend has detected no digest mismatch.
    async fn assert_no_repairs(&self) {
        let mut client = FairleadClient::connect(self.address()).await.unwrap();
        let status = client.status(StatusRequest::default()).await.unwrap().into_inner();
        for node in status.nodes {
            assert_eq!(node.repairs, 0, "{node:?}");
        }
    }

    /// Follows a stream without a committed state until it has received the marker and then a bookmark.
    async fn observe(&self, cluster: &TestCluster) -> ObservedState {
        let hello = Hello {
            version: proto::PROTOCOL_VERSION,
            node: NODE.into(),
            role: Role::Observer,
            backend: "observer".to_owned(),
            backend_version: String::new(),
            resume: None,
            digests: None,
            source_version: SourceVersion(0),
            kind_versions: proto::model::KindVersions::default(),
            started: None,
        };
        let (replies, mut events) = self.server.lock().unwrap().attach(hello);
        let mut state = NodeState::new(NodeInfo::unknown(NODE));
        let mut epoch = Epoch(0);
        let mut number = 0;
        loop {
            let event = timeout(TIMEOUT, events.recv()).await.expect("an event").expect("a stream");
            match event {
                ServerMessage::Welcome(welcome) => {
                    epoch = welcome.epoch;
                    continue;
                }
                ServerMessage::Batch(batch) => {
                    assert_eq!(state.apply(batch.operations), []);
                    if !batch.commit {
                        continue;
                    }
                }
                ServerMessage::Bookmark(Bookmark { revision, digest, .. }) => {
                    assert_eq!(state.digests().total(), digest);
                    if contains_marker(&state, cluster) {
                        return ObservedState { at: (epoch, revision), state };
                    }
                }
                ServerMessage::DigestRequest => {
                    let digests = Box::new(state.digests().clone());
                    replies.send(ClientMessage::DigestResponse(Revision(0), digests)).await.unwrap();
                    continue;
                }
                ServerMessage::Drain(_) => panic!("the frontend is not stopped"),
            }
            let digest = Some(state.digests().total());
            number += 1;
            let ack = Ack::complete(number, digest);
            replies.send(ClientMessage::Ack(ack)).await.unwrap();
        }
    }
}

impl RunningBackend {
    fn start(
        transport: Transport,
        address: &str,
        directory: &tempfile::TempDir,
        kernel: &FakeKernel,
        server: &Arc<Mutex<RunningFrontend>>,
        cutter: &StreamCutter,
    ) -> Self {
        let state_file: PathBuf = directory.path().join("state");
        let (min, max) = (Duration::from_millis(1), Duration::from_millis(5));
        let options = RunnerOptions {
            state_file: Some(StateFile::local(&state_file)),
            reconnect: ReconnectDelays { min, max, max_rejected: max },
            ..RunnerOptions::new(NODE)
        };
        let cutter = cutter.clone();
        match transport {
            Transport::Unix => {
                let endpoints = vec![address.to_owned()];
                let inner = Grpc::new(GrpcOptions { endpoints, ..GrpcOptions::default() }).unwrap();
                Self::run(options, kernel, CuttableConnect { inner, cutter })
            }
            Transport::InProcess => {
                let server = server.clone();
                let inner = move |hello| server.lock().unwrap().attach(hello);
                Self::run(options, kernel, CuttableConnect { inner, cutter })
            }
        }
    }

    fn run(options: RunnerOptions, kernel: &FakeKernel, connect: impl Connect) -> Self {
        let backend = Runner::new(options, kernel.backend(), connect);
        let progress = backend.progress();
        let (trigger, shutdown) = Shutdown::channel();
        Self { progress, trigger, task: tokio::spawn(backend.run(shutdown)) }
    }
}

/// Whether a state contains the current marker of the cluster.
fn contains_marker(state: &NodeState, cluster: &TestCluster) -> bool {
    let is_marker = |key: &&ServicePortKey| TestCluster::is_marker(&key.name);
    let marker = state.service_ports().keys().find(is_marker).and_then(|key| state.service_port(key));
    marker.map(|marker| marker.port.port) == Some(cluster.mark().port)
}
