//! Assembles a backend process: options in, the two halves of `sync` out.

use std::{path::Path, sync::Arc, time::SystemTime};

use anyhow::Context as _;
use proto::model::{PerFamily, Role};
use runtime::{ReadyGuard, Shutdown};
use tokio::{sync::watch, task::JoinSet};
use tracing::info;

use crate::{
    Backend, Connect, ConntrackCleanup, LossLimit, Observer, Progress, ReconnectDelays, StateFile, Store, StoredState,
    backend::BackendIdentity,
    dataplane::NodePortAddresses,
    drifts::Drifts,
    flows::Flows,
    health::{HealthCheckServers, HealthChecks},
    loss::LossGuard,
    metrics::Metrics,
    progress::NodeProgress,
    replica::Replica,
    store::DEFAULT_STATE_FILE,
    stream::StreamFollower,
    sync::{Acks, Follower, Programmed, Programmer, Reporter, Schedule, Target},
};

/// The options of a [`Runner`].
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Node `metadata.name`.
    pub node: Arc<str>,
    /// The file with the last committed state; `None`: it is not stored.
    pub state_file: Option<StateFile>,
    /// The delays before connecting again.
    pub reconnect: ReconnectDelays,
    /// Which losses within a minute are applied at once; larger ones have to be confirmed by a second snapshot.
    pub max_loss: LossLimit,
    /// Whether stale UDP flows of this network namespace are deleted. Not for a backend that programs another kernel.
    pub conntrack: ConntrackCleanup,
    /// The addresses of node ports and of health-check node ports.
    pub nodeport_addresses: NodePortAddresses,
    /// Whether the backend writes. The frontend does not count a shadow as the node's backend, and it does not serve
    /// health-check node ports.
    pub role: Role,
}

/// Keeps one node's kernel as the frontend decided.
#[derive(Debug)]
pub struct Runner<B, C> {
    options: RunnerOptions,
    backend: B,
    connect: C,
    identity: Arc<BackendIdentity>,
    progress: watch::Sender<Progress>,
    metrics: Arc<Metrics>,
    ready: Option<ReadyGuard>,
}

impl RunnerOptions {
    /// The defaults for a node, without conntrack cleanup.
    #[must_use]
    pub fn new(node: impl Into<Arc<str>>) -> Self {
        Self {
            node: node.into(),
            state_file: Some(StateFile::local(Path::new(DEFAULT_STATE_FILE))),
            reconnect: ReconnectDelays::default(),
            max_loss: LossLimit::default(),
            conntrack: ConntrackCleanup::Disabled,
            nodeport_addresses: NodePortAddresses::all(),
            role: Role::Backend,
        }
    }
}

impl<B: Backend, C: Connect> Runner<B, C> {
    /// Runs `backend` on the sessions that `connect` establishes.
    #[must_use]
    pub fn new(options: RunnerOptions, backend: B, connect: C) -> Self {
        let identity = Arc::new(BackendIdentity {
            node: options.node.clone(),
            backend: B::NAME,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: SystemTime::now(),
        });
        Self {
            options,
            backend,
            connect,
            identity,
            progress: watch::Sender::default(),
            metrics: Arc::default(),
            ready: None,
        }
    }

    /// Drops `guard` when the kernel contains a state for the first time: the stored one, or a first commit.
    #[must_use]
    pub fn with_ready(self, guard: ReadyGuard) -> Self {
        Self { ready: Some(guard), ..self }
    }

    /// Subscribes to the progress.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Serves health, metrics and status over HTTP.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer { identity: self.identity.clone(), progress: self.progress(), metrics: self.metrics.clone() }
    }

    /// Runs until `shutdown`. A stored state is programmed before a frontend is reached. If an earlier process may have
    /// programmed a newer state, the stored one is programmed only after 10 s without a frontend.
    ///
    /// # Errors
    /// When the task of the health-check node ports panicked. All other failures are logged and retried.
    pub async fn run(self, mut shutdown: Shutdown) -> anyhow::Result<()> {
        let Self { options, backend, connect, identity, progress, metrics, ready } = self;
        let RunnerOptions { node, state_file, reconnect, max_loss, conntrack, nodeport_addresses, role } = options;

        let opened = shutdown.run_until_started(open(state_file, &node)).await;
        let Some((store, stored)) = opened else { return Ok(()) };
        let replica = Replica::new(identity, store, stored, LossGuard::new(max_loss), role);
        progress.send_modify(|progress| {
            progress.committed = replica.committed();
            progress.service_ports = replica.state().service_ports().len();
            progress.node = NodeProgress::of(replica.state());
            progress.losses.unconfirmed_service_ports = replica.losses.unconfirmed_service_ports();
        });

        let health = HealthChecks::default();
        // A task of its own, so that a load balancer need not wait for the backend. Dropping it closes all listeners.
        let mut servers = JoinSet::new();
        if role == Role::Backend {
            let addresses = nodeport_addresses.clone();
            servers.spawn(HealthCheckServers::new(&health, addresses, progress.subscribe()).run());
        }

        let state = replica.state().clone();
        let handed = Target::stored(state.clone(), replica.committed(), replica.origin);
        let (target, targets) = watch::channel(handed.clone());
        let (reached, programmed) = watch::channel(Programmed::unknown(&state));
        let flows = Arc::new(Flows::start(
            conntrack,
            B::NAT,
            nodeport_addresses.clone(),
            state,
            programmed.clone(),
            progress.clone(),
            metrics.clone(),
        ));

        let mut programmer = Programmer {
            backend,
            targets,
            handed,
            programmed: reached,
            rejected: Vec::new(),
            schedule: Schedule::unknown(),
            drifts: Drifts::default(),
            flows: flows.clone(),
            health,
            reporter: Reporter::new(progress.clone(), metrics.clone(), ready),
        };
        let follower = Follower {
            stream: StreamFollower::new(connect, reconnect),
            replica,
            acks: Acks::default(),
            target,
            programmed,
            flows,
            nodeport_addresses,
            without_node_ports: PerFamily::default(),
            progress,
            metrics,
        };

        let both = async {
            // The follower comes first, so that a programmed state is acked before the next one is programmed. The
            // listeners stay open until the state is stored.
            tokio::join!(biased; follower.run(shutdown.clone()), programmer.run(shutdown));
            info!("stopped, leaving the kernel unchanged");
        };
        tokio::select! {
            () = both => Ok(()),
            Some(ended) = servers.join_next() => ended.context("the task of the health-check node ports failed"),
        }
    }
}

/// Opens and reads the state file, if there is one.
async fn open(file: Option<StateFile>, node: &str) -> (Option<Store>, Option<StoredState>) {
    let Some(file) = file else { return (None, None) };
    let (store, stored) = Store::open(file, node).await;
    (Some(store), stored)
}
