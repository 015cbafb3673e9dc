//! The composition: options in, one loop out.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use runtime::{ReadyGuard, Shutdown};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    Backend, Connect, ConntrackCleanup, LossLimit, Observer, Progress, Store, StreamOptions,
    conntrack::Sweeper,
    health::{Health, Servers},
    metrics::{Metrics, NoLocal},
    pending::Pending,
    replica::Replica,
    stream::StreamFollower,
    sync::Loop,
};

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Node `metadata.name`.
    pub node: Arc<str>,
    /// Where the last committed state is kept; `None` for nowhere.
    pub state_file: Option<PathBuf>,
    /// How sessions with a frontend are held.
    pub stream: StreamOptions,
    /// The shortest and the longest delay before the backend is tried again after a failure.
    pub retry: (Duration, Duration),
    /// What one change may take away; more than that is held back until a second snapshot says so too.
    pub max_loss: LossLimit,
    /// Whether stale UDP flows are deleted from this network namespace; not for a backend that programs another kernel.
    pub conntrack: ConntrackCleanup,
    /// Whether the backend writes.
    pub run_mode: RunMode,
    /// What the frontend is told about this build.
    pub backend_version: String,
}

/// What a backend is there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunMode {
    /// To program the node's kernel.
    #[default]
    Program,
    /// To say what it would write. The frontend does not count it as the node's agent, and health-check node ports are left to whoever programs
    /// the node.
    Shadow,
}

/// Keeps one node's kernel as a frontend says.
#[derive(Debug)]
pub struct Runner<B, C> {
    options: RunnerOptions,
    backend: B,
    connect: C,
    progress: watch::Sender<Progress>,
    started: SystemTime,
    metrics: Arc<Metrics>,
    ready: Option<ReadyGuard>,
}

impl RunnerOptions {
    /// The defaults, for a node. Flows are left as they are.
    #[must_use]
    pub fn new(node: impl Into<Arc<str>>) -> Self {
        Self {
            node: node.into(),
            state_file: Some(crate::DEFAULT_STATE_FILE.into()),
            stream: StreamOptions::default(),
            retry: (Duration::from_millis(200), Duration::from_secs(30)),
            max_loss: LossLimit::default(),
            conntrack: ConntrackCleanup::Disabled,
            run_mode: RunMode::Program,
            backend_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl<B: Backend, C: Connect> Runner<B, C> {
    /// Programs `backend` with what sessions from `connect` say.
    #[must_use]
    pub fn new(options: RunnerOptions, backend: B, connect: C) -> Self {
        Self {
            options,
            backend,
            connect,
            progress: watch::Sender::default(),
            started: SystemTime::now(),
            metrics: Arc::default(),
            ready: None,
        }
    }

    /// Drops `guard` when the kernel holds a state for the first time: the stored one, or a first commit.
    #[must_use]
    pub fn with_ready(self, guard: ReadyGuard) -> Self {
        Self { ready: Some(guard), ..self }
    }

    /// How far it is, from now on.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Answers questions about it, from now on.
    #[must_use]
    pub fn observer(&self) -> Observer {
        let RunnerOptions { node, backend_version, .. } = &self.options;
        Observer::new(node, B::NAME, backend_version, self.started, self.progress(), self.metrics.clone())
    }

    /// Runs until `shutdown`. The stored state, if there is one, is put in force before any frontend has been heard.
    ///
    /// # Errors
    /// When the task of the health-check node ports panicked. Whatever else goes wrong is logged and tried again.
    pub async fn run(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self { options, backend, connect, progress, started, metrics, ready } = self;
        let RunnerOptions { node, state_file, stream, retry, max_loss, conntrack, run_mode, backend_version } = options;
        let (store, stored) = state_file.map(|path| Store::open(path, &node)).unzip();
        let replica = Replica::new(&node, stored.flatten(), max_loss).on(run_mode);
        progress.send_modify(|progress| {
            progress.committed = replica.held();
            progress.eligible = replica.state().node().eligible;
            progress.service_ports = replica.state().service_ports().len();
        });
        let stream = StreamFollower::new(connect, stream);
        let pending = Pending::new(retry);
        let sweeper = Sweeper::new(conntrack, metrics.clone());
        let health = Health::default();
        // A task of its own: a load balancer is not to wait for the loop. Dropped at the end, and all listeners with it.
        let mut servers = JoinSet::new();
        if run_mode == RunMode::Program {
            servers.spawn(Servers::new(&health, progress.subscribe()).run());
        }
        let no_local = NoLocal::default();
        let agent = Loop {
            backend,
            backend_version,
            started,
            stream,
            replica,
            store,
            pending,
            sweeper,
            progress,
            health,
            metrics,
            no_local,
            ready,
        };
        tokio::select! {
            () = agent.run(shutdown) => Ok(()),
            Some(ended) = servers.join_next() => ended.context("health-check node ports"),
        }
    }
}
