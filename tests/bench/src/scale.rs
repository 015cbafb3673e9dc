//! One frontend and all nodes of a large cluster: memory, CPU time, bytes and latency, with a connection for each node
//! and a Kubernetes API server.
//!
//! ```text
//!   api ──list, watch (HTTP)──▶ fairlead frontend ──5,000 connections──▶ fleet of nodes ──▶ metrics
//!    └──────── each change, with its time ───────────────────────────────────────────────────┘
//! ```
//!
//! | module | is |
//! |---|---|
//! | `cluster` | the objects, and the expected digests of each node |
//! | `cluster_api` | the API server of a cluster |
//! | `fleet`, `node` | the nodes |
//! | `http2`, `message_head` | the part of HTTP/2 and of the messages that the nodes need |
//! | `metrics` | counters and latencies of all nodes |
//! | `load` | the changes |
//! | `process` | CPU time of processes |

pub(crate) mod cluster;
pub(crate) mod cluster_api;
pub(crate) mod fleet;
pub(crate) mod http2;
mod load;
mod message_head;
pub(crate) mod metrics;
mod node;
pub(crate) mod process;

use std::{
    ffi::OsString,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use e2e::Process;
use nix::sys::signal::Signal;

use crate::{
    credentials::{Credentials, NAME},
    lab::{DEADLINE, Lab, memory},
    report::{Goal, Report},
    worker::Worker,
};

use cluster::{Cluster, Size};
use cluster_api::ClusterApi;
use fleet::{Connect, Fleet};
use load::Load;
use metrics::FleetMetrics;
use process::Usage;

/// The number of nodes unless another one is requested. The other numbers are proportional: [`Size::of_nodes`].
pub(crate) const NODES: u32 = 5_000;
/// Duration of each load.
const LOAD_DURATION: Duration = Duration::from_secs(30);
/// Duration of the measurement without changes.
const IDLE_DURATION: Duration = Duration::from_secs(10);
/// In the namespace of the frontend.
const ADDRESS: &str = "127.0.0.1:7600";
/// Replaced pods per second. Each is two changes of slices.
const POD_CHANGES: u32 = 20;
/// CPU time of a frontend for a message and its Ack, in microseconds.
const MESSAGE_GOAL: Goal = Goal::AtMost(27.0);
/// The time over which a draining frontend spreads reconnects.
const DRAIN: Duration = Duration::from_secs(5);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleOptions {
    /// The number of nodes of the cluster.
    pub(crate) nodes: u32,
    /// How many of them use this frontend; the others would use other replicas.
    pub(crate) streams: u32,
    pub(crate) tls: bool,
}

/// The processes and threads of the benchmark.
struct Stage<'a> {
    lab: &'a Lab,
    /// `None`: nodes connect without TLS.
    credentials: Option<Credentials>,
    api: ClusterApi,
    size: Size,
    /// The number of nodes with a stream.
    streams: u32,
    metrics: Arc<FleetMetrics>,
    fleet: Fleet,
    /// The thread of the API server and of the load.
    worker: Worker,
}

pub(crate) fn measure(report: &mut Report, lab: &Lab, options: &ScaleOptions) -> Result<()> {
    runtime::raise_file_limit().context("raise the limit of open files")?;
    let credentials = options.tls.then(|| Credentials::create(&lab.path(""))).transpose()?;
    let stage = Stage::new(lab, credentials, options)?;
    let frontend = stage.start(report, "frontend, start to serving")?;
    stage.snapshots(report, &frontend)?;
    stage.quiet(report, &frontend)?;
    stage.steady(report, &frontend)?;
    stage.rollout(report, &frontend)?;
    stage.resume(report, &frontend)?;
    stage.drain(report, frontend)?;
    let frontend = stage.start(report, "frontend, restart to serving")?;
    stage.repair(report, &frontend)?;
    stage.fleet.leave(DEADLINE)
}

impl<'a> Stage<'a> {
    fn new(lab: &'a Lab, credentials: Option<Credentials>, options: &ScaleOptions) -> Result<Self> {
        let (size, streams) = (Size::of_nodes(options.nodes), options.streams);
        let Size { nodes, services, endpoints, .. } = size;
        ensure!(streams <= nodes, "--streams {streams} is more than the {nodes} nodes");
        Report::progress(&format!("{nodes} nodes, {streams} streams, {services} services, {endpoints} endpoints"));
        let address: SocketAddr = ADDRESS.parse()?;
        let metrics = Arc::new(FleetMetrics::new());
        let worker = Worker::start(lab.netns())?;
        let api = ClusterApi::start(lab, &worker, Cluster::new(size))?;
        let fleet = match &credentials {
            None => Fleet::new(lab.netns(), address, metrics.clone(), streams)?,
            Some(credentials) => {
                let nodes = (NAME, credentials.nodes(streams)?);
                Fleet::over_tls(lab.netns(), vec![address], metrics.clone(), nodes)?
            }
        };
        Ok(Self { lab, credentials, api, size, streams, metrics, fleet, worker })
    }

    fn start(&self, report: &mut Report, what: &str) -> Result<Process> {
        Report::progress("starting a frontend");
        let started = Instant::now();
        let kubeconfig = self.lab.kubeconfig();
        let kubeconfig = kubeconfig.to_str().context("the path of the kubeconfig is not UTF-8")?;
        let mut arguments = ["frontend", "--kubeconfig", kubeconfig, "--listen", ADDRESS].map(OsString::from).to_vec();
        match &self.credentials {
            None => arguments.push("--insecure".into()),
            Some(credentials) => {
                arguments.extend(credentials.frontend_flags());
                // All nodes connect from one address.
                arguments.extend(["--max-connections-per-source".into(), self.streams.to_string().into()]);
            }
        }
        let frontend = self.lab.spawn_program(&arguments, "scale.log");
        frontend.wait_for_line("every kind of object has been listed", 0, DEADLINE);
        report.duration(what, started.elapsed(), Goal::None);
        let usage = Usage::of(&frontend)?;
        report.add("frontend, CPU time for that", usage.seconds(), "s", Goal::None);
        report.memory("frontend, memory before the first stream", memory(&frontend)?.resident, Goal::None);
        Ok(frontend)
    }

    /// Every node starts without state.
    fn snapshots(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("sending everything to every node");
        let usage = Usage::of(frontend)?;
        self.connect(report, "first snapshots", &Connect::Empty, Goal::None)?;
        report.add("first snapshots, CPU time", usage.since(frontend)?, "s", Goal::None);
        let bytes = self.per_node(&self.metrics.received) / 1e6;
        report.add("first snapshots, received by each node", bytes, "MB", Goal::AtMost(3.0));
        self.agree()?;
        report.memory("frontend, memory with all streams", memory(frontend)?.resident, Goal::AtMost(512.0));
        report.memory("frontend, peak memory", memory(frontend)?.peak, Goal::None);
        Ok(())
    }

    /// Without changes: the cost of idle streams.
    fn quiet(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("measuring idle streams");
        let usage = Usage::of(frontend)?;
        std::thread::sleep(IDLE_DURATION);
        let cores = usage.since(frontend)? / IDLE_DURATION.as_secs_f64();
        report.add("quiet, CPUs of the frontend", cores, "cores", Goal::None);
        Ok(())
    }

    fn steady(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("replacing pods everywhere");
        let load = Load::pods(POD_CHANGES, LOAD_DURATION);
        let events = self.run(report, frontend, "20 pod changes/s", load, MESSAGE_GOAL)?;
        let bytes = self.per_node(&self.metrics.received) / f64::from(events);
        report.add("20 pod changes/s, received by a node, each change", bytes, "bytes", Goal::AtMost(100.0));
        report.memory("frontend, memory after that", memory(frontend)?.resident, Goal::AtMost(512.0));
        Ok(())
    }

    fn rollout(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("replacing all endpoints of the largest service");
        let load = Load::rollout(&self.api, LOAD_DURATION);
        self.run(report, frontend, "rollout of the largest service", load, Goal::None)?;
        let bytes = self.per_node(&self.metrics.received) / self.size.largest as f64;
        report.add("rollout, received by a node, each endpoint", bytes, "bytes", Goal::None);
        report.memory("frontend, memory after that", memory(frontend)?.resident, Goal::AtMost(512.0));
        Ok(())
    }

    /// All nodes reconnect at the same time.
    fn resume(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("reconnecting all nodes");
        self.fleet.leave(DEADLINE)?;
        let usage = Usage::of(frontend)?;
        self.reconnect_all(report, "all reconnect", &Connect::Resume, &usage, frontend)?;
        ensure!(self.metrics.resumed.load(Ordering::Relaxed) == u64::from(self.streams), "not all nodes have resumed");
        self.agree()
    }

    /// The frontend was restarted and has the same state.
    fn repair(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("reconnecting all nodes to a restarted frontend");
        let digests = Connect::Digests(self.api.with(|cluster| cluster.digests())?);
        let usage = Usage::of(frontend)?;
        self.reconnect_all(report, "all reconnect after a restart", &digests, &usage, frontend)?;
        ensure!(
            self.metrics.repaired.load(Ordering::Relaxed) == u64::from(self.streams),
            "not all nodes were repaired"
        );
        self.agree()?;
        report.memory("frontend, memory after that", memory(frontend)?.resident, Goal::AtMost(512.0));
        Ok(())
    }

    fn reconnect_all(
        &self,
        report: &mut Report,
        what: &str,
        how: &Connect,
        usage: &Usage,
        frontend: &Process,
    ) -> Result<()> {
        self.connect(report, what, how, Goal::AtMost(10_000.0))?;
        report.add(&format!("{what}, CPU time"), usage.since(frontend)?, "s", Goal::AtMost(8.0));
        let bytes = self.per_node(&self.metrics.received) + self.per_node(&self.metrics.sent);
        report.add(&format!("{what}, both directions, each node"), bytes, "bytes", Goal::AtMost(4096.0));
        Ok(())
    }

    /// SIGTERM: all nodes are asked to reconnect elsewhere.
    fn drain(&self, report: &mut Report, frontend: Process) -> Result<()> {
        Report::progress("stopping the frontend");
        self.metrics.reset();
        let started = Instant::now();
        frontend.signal(Signal::SIGTERM);
        self.fleet.gone(started, DEADLINE)?;
        let departures = self.metrics.departures();
        ensure!(departures.len() == self.streams as usize, "only {} nodes were asked to reconnect", departures.len());
        report.spread("drain, SIGTERM to its message at a node", departures.delays(started), Goal::None);
        let share = f64::from(self.streams) / DRAIN.as_secs_f64();
        report.add(
            "drain, nodes that leave in the busiest second",
            departures.busiest(started) as f64,
            "",
            Goal::AtMost(1.2 * share),
        );
        let status = frontend.wait(DEADLINE).context("the frontend did not exit")?;
        ensure!(status.success(), "the frontend ended with {status}");
        report.duration("drain, SIGTERM to the end of the frontend", started.elapsed(), Goal::None);
        let line = frontend.wait_for_line("chunks_encoded", 0, DEADLINE);
        let number = |name| Ok::<f64, anyhow::Error>(crate::lab::field(&line, name)?.parse()?);
        let (encoded, sent) = (number("chunks_encoded")?, number("chunks_sent")?);
        report.add("chunks sent", sent, "", Goal::None);
        report.add("chunks reused from another stream", 100.0 * (1.0 - encoded / sent), "%", Goal::None);
        Ok(())
    }

    /// Connects all nodes and waits until each is up to date.
    fn connect(&self, report: &mut Report, what: &str, how: &Connect, goal: Goal) -> Result<()> {
        self.metrics.reset();
        let started = Instant::now();
        self.fleet.connect(how);
        report.duration(what, self.fleet.consistent(started, DEADLINE)?, goal);
        let refused = self.metrics.refused.load(Ordering::Relaxed) as f64;
        report.add(&format!("{what}, connections tried again"), refused, "", Goal::None);
        Ok(())
    }

    /// Runs a load, waits until every node is up to date, and returns the number of changes.
    fn run(&self, report: &mut Report, frontend: &Process, what: &str, load: Load, message_goal: Goal) -> Result<u32> {
        self.metrics.reset();
        let (usage, own, started) = (Usage::of(frontend)?, Usage::of_this()?, Instant::now());
        let (api, metrics) = (self.api.clone(), self.metrics.clone());
        let events = self.worker.handle.block_on(self.worker.handle.spawn(load.run(api, metrics)))?;
        let elapsed = started.elapsed().as_secs_f64();
        let cores = usage.since(frontend)? / elapsed;
        report.add(&format!("{what}, CPUs of the frontend"), cores, "cores", Goal::None);
        let own_cores = own.since_this()? / elapsed;
        report.add(&format!("{what}, CPUs of the benchmark"), own_cores, "cores", Goal::None);
        report.add(&format!("{what}, changes of slices"), f64::from(events) / elapsed, "/s", Goal::None);

        self.agree()?;
        let messages = self.per_node(&self.metrics.commits) / elapsed;
        report.add(&format!("{what}, messages to each node"), messages, "/s", Goal::None);
        let message_micros = cores * 1e6 / (messages * f64::from(self.streams));
        report.add(&format!("{what}, CPU time of a message with its Ack"), message_micros, "us", message_goal);
        for (name, permille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
            let latency = self.metrics.latency(permille);
            report.duration(&format!("{what}, change to its bytes at a node, {name}"), latency, Goal::None);
        }
        Ok(events)
    }

    /// Checks that every node was sent the expected state, by independently computed digests.
    fn agree(&self) -> Result<()> {
        let digests = self.api.with(|cluster| cluster.digests())?;
        self.fleet.agree(&digests, DEADLINE)
    }

    fn per_node(&self, count: &std::sync::atomic::AtomicU64) -> f64 {
        count.load(Ordering::Relaxed) as f64 / f64::from(self.streams)
    }
}
