//! One frontend and all nodes of a large cluster: memory, processor time, bytes and latency, with a connection of its own for each node
//! and a Kubernetes API in front.
//!
//! ```text
//!   api ──list, watch (HTTP)──▶ fairlead frontend ──5,000 connections──▶ fleet of nodes ──▶ board
//!    └──────── each change, with its time ───────────────────────────────────────────────────┘
//! ```
//!
//! | module | is |
//! |---|---|
//! | `cluster` | the objects, and what each node must hold of them |
//! | `api` | the API server |
//! | `fleet`, `node` | the nodes |
//! | `http2`, `said` | their wire, as little of it as will do |
//! | `board` | what has been seen |
//! | `load` | the changes |
//! | `process` | what processes use |

pub(crate) mod api;
mod board;
pub(crate) mod cluster;
pub(crate) mod fleet;
mod http2;
mod load;
mod node;
pub(crate) mod process;
mod said;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::Process;
use nix::sys::signal::Signal;

use crate::lab::{DEADLINE, Lab, memory};
use crate::report::{Goal, Report};

use api::Api;
use board::Board;
use cluster::{Cluster, Size};
use fleet::{Connect, Fleet, Worker};
use load::Load;
use process::Usage;

const SIZE: Size = Size { nodes: 5_000, services: 10_000, endpoints: 250_000, largest: 5_000 };
/// How long each load lasts.
const SPELL: Duration = Duration::from_secs(30);
/// How long the streams are watched while nothing happens.
const QUIET: Duration = Duration::from_secs(10);
/// In the namespace of the frontend, where nothing else listens.
const ADDRESS: &str = "127.0.0.1:7600";
/// A pod that is replaced is two changes of slices.
const POD_CHANGES: u32 = 20;
/// Latency from a change of the API to the arrival of its bytes at a node: median and 99th percentile, in milliseconds.
const LATENCY: Latency = Latency { median: Goal::AtMost(30.0), late: Goal::AtMost(150.0) };
const NO_GOAL: Latency = Latency { median: Goal::None, late: Goal::None };
/// Within what all clients are asked to go.
const DRAIN: Duration = Duration::from_secs(5);

/// Everything that takes part.
struct Stage<'a> {
    lab: &'a Lab,
    api: Api,
    board: Arc<Board>,
    fleet: Fleet,
    /// Where the API lives, and whoever changes the cluster.
    worker: Worker,
}

/// What latency should be.
#[derive(Clone, Copy, Debug)]
struct Latency {
    median: Goal,
    late: Goal,
}

pub(crate) fn measure(report: &mut Report, lab: &Lab) -> Result<()> {
    runtime::raise_file_limit().context("raise the limit of open files")?;
    let stage = Stage::new(lab)?;
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
    fn new(lab: &'a Lab) -> Result<Self> {
        let Size { nodes, services, endpoints, .. } = SIZE;
        Report::progress(&format!("{nodes} nodes, {services} services, {endpoints} endpoints"));
        let address: SocketAddr = ADDRESS.parse()?;
        let board = Arc::new(Board::new());
        let listener = lab.netns().run(|| TcpListener::bind("127.0.0.1:0")).context("bind the API")?;
        fs::write(lab.path("kubeconfig"), kubeconfig(listener.local_addr()?)).context("write a kubeconfig")?;
        let api = Api::new(Cluster::new(SIZE));
        let worker = Worker::start(lab.netns())?;
        worker.handle.spawn(api.clone().serve(listener));
        let fleet = Fleet::new(lab.netns(), address, board.clone(), nodes)?;
        Ok(Self { lab, api, board, fleet, worker })
    }

    fn start(&self, report: &mut Report, what: &str) -> Result<Process> {
        Report::progress("starting a frontend");
        let started = Instant::now();
        let kubeconfig = self.lab.path("kubeconfig");
        let kubeconfig = kubeconfig.to_str().context("the path of the kubeconfig is not UTF-8")?;
        let arguments = ["frontend", "--kubeconfig", kubeconfig, "--listen", ADDRESS, "--insecure"];
        let frontend = self.lab.spawn_program(&arguments, "scale.log");
        frontend.wait_for_line("all objects are known", 0, DEADLINE);
        report.duration(what, started.elapsed(), Goal::None);
        let usage = Usage::of(&frontend)?;
        report.add("frontend, processor time for that", usage.seconds(), "s", Goal::None);
        report.memory("frontend, memory before the first stream", memory(&frontend)?.resident, Goal::None);
        Ok(frontend)
    }

    /// Every node starts with nothing.
    fn snapshots(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("sending everything to every node");
        let usage = Usage::of(frontend)?;
        self.connect(report, "first snapshots", &Connect::Empty, Goal::None)?;
        report.add("first snapshots, processor time", usage.since(frontend)?, "s", Goal::None);
        let bytes = self.per_node(&self.board.received) / 1e6;
        report.add("first snapshots, received by each node", bytes, "MB", Goal::AtMost(3.0));
        self.agree()?;
        report.memory("frontend, memory with all streams", memory(frontend)?.resident, Goal::AtMost(512.0));
        report.memory("frontend, memory at its most", memory(frontend)?.peak, Goal::None);
        Ok(())
    }

    /// Nothing changes: what the streams themselves cost.
    fn quiet(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("doing nothing");
        let usage = Usage::of(frontend)?;
        std::thread::sleep(QUIET);
        let cores = usage.since(frontend)? / QUIET.as_secs_f64();
        report.add("quiet, processors of the frontend", cores, "cores", Goal::None);
        Ok(())
    }

    fn steady(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("replacing pods everywhere");
        let load = Load::pods(POD_CHANGES, SPELL);
        let events = self.run(report, frontend, "20 pod changes/s", load, (Goal::AtMost(1.0), LATENCY))?;
        let bytes = self.per_node(&self.board.received) / f64::from(events);
        report.add("20 pod changes/s, received by a node, each change", bytes, "bytes", Goal::AtMost(100.0));
        report.memory("frontend, memory after that", memory(frontend)?.resident, Goal::AtMost(512.0));
        Ok(())
    }

    fn rollout(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("replacing all endpoints of the largest service");
        let load = Load::rollout(&self.api, SPELL);
        self.run(report, frontend, "rollout of 5,000 endpoints", load, (Goal::None, NO_GOAL))?;
        let bytes = self.per_node(&self.board.received) / SIZE.largest as f64;
        report.add("rollout, received by a node, each endpoint", bytes, "bytes", Goal::None);
        report.memory("frontend, memory after that", memory(frontend)?.resident, Goal::AtMost(512.0));
        Ok(())
    }

    /// All nodes lose their connection and come back at once.
    fn resume(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("connecting all nodes anew");
        self.fleet.leave(DEADLINE)?;
        let usage = Usage::of(frontend)?;
        self.storm(report, "all reconnect", &Connect::Resume, &usage, frontend)?;
        ensure!(self.board.resumed.load(Ordering::Relaxed) == u64::from(SIZE.nodes), "not all have resumed");
        self.agree()
    }

    /// The frontend is another one, which knows the same.
    fn repair(&self, report: &mut Report, frontend: &Process) -> Result<()> {
        Report::progress("connecting all nodes to a frontend that was restarted");
        let digests = Connect::Digests(self.api.with(|cluster| cluster.digests())?);
        let usage = Usage::of(frontend)?;
        self.storm(report, "all reconnect after a restart", &digests, &usage, frontend)?;
        ensure!(self.board.repaired.load(Ordering::Relaxed) == u64::from(SIZE.nodes), "not all were compared");
        self.agree()?;
        report.memory("frontend, memory after that", memory(frontend)?.resident, Goal::AtMost(512.0));
        Ok(())
    }

    fn storm(&self, report: &mut Report, what: &str, how: &Connect, usage: &Usage, frontend: &Process) -> Result<()> {
        self.connect(report, what, how, Goal::AtMost(10_000.0))?;
        report.add(&format!("{what}, processor time"), usage.since(frontend)?, "s", Goal::AtMost(8.0));
        let bytes = self.per_node(&self.board.received) + self.per_node(&self.board.sent);
        report.add(&format!("{what}, both directions, each node"), bytes, "bytes", Goal::AtMost(4096.0));
        Ok(())
    }

    /// SIGTERM: everybody is asked to go.
    fn drain(&self, report: &mut Report, frontend: Process) -> Result<()> {
        Report::progress("stopping the frontend");
        self.board.forget();
        let started = Instant::now();
        frontend.signal(Signal::SIGTERM);
        self.fleet.gone(started, DEADLINE)?;
        let departures = self.board.departures();
        ensure!(departures.len() == SIZE.nodes as usize, "only {} were asked to go", departures.len());
        report.spread("drain, SIGTERM to the word at a node", departures.told(started), Goal::None);
        let share = f64::from(SIZE.nodes) / DRAIN.as_secs_f64();
        report.add(
            "drain, nodes that leave in the busiest second",
            departures.busiest(started) as f64,
            "",
            Goal::AtMost(1.2 * share),
        );
        let status = frontend.wait(DEADLINE).context("the frontend goes on")?;
        ensure!(status.success(), "the frontend ended with {status}");
        report.duration("drain, SIGTERM to the end of the frontend", started.elapsed(), Goal::None);
        let line = frontend.wait_for_line("encoded", 0, DEADLINE);
        let number = |name| Ok::<f64, anyhow::Error>(crate::lab::field(&line, name)?.parse()?);
        let (encoded, sent) = (number("encoded")?, number("sent")?);
        report.add("pieces of messages that were sent", sent, "", Goal::None);
        report.add("of these encoded for another stream before", 100.0 * (1.0 - encoded / sent), "%", Goal::None);
        Ok(())
    }

    /// Connects all nodes and waits until each is up to date.
    fn connect(&self, report: &mut Report, what: &str, how: &Connect, goal: Goal) -> Result<()> {
        self.board.forget();
        let started = Instant::now();
        self.fleet.connect(how);
        report.duration(what, self.fleet.consistent(started, DEADLINE)?, goal);
        let refused = self.board.refused.load(Ordering::Relaxed) as f64;
        report.add(&format!("{what}, connections tried again"), refused, "", Goal::None);
        Ok(())
    }

    /// Runs a load and waits until every node has everything. Gives the number of changes.
    fn run(
        &self,
        report: &mut Report,
        frontend: &Process,
        what: &str,
        load: Load,
        (cores, latency): (Goal, Latency),
    ) -> Result<u32> {
        self.board.forget();
        let (usage, own, started) = (Usage::of(frontend)?, Usage::of_this()?, Instant::now());
        let (api, board) = (self.api.clone(), self.board.clone());
        let events = self.worker.handle.block_on(self.worker.handle.spawn(load.run(api, board)))?;
        let elapsed = started.elapsed().as_secs_f64();
        let used = usage.since(frontend)? / elapsed;
        report.add(&format!("{what}, processors of the frontend"), used, "cores", cores);
        let used = own.since_this()? / elapsed;
        report.add(&format!("{what}, processors of this program"), used, "cores", Goal::None);
        report.add(&format!("{what}, changes of slices"), f64::from(events) / elapsed, "/s", Goal::None);
        self.agree()?;
        let commits = self.per_node(&self.board.commits) / elapsed;
        report.add(&format!("{what}, messages to each node"), commits, "/s", Goal::None);
        for (name, permille, goal) in
            [("p50", 500, latency.median), ("p99", 990, latency.late), ("p99.9", 999, Goal::None)]
        {
            let latency = self.board.latency(permille);
            report.duration(&format!("{what}, change to its bytes at a node, {name}"), latency, goal);
        }
        Ok(events)
    }

    /// Checks that every node has been told what it should, by digests that are computed here.
    fn agree(&self) -> Result<()> {
        let digests = self.api.with(|cluster| cluster.digests())?;
        self.fleet.agree(&digests, DEADLINE)
    }

    fn per_node(&self, count: &std::sync::atomic::AtomicU64) -> f64 {
        count.load(Ordering::Relaxed) as f64 / f64::from(SIZE.nodes)
    }
}

pub(crate) fn kubeconfig(api: SocketAddr) -> String {
    format!(
        "\
apiVersion: v1
kind: Config
clusters: [{{ name: bench, cluster: {{ server: 'http://{api}' }} }}]
contexts: [{{ name: bench, context: {{ cluster: bench, user: bench }} }}]
users: [{{ name: bench, user: {{}} }}]
current-context: bench
"
    )
}
