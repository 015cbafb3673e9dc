//! The processes of the cluster: frontends and backends, with the real code, which are started, stopped and killed.

use std::{sync::Arc, time::Duration};

use backend::{LossLimit, Runner, RunnerOptions, StateFile};
use fake_api_server::ApiServer;
use fastrand::Rng;
use frontend::{
    Config, Frontend,
    object::ConnectionResets,
    source::{KubernetesApi, Source},
};
use proto::model::{Epoch, Revision};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    disk::SimulatedDisk,
    kernel::SimulatedKernel,
    network::{Listening, Network, NodeConnect},
    objects::node_name,
    oracle::{NodeOracle, ProcessStart},
    state_file::{self, Header},
    trace::{Trace, trace},
};

/// How many updates wait for the engine, as in a real frontend.
const UPDATES: usize = 1024;

/// After this time a disk has recovered from its faults: the longest stall, and the delay of a retry.
const DISK_RECOVERS: Duration = Duration::from_secs(150);

/// How far the state file may be behind: the shortest interval between two writes, and calls of a slow kernel.
const STATE_FILE_LAG: Duration = Duration::from_secs(30);

/// A replica of the frontend.
pub(crate) struct FrontendProcess {
    number: usize,
    /// The replicas of the API server. Each start uses the next one.
    apis: Arc<[ApiServer]>,
    starts: usize,
    /// Whether requests reach the API server.
    link: watch::Sender<bool>,
    network: Network,
    trace: Trace,
    running: Option<RunningFrontend>,
}

struct RunningFrontend {
    trigger: Trigger,
    killed: watch::Sender<bool>,
    tasks: Vec<JoinHandle<anyhow::Result<()>>>,
}

/// A node with its kernel and disk, and its backend.
pub(crate) struct NodeProcess {
    pub(crate) number: usize,
    pub(crate) kernel: SimulatedKernel,
    pub(crate) disk: SimulatedDisk,
    boots: u64,
    pub(crate) oracle: NodeOracle,
    network: Network,
    trace: Trace,
    max_loss: LossLimit,
    running: Option<(Trigger, JoinHandle<anyhow::Result<()>>)>,
}

/// Starts a frontend on an API server: its source and its engine. Requests wait while the link is down.
pub(crate) fn spawn_frontend(
    api: &ApiServer,
    link: &watch::Receiver<bool>,
    shutdown: &Shutdown,
) -> (Frontend, Vec<JoinHandle<anyhow::Result<()>>>) {
    let mut config = Config::default();
    config.services.connection_resets = ConnectionResets::NodeGone;
    let frontend = Frontend::new(config);
    let (updates, received) = mpsc::channel(UPDATES);
    let (api, link) = (api.clone(), link.clone());
    let api = KubernetesApi::in_process(move |request| {
        let (api, mut link) = (api.clone(), link.clone());
        async move {
            // An error means that there is no link that could be down.
            let _ = link.wait_for(|is_up| *is_up).await;
            api.call(request).await
        }
    });
    let source = Source::Kubernetes(api).run(updates, frontend.freshness(), shutdown.clone());
    let engine = {
        let (frontend, shutdown) = (frontend.clone(), shutdown.clone());
        async move {
            frontend.run(received, Ready::default().guard("objects"), shutdown).await;
            anyhow::Ok(())
        }
    };
    let tasks = vec![tokio::spawn(source), tokio::spawn(engine)];
    (frontend, tasks)
}

impl FrontendProcess {
    pub(crate) fn new(number: usize, apis: Arc<[ApiServer]>, network: Network, trace: Trace) -> Self {
        Self { number, apis, starts: 0, link: watch::Sender::new(true), network, trace, running: None }
    }

    /// Requests reach the API server from now on, or no longer. Open watches stay.
    pub(crate) fn set_link(&self, is_up: bool) {
        self.link.send_replace(is_up);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn start(&mut self) {
        let replica = (self.number + self.starts) % self.apis.len();
        self.starts += 1;
        trace!(self.trace, "start frontend {} at replica {replica} of the API server", self.number);
        let (trigger, shutdown) = Shutdown::channel();
        let (frontend, tasks) = spawn_frontend(&self.apis[replica], &self.link.subscribe(), &shutdown);
        let (killed, is_killed) = watch::channel(false);
        self.network.listen(self.number, Some(Listening { frontend, shutdown, killed: is_killed }));
        self.running = Some(RunningFrontend { trigger, killed, tasks });
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        let Some(RunningFrontend { trigger, killed, tasks }) = self.running.take() else { return };
        trace!(self.trace, "kill frontend {}", self.number);
        self.network.listen(self.number, None);
        killed.send_replace(true);
        tasks.iter().for_each(JoinHandle::abort);
        drop(trigger);
    }

    /// Ends it in order: it asks its nodes to leave.
    pub(crate) fn stop(&mut self) {
        let Some(RunningFrontend { trigger, killed, tasks }) = self.running.take() else { return };
        trace!(self.trace, "stop frontend {}", self.number);
        self.network.listen(self.number, None);
        trigger.fire();
        tokio::spawn(async move {
            for task in tasks {
                let _ = task.await;
            }
            // The connections end when the nodes have left, or with the process.
            tokio::time::sleep(Duration::from_secs(15)).await;
            killed.send_replace(true);
        });
    }

    /// Whether one of its tasks has panicked.
    pub(crate) async fn check(&mut self) {
        let Some(running) = &mut self.running else { return };
        for task in &mut running.tasks {
            if task.is_finished()
                && let Err(error) = task.await
                && error.is_panic()
            {
                self.trace.violation(format_args!("frontend {} panicked: {error}", self.number));
                self.running = None;
                return;
            }
        }
    }
}

impl NodeProcess {
    pub(crate) fn new(number: usize, rng: &mut Rng, network: Network, trace: Trace, max_loss: LossLimit) -> Self {
        let oracle = NodeOracle::new(&node_name(number), trace.clone());
        Self {
            number,
            kernel: SimulatedKernel::new(rng.fork(), oracle.clone()),
            disk: SimulatedDisk::new(rng.fork()),
            boots: 0,
            oracle,
            network,
            trace,
            max_loss,
            running: None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn start(&mut self) {
        trace!(self.trace, "start node {}, {}", self.number, self.kernel.name());
        let (network, oracle) = (self.network.clone(), self.oracle.clone());
        let connect = NodeConnect { network, node: self.number, oracle, kernel: self.kernel.clone() };
        let boot = self.boots.to_string();
        let state_file = Some(StateFile { storage: self.disk.storage(), boot: Some(boot.as_str().into()) });
        let max_loss = self.max_loss;
        let options = RunnerOptions { max_loss, state_file, ..RunnerOptions::new(node_name(self.number)) };
        let runner = Runner::new(options, self.kernel.backend(), connect);
        let mut progress = runner.progress();
        let header = self.disk.content().and_then(|file| state_file::header(&file));
        let start = ProcessStart {
            stored: self.stored(),
            is_unconfirmed: header.is_some_and(|header| !header.boot.is_empty() && header.boot != boot),
            adopts: self.kernel.is_certainly_programmed(),
        };
        self.oracle.process_started(progress.clone(), start);
        let (trigger, shutdown) = Shutdown::channel();
        self.running = Some((trigger, tokio::spawn(runner.run(shutdown))));
        let oracle = self.oracle.clone();
        tokio::spawn(async move {
            while progress.changed().await.is_ok() {
                if progress.borrow_and_update().losses.withheld_service_ports > 0 {
                    oracle.withholding();
                }
            }
        });
    }

    /// Ends the process at once.
    pub(crate) fn kill(&mut self) {
        let Some((trigger, task)) = self.running.take() else { return };
        trace!(self.trace, "kill node {}", self.number);
        task.abort();
        self.process_ended();
        drop(trigger);
    }

    /// Ends the process in order, and waits for that.
    pub(crate) async fn stop(&mut self) {
        let Some((trigger, task)) = self.running.take() else { return };
        trace!(self.trace, "stop node {}", self.number);
        trigger.fire();
        let ended = task.await;
        self.process_ended();
        if let Err(error) = ended {
            self.trace.violation(format_args!("node {} panicked: {error}", self.number));
        }
    }

    /// The machine loses power.
    pub(crate) fn power_off(&mut self) {
        self.kill();
        trace!(self.trace, "node {} loses power", self.number);
        self.disk.power_lost();
        self.boots += 1;
        if self.disk.content().is_some() && self.stored().is_none() {
            self.trace.violation(format_args!("node {}: the loss of power destroyed the state file", self.number));
        }
        self.kernel.reboot();
    }

    fn process_ended(&self) {
        self.disk.process_ended();
        if self.disk.is_healthy_for(DISK_RECOVERS) {
            self.oracle.ended(self.stored(), STATE_FILE_LAG);
        }
    }

    /// The position in the stream that the state file has.
    fn stored(&self) -> Option<(Epoch, Revision)> {
        state_file::header(&self.disk.content()?).map(|Header { position, .. }| position)
    }

    /// Whether the process has panicked.
    pub(crate) async fn check(&mut self) {
        self.oracle.check();
        if let Some((_, task)) = &mut self.running
            && task.is_finished()
        {
            let ended = task.await;
            self.trace.violation(format_args!("node {} ended: {ended:?}", self.number));
            self.running = None;
        }
    }
}
