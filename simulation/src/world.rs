//! One simulation: a cluster that changes while parts of it fail; then the faults stop, and everything must converge.

use std::time::Duration;

use backend::LossLimit;
use fake_api_server::{ApiServer, Fault, Faults, Resource};
use fastrand::Rng;
use tokio::time::{sleep, timeout};

use crate::{
    disk::DiskFaults,
    kernel::KernelFaults,
    network::{Listening, Network},
    objects,
    oracle::{MirroredState, differences},
    probe,
    processes::{FrontendProcess, NodeProcess},
    trace::{Trace, trace},
};

/// How long everything may take to converge after the last fault. The longest delays: a list that is repeated because
/// of silence after 150 s, or 30 min when the interval has doubled; a kernel call that is repeated after 30 s; a state
/// file after 60 s; a loss that is confirmed after 10 s.
const CONVERGENCE: Duration = Duration::from_secs(40 * 60);
/// How often convergence is checked.
const CHECK: Duration = Duration::from_secs(10);
/// How long a disk may still need for a write that has stalled, and a state file until it is written again.
const DISKS: Duration = Duration::from_secs(180);
/// The kinds that the API serves.
const KINDS: [Resource; 4] = [Resource::Node, Resource::Service, Resource::EndpointSlice, Resource::ServiceCidr];

/// What a simulation consists of.
pub(crate) struct World {
    rng: Rng,
    trace: Trace,
    api: ApiServer,
    network: Network,
    frontends: Vec<FrontendProcess>,
    nodes: Vec<NodeProcess>,
    backup: Option<fake_api_server::Backup>,
}

impl World {
    pub(crate) fn new(seed: u64, trace: Trace) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (frontends, nodes) = (rng.usize(1..=3), rng.usize(1..=6));
        let max_loss = if rng.u8(0..4) == 0 { LossLimit::default() } else { LossLimit::NONE };
        trace!(trace, "{frontends} frontends, {nodes} nodes, loss limit {max_loss:?}");
        let network = Network::new(rng.fork(), trace.clone(), frontends);
        let api = ApiServer::in_process();
        objects::fill(&api, &mut rng, nodes);
        let frontends = (0..frontends)
            .map(|number| FrontendProcess::new(number, api.clone(), network.clone(), trace.clone()))
            .collect();
        let nodes = (0..nodes)
            .map(|number| NodeProcess::new(number, &mut rng, network.clone(), trace.clone(), max_loss))
            .collect();
        Self { rng, trace, api, network, frontends, nodes, backup: None }
    }

    /// Runs to the end, or to the first violation.
    pub(crate) async fn run(mut self) {
        self.frontends.iter_mut().for_each(FrontendProcess::start);
        self.nodes.iter_mut().for_each(NodeProcess::start);
        let steps = self.rng.usize(20..200);
        for _ in 0..steps {
            let pause = match self.rng.u8(0..10) {
                0..6 => self.rng.u64(0..50_000),
                6..9 => self.rng.u64(0..5_000_000),
                _ => self.rng.u64(0..400_000_000),
            };
            sleep(Duration::from_micros(pause)).await;
            self.step().await;
            self.check().await;
            if self.trace.is_violated() {
                return;
            }
        }
        self.stop_faults();
        self.converge().await;
        if !self.trace.is_violated() {
            self.restart_is_a_no_op().await;
        }
    }

    /// A change, a fault, or the end of one.
    async fn step(&mut self) {
        let nodes = self.nodes.len();
        let (node, frontend) = (self.rng.usize(..nodes), self.rng.usize(..self.frontends.len()));
        match self.rng.u8(0..100) {
            0..50 => {
                let change = objects::change(&self.api, &mut self.rng, nodes);
                trace!(self.trace, "{change}");
            }
            50..56 => match self.frontends[frontend].is_running() {
                true if self.rng.bool() => self.frontends[frontend].kill(),
                true => self.frontends[frontend].stop(),
                false => self.frontends[frontend].start(),
            },
            56..66 => match self.nodes[node].is_running() {
                true => match self.rng.u8(0..3) {
                    0 => self.nodes[node].kill(),
                    1 => self.nodes[node].stop().await,
                    _ => self.nodes[node].power_off(),
                },
                false => self.nodes[node].start(),
            },
            66..70 => {
                trace!(self.trace, "partition of node {node} and frontend {frontend}");
                self.network.partition((node, frontend));
            }
            70..74 => {
                trace!(self.trace, "partitions end");
                self.network.heal();
            }
            74..78 => {
                trace!(self.trace, "connections of node {node} and frontend {frontend} end");
                self.network.cut((node, frontend));
            }
            78..80 => {
                let latency = self.rng.choice([500, 5_000, 200_000, 3_000_000]).unwrap_or(500);
                trace!(self.trace, "latency up to {latency} us");
                self.network.set_latency(latency);
            }
            80..84 => {
                let faults = DiskFaults {
                    fails: self.rng.choice([0, 5, 50]).unwrap_or(0),
                    stalls: self.rng.choice([0, 0, 20]).unwrap_or(0),
                };
                trace!(self.trace, "disk of node {node}: {faults:?}");
                self.nodes[node].disk.set_faults(faults);
            }
            84..88 => {
                let faults = KernelFaults {
                    fails: self.rng.choice([0, 10, 60]).unwrap_or(0),
                    rejects: self.rng.choice([None, Some("service-1"), Some("service-2")]).flatten().map(Into::into),
                    slow: self.rng.choice([100, 1_000, 500_000]).unwrap_or(100),
                };
                trace!(self.trace, "kernel of node {node}: {faults:?}");
                self.nodes[node].kernel.set_faults(faults);
            }
            88..90 => {
                trace!(self.trace, "another program changes the kernel of node {node}");
                self.nodes[node].kernel.tamper();
            }
            _ => self.api_fault(),
        }
    }

    fn api_fault(&mut self) {
        let kind = self.rng.choice(KINDS).unwrap_or(Resource::Service);
        match self.rng.u8(0..10) {
            0 => {
                trace!(self.trace, "the API server compacts");
                self.api.compact();
            }
            1 => {
                trace!(self.trace, "watches are cut");
                self.api.cut_watches();
            }
            2 => self.backup = Some(self.api.backup()),
            3 => {
                if let Some(backup) = self.backup.take() {
                    trace!(self.trace, "the API server is restored from a backup");
                    self.api.restore(backup);
                }
            }
            4..7 => {
                let fault = |rng: &mut Rng| match rng.u8(0..8) {
                    0 => Some(Fault::Refuse(500)),
                    1 => Some(Fault::Throttle(rng.u32(1..20))),
                    2 => Some(Fault::Delay(Duration::from_millis(rng.u64(1..20_000)))),
                    3 => Some(Fault::Hang),
                    _ => None,
                };
                let faults = Faults {
                    lists: fault(&mut self.rng),
                    watches: fault(&mut self.rng),
                    writes: None,
                    bookmarks: self.rng.bool(),
                    streaming: self.rng.bool(),
                    events: self.rng.u8(0..6) > 0,
                };
                trace!(self.trace, "API server, {kind:?}: {faults:?}");
                self.api.set_faults(kind, |current| *current = faults);
            }
            _ => {
                trace!(self.trace, "API server, {kind:?}: healthy");
                self.api.set_faults(kind, |current| *current = Faults::default());
            }
        }
    }

    fn stop_faults(&mut self) {
        trace!(self.trace, "faults stop");
        self.network.heal();
        self.network.set_latency(1_000);
        KINDS.iter().for_each(|kind| self.api.set_faults(*kind, |current| *current = Faults::default()));
        for node in &mut self.nodes {
            node.disk.set_faults(DiskFaults::default());
            node.kernel.set_faults(KernelFaults { slow: 100, ..KernelFaults::default() });
            if !node.is_running() {
                node.start();
            }
        }
        for frontend in &mut self.frontends {
            if !frontend.is_running() {
                frontend.start();
            }
        }
    }

    async fn check(&mut self) {
        for node in &mut self.nodes {
            node.check().await;
        }
        for frontend in &mut self.frontends {
            frontend.check().await;
        }
    }

    /// Waits until each kernel is what a new frontend decides for its node.
    async fn converge(&mut self) {
        let mut expected = Vec::new();
        for node in &self.nodes {
            expected.push(probe::state_of(&self.api, node.number).await);
        }
        let begun = self.trace.elapsed();
        loop {
            self.check().await;
            if self.trace.is_violated() {
                return;
            }
            let missing = self.nodes.iter().zip(&expected).find_map(|(node, expected): (_, &MirroredState)| {
                let kernel = node.kernel.service_ports();
                (kernel != expected.service_ports).then(|| (node.number, differences(&kernel, &expected.service_ports)))
            });
            let missing = match missing {
                Some((node, differences)) => Some((format!("node {node}"), differences)),
                None => self.late_frontend(&expected).await,
            };
            let Some((late, differences)) = missing else { break };
            if self.trace.elapsed() - begun > CONVERGENCE {
                return self.trace.violation(format_args!("{late} has not converged: {differences}"));
            }
            sleep(CHECK).await;
        }
        trace!(self.trace, "converged after {:?}", self.trace.elapsed() - begun);
    }

    /// A frontend that decides something else than a new one.
    async fn late_frontend(&self, expected: &[MirroredState]) -> Option<(String, String)> {
        for (number, Listening { frontend, shutdown, .. }) in self.network.listening().into_iter().enumerate() {
            for (node, expected) in self.nodes.iter().zip(expected) {
                let view = timeout(CHECK, probe::view(&frontend, node.number, shutdown.clone())).await;
                let Ok(view) = view else {
                    return Some((format!("frontend {number}"), "it does not answer".to_owned()));
                };
                if view != *expected {
                    let differences = differences(&view.service_ports, &expected.service_ports);
                    return Some((format!("frontend {number}, for node {},", node.number), differences));
                }
            }
        }
        None
    }

    /// All nodes restart; nothing is written.
    async fn restart_is_a_no_op(&mut self) {
        sleep(DISKS).await;
        for node in &mut self.nodes {
            let writes = node.kernel.writes();
            node.stop().await;
            node.start();
            sleep(Duration::from_secs(30)).await;
            let written = node.kernel.writes() - writes;
            if written > 0 {
                self.trace.violation(format_args!("the restart of node {} wrote {written} service ports", node.number));
            }
        }
        self.check().await;
        let commits: usize = self.nodes.iter().map(|node| node.oracle.commits()).sum();
        trace!(self.trace, "end after {commits} commits");
    }
}
