//! The cluster of a soak and of rollouts: namespaces, frontends, backends, synthetic streams, and what each change and
//! restart does.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Backend, Cluster, Node, Process,
    manifests::{Manifests, Service},
    plan,
};
use nix::sys::signal::Signal;
use rustls::ClientConfig;
use serde_json::json;
use tempfile::TempDir;

use super::{
    NOISE_KB,
    sample::{self, Measured},
};
use crate::{
    credentials::{Credentials, NAME},
    lab,
    scale::{cluster::node_name, fleet::Fleet, metrics::FleetMetrics},
};

/// The port of the first frontend; that of the second one is higher by one.
const PORT: u16 = 7600;
const NODES: u8 = 10;
/// The first serves, the second is a client; the others are replaced by rollouts.
const PODS_PER_NODE: u8 = 4;
/// The kinds of backends, in turn.
const KINDS: [Backend; 3] = [Backend::Nft, Backend::IptablesNft, Backend::IptablesLegacy];
/// The backends from this node on are restarted; those before run all the time.
const FIRST_RESTARTED: usize = 5;
/// The Services whose endpoints change: cluster IPs from 2 on.
pub(super) const CHANGING: u8 = 8;
/// The memory of a frontend for changes: small, so that it is full before growth is judged.
const HISTORY_MIB: u32 = 4;
/// How long a process may take to start or stop.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct Stage {
    fleet: Option<Fleet>,
    metrics: Arc<FleetMetrics>,
    backends: Vec<Process>,
    frontends: Vec<Process>,
    starts: u32,
    max_stream_age: Duration,
    credentials: Credentials,
    manifests: Manifests,
    cluster: Cluster,
    directory: TempDir,
}

pub(super) fn frontend_addresses() -> [SocketAddr; 2] {
    [PORT, PORT + 1].map(|port| SocketAddr::new(plan::OUTSIDE.v4.into(), port))
}

impl Stage {
    /// Starts everything. Frontends ask nodes to reconnect when their streams are `max_stream_age` old.
    pub(crate) fn start(streams: u32, max_stream_age: Duration) -> Result<Self> {
        let cluster = Cluster::builder().nodes(NODES).pods_per_node(PODS_PER_NODE).ports(&[8080]).start();
        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let manifests = cluster.manifests(&directory.path().join("manifests"));
        let credentials = Credentials::create(directory.path())?;
        let mut stage = Self {
            fleet: None,
            metrics: Arc::new(FleetMetrics::new()),
            backends: Vec::new(),
            frontends: Vec::new(),
            starts: 0,
            max_stream_age,
            credentials,
            manifests,
            cluster,
            directory,
        };
        let steady = Service::new("steady").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
        let steady = steady.pods(stage.cluster.nodes().iter().map(|node| node.pod(1)));
        stage.manifests.apply(&steady);
        (0..u64::from(CHANGING)).for_each(|number| stage.change(number));
        stage.write_synthetic_nodes(streams);
        for number in 0..frontend_addresses().len() {
            let frontend = stage.frontend(number)?;
            stage.frontends.push(frontend);
        }
        for number in 0..usize::from(NODES) {
            let backend = stage.backend(number)?;
            stage.backends.push(backend);
        }
        for backend in &stage.backends {
            backend.wait_for_line("ready: node state programmed", 0, TIMEOUT);
        }
        let fleet = stage.fleet(streams)?;
        fleet.keep();
        stage.fleet = Some(fleet);
        Ok(stage)
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A client without a certificate, which trusts the frontends.
    pub(super) fn stranger(&self) -> Arc<ClientConfig> {
        self.credentials.stranger()
    }

    pub(crate) fn backends(&self) -> &[Process] {
        &self.backends
    }

    /// Creates or replaces a Service and its endpoints.
    pub(crate) fn apply(&self, service: &Service) {
        self.manifests.apply(service);
    }

    /// Streams that ended although their frontend did not ask for it.
    pub(super) fn broken_streams(&self) -> u64 {
        self.metrics.broken.load(Relaxed)
    }

    /// Replaces the endpoints of a Service by the pods of another half of the nodes. Pods never stop, so that a
    /// connection to a former endpoint continues.
    pub(super) fn change(&self, number: u64) {
        let service = 2 + (number % u64::from(CHANGING)) as u8;
        let half = (number / u64::from(CHANGING)) as usize % 2;
        let web = Service::new(&format!("web-{service}")).cluster_ip(plan::cluster_ip(service)).port_all(80, 8080);
        let nodes = self.cluster.nodes().iter().enumerate().filter(|(at, _)| at % 2 == half);
        self.manifests.apply(&web.pods(nodes.map(|(_, node)| node.pod(1))));
    }

    /// Restarts the first frontend, or one of the last backends: with SIGTERM or SIGKILL in turn. The second frontend
    /// and the first backends run all the time, so that what grows in them is seen.
    pub(super) fn restart(&mut self, number: u64) -> Result<()> {
        if number.is_multiple_of(4) {
            let status = self.frontends[0].terminate();
            ensure!(status.success(), "the frontend ended with {status}");
            self.frontends[0] = self.frontend(0)?;
            return Ok(());
        }
        let restarted = FIRST_RESTARTED + number as usize % (usize::from(NODES) - FIRST_RESTARTED);
        let signal = if number.is_multiple_of(2) { Signal::SIGKILL } else { Signal::SIGTERM };
        self.backends[restarted].signal(signal);
        self.backends[restarted].wait(TIMEOUT).context("a backend did not end")?;
        self.backends[restarted] = self.backend(restarted)?;
        self.backends[restarted].wait_for_line("ready: node state programmed", 0, TIMEOUT);
        Ok(())
    }

    /// All samples: of processes that run all the time, of namespaces, and of the machine.
    pub(super) fn sample(&self) -> Result<Vec<Measured>> {
        let mut sample = Vec::from(sample::process("frontend 2", &self.frontends[1], NOISE_KB)?);
        for (node, backend) in self.cluster.nodes().iter().zip(&self.backends).take(FIRST_RESTARTED) {
            sample.extend(sample::process(&node.name, backend, NOISE_KB)?);
        }
        for (number, node) in self.cluster.nodes().iter().enumerate() {
            let flows = node.netns.run(|| fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count"))?;
            let flows = flows.trim().parse().context("nf_conntrack_count")?;
            sample.push(Measured::new(format!("{} conntrack entries", node.name), flows, 400.0));
            let objects = kind(number).rules(&node.netns).len() as f64;
            sample.push(Measured::new(format!("{} kernel objects", node.name), objects, 16.0));
        }
        sample.push(sample::unreclaimable()?);
        Ok(sample)
    }

    /// Every process still runs, and no log has an error.
    pub(super) fn check(&self) -> Result<()> {
        for process in self.backends.iter().chain(&self.frontends) {
            let log = process.log().display();
            ensure!(process.exited().is_none(), "a process has ended: {log}");
            let lines = process.lines_since(0);
            let bad = lines.iter().find(|line| line.contains(" ERROR ") || line.contains("panicked"));
            ensure!(bad.is_none(), "{log}: {}", bad.map_or("", String::as_str));
        }
        Ok(())
    }

    /// Ends everything with SIGTERM.
    pub(crate) fn stop(mut self) -> Result<()> {
        if let Some(fleet) = self.fleet.take() {
            fleet.leave(TIMEOUT)?;
        }
        for process in self.backends.drain(..).chain(self.frontends.drain(..)) {
            let status = process.terminate();
            ensure!(status.success(), "a process ended with {status}");
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The objects of the nodes of the synthetic streams, which connect from the address outside.
    fn write_synthetic_nodes(&self, streams: u32) {
        let node = |number| {
            let address = json!({"type": "InternalIP", "address": plan::OUTSIDE.v4});
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node_name(number)},
                "status": {"addresses": [address]},
            })
        };
        self.manifests.write("synthetic", &(0..streams).map(node).collect::<Vec<_>>());
    }

    fn frontend(&mut self, number: usize) -> Result<Process> {
        let mut command = lab::program()?;
        command.args(["frontend", "--metrics", "none", "--listen", &frontend_addresses()[number].to_string()]);
        command.arg("--manifests").arg(self.manifests.directory());
        command.args(["--max-history", &HISTORY_MIB.to_string()]);
        command.args(["--max-stream-age", &format!("{}s", self.max_stream_age.as_secs())]);
        command.args(self.credentials.frontend_flags());
        let log = self.log(&format!("frontend-{number}"));
        let frontend = Process::spawn(self.cluster.outside(), command, &log);
        frontend.wait_for_line("listening", 0, TIMEOUT);
        frontend.wait_for_line("every kind of object has been listed", 0, TIMEOUT);
        Ok(frontend)
    }

    fn backend(&mut self, number: usize) -> Result<Process> {
        let Node { name, netns, .. } = &self.cluster.nodes()[number];
        let (name, netns) = (name.clone(), netns.clone());
        let kind = kind(number);
        let mut command = lab::program()?;
        command.args(["backend", kind.name(), "--node-name", &name, "--metrics", "none"]);
        command.args(["--conntrack-max-per-core", "0", "--cluster-cidr", &plan::CLUSTER_CIDRS.join(",")]);
        for address in frontend_addresses() {
            command.args(["--frontend", &format!("https://{address}")]);
        }
        command.args(self.credentials.backend_flags(&name)?);
        command.arg("--state-dir").arg(self.path(&format!("state-{name}"))).args(kind.arguments());
        Ok(Process::spawn(&netns, command, &self.log(&name)))
    }

    fn log(&mut self, name: &str) -> PathBuf {
        self.starts += 1;
        self.path(&format!("{name}-{}.log", self.starts))
    }

    fn fleet(&self, streams: u32) -> Result<Fleet> {
        let nodes = (NAME, self.credentials.nodes(streams)?);
        Fleet::over_tls(self.cluster.outside(), frontend_addresses().into(), self.metrics.clone(), nodes)
    }
}

/// The kind of the backend of a node, by its number.
fn kind(node: usize) -> Backend {
    KINDS[node % KINDS.len()]
}

/// A cluster IP on port 80.
pub(crate) fn vip(number: u8) -> SocketAddr {
    let address: Ipv4Addr = plan::cluster_ip(number).v4;
    SocketAddr::new(address.into(), 80)
}
