//! One simulation: a cluster that changes while parts of it fail; then the faults stop, and everything must converge.
//! After that, what is disturbed without a change of an object must write nothing, and changes must arrive within
//! seconds.

mod steps;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use backend::LossLimit;
use fake_api_server::{ApiServer, Backup, Faults, Resource};
use fastrand::Rng;
use tokio::time::{sleep, timeout};

use crate::{
    disk::DiskFaults,
    kernel::KernelFaults,
    network::{Listening, Network},
    objects::{self, ClusterSize},
    oracle::{MirroredState, differences},
    probe,
    processes::{FrontendProcess, NodeProcess},
    reference,
    schedule::{Schedule, Step, lasts_for_days},
    trace::{Trace, trace},
};

/// How long everything may take to converge after the last fault. The longest delays: a list that is repeated because
/// of silence after 150 s; a kernel call that is repeated after 30 s; a state file after 60 s; a loss that is confirmed
/// after 10 s.
const CONVERGENCE: Duration = Duration::from_secs(10 * 60);
/// How often convergence is checked.
const CHECK: Duration = Duration::from_secs(10);
/// How long a disk may still need for a write that has stalled, and a state file until it is written again.
const DISKS: Duration = Duration::from_secs(180);
/// After this time without faults each watch and each stream is open again.
const SETTLED: Duration = Duration::from_secs(300);
/// How long a change may take from the API server to the kernels when nothing fails.
const PROPAGATION: Duration = Duration::from_secs(3);
/// How long all nodes may take to confirm that they have lost all endpoints.
const CONFIRMATION: Duration = Duration::from_secs(60);
/// The kinds that the API serves.
const KINDS: [Resource; 4] = [Resource::Node, Resource::Service, Resource::EndpointSlice, Resource::ServiceCidr];

/// What a simulation consists of.
pub(crate) struct World {
    schedule: Schedule,
    size: ClusterSize,
    /// Whether operations may be lost on the way to a node, so that only digests show it.
    is_lossy: bool,
    trace: Trace,
    api: ApiServer,
    /// What frontends are connected to. Each has faults of its own; `api` has none.
    replicas: Arc<[ApiServer]>,
    network: Network,
    frontends: Vec<FrontendProcess>,
    nodes: Vec<NodeProcess>,
    backup: Option<Backup>,
}

impl World {
    pub(crate) fn new(seed: u64, only: Option<&BTreeSet<usize>>, trace: Trace) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (frontends, is_large, is_lossy) = (rng.usize(1..=3), rng.u8(0..40) == 0, rng.u8(0..8) == 0);
        let nodes = if is_large { rng.usize(20..=100) } else { rng.usize(1..=6) };
        let services = if rng.u8(0..4) == 0 { rng.usize(12..=30) } else { 8 };
        let size = ClusterSize { nodes, services };
        let max_loss = if rng.bool() { LossLimit::default() } else { LossLimit::NONE };
        let is_long = !is_large && lasts_for_days(seed);
        let schedule = Schedule::new(&mut rng.fork(), is_large, is_long, only);
        trace!(trace, "{frontends} frontends, {size:?}, loss limit {max_loss:?}, {} steps", schedule.len());
        let network = Network::new(rng.fork(), trace.clone(), frontends);
        let api = ApiServer::in_process();
        let replicas: Arc<[_]> = (0..rng.usize(1..=3)).map(|_| api.replica()).collect();
        objects::fill(&api, &mut rng, size);
        let frontends = (0..frontends)
            .map(|number| FrontendProcess::new(number, replicas.clone(), network.clone(), trace.clone()))
            .collect();
        let nodes = (0..nodes)
            .map(|number| NodeProcess::new(number, &mut rng, network.clone(), trace.clone(), max_loss))
            .collect();
        Self { schedule, size, is_lossy, trace, api, replicas, network, frontends, nodes, backup: None }
    }

    /// The number of its steps.
    pub(crate) fn steps(&self) -> usize {
        self.schedule.len()
    }

    /// Runs to the end, or to the first violation.
    pub(crate) async fn run(mut self) {
        self.frontends.iter_mut().for_each(FrontendProcess::start);
        self.nodes.iter_mut().for_each(NodeProcess::start);
        // Breaks at the first violation.
        let _ = self.phases().await;
    }

    async fn phases(&mut self) -> Result<(), Violated> {
        for step in std::mem::take(&mut self.schedule.steps) {
            self.happens(step, Phase::Faults).await?;
        }
        self.stop_faults();
        self.converge().await?;
        self.restart_is_a_no_op().await?;
        let writes = self.writes();
        for step in std::mem::take(&mut self.schedule.quiet) {
            self.happens(step, Phase::Quiet).await?;
            let written = self.writes().saturating_sub(writes);
            if written > 0 {
                let text = "no object has changed since everything has converged, but service ports were written";
                self.trace.violation(format_args!("{text}: {written}"));
            }
        }
        self.stop_faults();
        self.pass(SETTLED).await?;
        for step in std::mem::take(&mut self.schedule.changes) {
            self.happens(step, Phase::Changes).await?;
            self.pass(PROPAGATION).await?;
            self.arrived();
        }
        objects::delete_all_slices(&self.api, self.size);
        trace!(self.trace, "all slices are deleted");
        self.pass(CONFIRMATION).await?;
        self.arrived();
        self.check().await?;
        let commits: usize = self.nodes.iter().map(|node| node.oracle.commits()).sum();
        trace!(self.trace, "end after {commits} commits");
        Ok(())
    }

    /// Time passes, and what must always be true is checked.
    async fn pass(&mut self, time: Duration) -> Result<(), Violated> {
        sleep(time).await;
        self.check().await
    }

    async fn happens(&mut self, step: Step, phase: Phase) -> Result<(), Violated> {
        self.pass(step.pause).await?;
        if step.happens {
            self.trace.step(Some(step.number));
            let mut rng = Rng::with_seed(step.seed);
            match phase {
                Phase::Faults => self.fault(&mut rng).await,
                Phase::Quiet => self.disturb(&mut rng).await,
                Phase::Changes => self.change(&mut rng),
            }
            self.trace.step(None);
        }
        self.check().await
    }

    fn stop_faults(&mut self) {
        trace!(self.trace, "faults stop");
        self.network.heal();
        self.network.set_latency(1_000);
        self.replicas.iter().for_each(heal);
        for node in &mut self.nodes {
            node.disk.set_faults(DiskFaults::default());
            node.kernel.set_faults(KernelFaults { slow: 100, ..KernelFaults::default() });
            if !node.is_running() {
                node.start();
            }
        }
        for frontend in &mut self.frontends {
            frontend.set_link(true);
            if !frontend.is_running() {
                frontend.start();
            }
        }
    }

    async fn check(&mut self) -> Result<(), Violated> {
        for node in &mut self.nodes {
            node.check().await;
        }
        for frontend in &mut self.frontends {
            frontend.check().await;
        }
        if self.trace.is_violated() { Err(Violated) } else { Ok(()) }
    }

    /// The writes of all nodes, except for those whose Node object was deleted: without a state file, their
    /// addresses are unknown after a restart.
    fn writes(&self) -> u64 {
        let known: BTreeSet<_> = objects::node_names(&self.api);
        let nodes = self.nodes.iter().filter(|node| known.contains(&objects::node_name(node.number)));
        nodes.map(|node| node.kernel.writes()).sum()
    }

    /// Each kernel must be what the objects mean.
    fn arrived(&self) {
        for node in &self.nodes {
            let name = objects::node_name(node.number);
            if !node.kernel.is_repaired() {
                return self.trace.violation(format_args!("{name} has not restored what another program has removed"));
            }
            let ports = node.kernel.service_ports();
            if let Some(differences) = reference::difference(&self.api, &name, &ports) {
                let text = format!("{name} does not have a change, without faults: {differences}");
                return self.trace.violation(format_args!("{text}"));
            }
        }
    }

    /// Waits until each kernel is what a new frontend decides for its node, which must be what the objects mean.
    async fn converge(&mut self) -> Result<(), Violated> {
        let mut expected = Vec::new();
        for node in &self.nodes {
            let state = probe::state_of(&self.api, node.number).await;
            let name = objects::node_name(node.number);
            if let Some(differences) = reference::difference(&self.api, &name, &state.service_ports) {
                self.trace.violation(format_args!("a new frontend decides for {name}: {differences}"));
            }
            if !reference::are_service_cidrs(&self.api, &state.cluster.service_cidrs) {
                let cidrs = &state.cluster.service_cidrs;
                self.trace.violation(format_args!("a new frontend decides for {name}: service CIDRs {cidrs:?}"));
            }
            expected.push(state);
        }
        let begun = self.trace.elapsed();
        loop {
            self.check().await?;
            let missing = self.nodes.iter().zip(&expected).find_map(|(node, expected): (_, &MirroredState)| {
                let (kernel, expected) = (node.kernel.service_ports(), &expected.service_ports);
                (kernel != *expected).then(|| (node.number, differences(&kernel, expected)))
            });
            let missing = match missing {
                Some((node, differences)) => Some((format!("node {node}"), differences)),
                None => self.late_frontend(&expected).await,
            };
            let Some((late, differences)) = missing else { break };
            if self.trace.elapsed() - begun > CONVERGENCE {
                self.trace.violation(format_args!("{late} has not converged: {differences}"));
                return Err(Violated);
            }
            sleep(CHECK).await;
        }
        trace!(self.trace, "converged after {:?}", self.trace.elapsed() - begun);
        Ok(())
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
    async fn restart_is_a_no_op(&mut self) -> Result<(), Violated> {
        self.pass(DISKS).await?;
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            let writes = node.kernel.writes();
            node.stop().await;
            node.start();
            sleep(Duration::from_secs(30)).await;
            let node = &self.nodes[number];
            let written = node.kernel.writes() - writes;
            if written > 0 {
                self.trace.violation(format_args!("the restart of node {} wrote {written} service ports", node.number));
            }
        }
        self.check().await
    }
}

/// Ends all faults of a replica of the API server.
fn heal(api: &ApiServer) {
    KINDS.iter().for_each(|kind| api.set_faults(*kind, |current| *current = Faults::default()));
}

/// An invariant was violated.
struct Violated;

/// What a step may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Changes and faults.
    Faults,
    /// Disturbances that change no object.
    Quiet,
    /// Changes only.
    Changes,
}
