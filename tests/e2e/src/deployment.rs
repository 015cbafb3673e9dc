//! Fairlead in a cluster: a frontend that reads the cluster's manifests, a backend on each node,
//! and operations on them.
//!
//! ```text
//!   manifests ──▶ frontend (outside) ──unix socket──▶ backend (node-a), backend (node-b)
//!                        └────────────────────────▶ watch: prints the revision of each change
//! ```
//!
//! To wait until every node has programmed a change, [`Deployment::wait_until_programmed`] changes one more service,
//! the fence: `watch` prints its revision, and each backend logs when it has programmed that revision.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cluster::{Cluster, ClusterBuilder, Node},
    manifests::{Manifests, Service},
    netns::Netns,
    plan,
    process::Process,
    tools::NftMonitor,
    wire::Protocol,
};

mod backend;
mod interrupted;
mod kernel_changes;
mod program;

pub use backend::Backend;
use kernel_changes::IpvsSnapshot;
pub use kernel_changes::{IptablesCalls, Monitor};
pub use program::{fairlead, program};

/// The timeout of every wait, long enough for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// The log line of a backend that has programmed its first state.
const READY: &str = "ready: node state programmed";
/// The number of the fence's cluster IP, the largest for [`plan::cluster_ip`].
const FENCE: u8 = 255;

/// Settings of a deployment.
#[derive(Clone, Debug)]
pub struct DeploymentBuilder {
    backend_kind: Backend,
    cluster: ClusterBuilder,
    arguments: Vec<String>,
    frontend_arguments: Vec<String>,
}

/// A cluster with Fairlead. Dropping it kills its programs and, after a failed test, prints the ends of their logs.
#[derive(Debug)]
pub struct Deployment {
    // Programs are dropped before their namespaces and directories.
    watch: Option<Process>,
    frontend: Option<Process>,
    backends: Vec<NodeBackend>,
    backend_kind: Backend,
    arguments: Vec<String>,
    frontend_arguments: Vec<String>,
    manifests: Manifests,
    fences: u16,
    starts: u32,
    cluster: Cluster,
    directory: TempDir,
}

/// The backend of a node, running or stopped.
#[derive(Debug)]
struct NodeBackend {
    node: String,
    process: Option<Process>,
}

// === impl DeploymentBuilder ===

impl DeploymentBuilder {
    /// Sets the size of the cluster.
    pub fn cluster(mut self, cluster: ClusterBuilder) -> Self {
        self.cluster = cluster;
        self
    }

    /// Starts backends without local traffic detection.
    pub fn without_cluster_cidr(mut self) -> Self {
        self.arguments.clear();
        self
    }

    /// Adds an argument for each backend.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Adds an argument for the frontend.
    pub fn frontend_argument(mut self, argument: &str) -> Self {
        self.frontend_arguments.push(argument.to_owned());
        self
    }

    /// Starts everything, and waits until `services` are programmed on every node.
    #[track_caller]
    pub fn start(self, services: impl FnOnce(&Cluster) -> Vec<Service>) -> Deployment {
        let cluster = self.cluster.start();
        let directory = tempfile::tempdir().expect("a directory");
        let manifests = cluster.manifests(&directory.path().join("manifests"));
        services(&cluster).iter().for_each(|service| manifests.apply(service));
        let backends = cluster.nodes().iter().map(|node| NodeBackend { node: node.name.clone(), process: None });
        let mut deployment = Deployment {
            watch: None,
            frontend: None,
            backends: backends.collect(),
            backend_kind: self.backend_kind,
            arguments: self.arguments,
            frontend_arguments: self.frontend_arguments,
            manifests,
            fences: 0,
            starts: 0,
            cluster,
            directory,
        };
        deployment.start_frontend();
        deployment.start_backends();
        deployment.wait_until_programmed();
        deployment
    }
}

// === impl Deployment: starting and stopping ===

impl Deployment {
    /// By default two nodes with three pods each, and backends with the cluster CIDRs.
    pub fn builder(backend: Backend) -> DeploymentBuilder {
        let arguments = vec!["--cluster-cidr".to_owned(), plan::CLUSTER_CIDRS.join(",")];
        let frontend_arguments = Vec::new();
        DeploymentBuilder { backend_kind: backend, cluster: Cluster::builder(), arguments, frontend_arguments }
    }

    /// Starts the default deployment with these services.
    #[track_caller]
    pub fn start(backend: Backend, services: impl FnOnce(&Cluster) -> Vec<Service>) -> Self {
        Self::builder(backend).start(services)
    }

    /// Starts the frontend, and waits until it has listed the manifests and listens.
    #[track_caller]
    pub fn start_frontend(&mut self) {
        let mut command = fairlead();
        command.args(["frontend", "--listen", &self.socket(), "--manifests"]).arg(self.manifests.directory());
        command.args(&self.frontend_arguments);
        let outside = self.cluster.outside().clone();
        let frontend = self.spawn(&outside, "frontend", command);
        frontend.wait_for_line("every kind of object has been listed", 0, TIMEOUT);
        frontend.wait_for_line("listening", 0, TIMEOUT);
        self.frontend = Some(frontend);
        let mut command = fairlead();
        command.args(["watch", "--frontend", &self.socket(), "--node", &self.cluster.nodes()[0].name]);
        let watch = self.spawn(&outside, "watch", command);
        watch.wait_for_line("commit", 0, TIMEOUT);
        self.watch = Some(watch);
    }

    /// Starts the backends that do not run, and waits until each has programmed a state.
    #[track_caller]
    pub fn start_backends(&mut self) {
        for number in 0..self.backends.len() {
            if self.backends[number].process.is_none() {
                let node = &self.cluster.nodes()[number];
                let (name, netns, command) = (node.name.clone(), node.netns.clone(), self.backend_command(number));
                self.backends[number].process = Some(self.spawn(&netns, &name, command));
            }
        }
        for backend in self.backends.iter().filter_map(|backend| backend.process.as_ref()) {
            backend.wait_for_line(READY, 0, TIMEOUT);
        }
    }

    /// Restarts the backends of all nodes with more arguments.
    #[track_caller]
    pub fn restart_backends_with(&mut self, arguments: &[&str]) {
        self.stop_backends(Signal::SIGTERM);
        let first = self.arguments.iter().position(|argument| arguments.first() == Some(&argument.as_str()));
        self.arguments.truncate(first.unwrap_or(self.arguments.len()));
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self.start_backends();
    }

    /// Replaces the backends of all nodes by those of another mode, with the same state files.
    #[track_caller]
    pub fn change_mode(&mut self, mode: Backend) {
        self.stop_backends(Signal::SIGTERM);
        self.set_mode(mode);
        self.start_backends();
    }

    /// Sets the mode of backends that are started from now on.
    pub fn set_mode(&mut self, mode: Backend) {
        self.backend_kind = mode;
    }

    /// Ends the frontend with a signal.
    #[track_caller]
    pub fn stop_frontend(&mut self, signal: Signal) {
        // `fairlead watch` does not reconnect at a drain, and the frontend would wait for it.
        self.watch = None;
        let frontend = self.frontend.take().expect("the frontend runs");
        end(&frontend, signal);
    }

    /// Ends the backends of all nodes with a signal.
    #[track_caller]
    pub fn stop_backends(&mut self, signal: Signal) {
        let running = self.backends.iter_mut().filter_map(|backend| backend.process.take());
        running.for_each(|process| end(&process, signal));
    }

    #[track_caller]
    fn spawn(&mut self, netns: &Netns, name: &str, command: Command) -> Process {
        self.starts += 1;
        let log = self.directory.path().join(format!("{name}-{}.log", self.starts));
        Process::spawn(netns, command, &log)
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.directory.path().join("frontend.sock").display())
    }
}

#[track_caller]
fn end(process: &Process, signal: Signal) {
    process.signal(signal);
    assert!(process.wait(TIMEOUT).is_some(), "not ended by {signal}: {}", process.log().display());
}

// === impl Deployment: access ===

impl Deployment {
    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The manifests, for objects other than a [`Service`]. Call [`Self::wait_until_programmed`] afterwards.
    pub fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// The frontend.
    #[track_caller]
    pub fn frontend(&self) -> &Process {
        self.frontend.as_ref().expect("the frontend runs")
    }

    /// The backend of a node.
    #[track_caller]
    pub fn backend(&self, node: &Node) -> &Process {
        let backend = self.backends.iter().find(|backend| backend.node == node.name).expect("a node of this cluster");
        backend.process.as_ref().expect("the backend runs")
    }

    /// The state directory of a node's backend.
    pub fn state(&self, node: &Node) -> PathBuf {
        self.directory.path().join(format!("state-{}", node.name))
    }

    /// The address of the frontend.
    pub fn address(&self) -> String {
        self.socket()
    }

    /// A path in a directory that is removed with the deployment.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts to record everything that the backend of `node` writes to the kernel.
    #[track_caller]
    pub fn monitor(&self, node: &Node) -> Monitor {
        match self.backend_kind {
            Backend::Nft => {
                let log = self.path(&format!("monitor-{}.log", node.name));
                Monitor::Nft(NftMonitor::start(&node.netns, &log))
            }
            Backend::IptablesNft | Backend::IptablesLegacy => Monitor::Iptables(IptablesCalls::open(self.notes(node))),
            Backend::Ipvs => Monitor::Ipvs(IpvsSnapshot::take(node.netns.clone())),
        }
    }

    /// The directory that records the iptables programs run by the backend of `node`.
    fn notes(&self, node: &Node) -> PathBuf {
        self.path(&format!("notes-{}", node.name))
    }

    /// Whether a line about the kernel is about the fence of [`Self::wait_until_programmed`].
    pub fn is_fence(line: &str) -> bool {
        let address = plan::cluster_ip(FENCE).v4;
        [' ', '/'].into_iter().any(|end| line.contains(&format!("{address}{end}")))
    }

    /// Runs `fairlead` with these arguments and the address of the frontend, and returns its output.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> String {
        let socket = self.socket();
        let program = program::path();
        let arguments = [arguments, &["--frontend", &socket]].concat();
        self.cluster.outside().output(program.to_str().expect("a path in UTF-8"), &arguments)
    }
}

// === impl Deployment: changing ===

impl Deployment {
    /// Writes a service and its endpoints, and waits until they are programmed on every node.
    #[track_caller]
    pub fn apply(&mut self, service: &Service) {
        self.manifests.apply(service);
        self.wait_until_programmed();
    }

    /// As [`Self::apply`], with changes of the objects for which [`Service`] has no method.
    #[track_caller]
    pub fn apply_changed(&mut self, service: &Service, change: impl FnOnce(&mut Vec<Value>)) {
        let mut objects = service.objects();
        change(&mut objects);
        self.manifests.write(&service.file_stem(), &objects);
        self.wait_until_programmed();
    }

    /// Removes a service, and waits until it is removed from every node.
    #[track_caller]
    pub fn delete(&mut self, service: &Service) {
        let watch = self.watch();
        let mark = watch.mark();
        self.manifests.delete(service);
        // The frontend delays the removal of a missing file, possibly beyond the revision of the fence.
        watch.wait_for("the removal", mark, TIMEOUT, |line| {
            line.contains("remove service port") && line.contains(&service.full_name())
        });
        self.wait_until_programmed();
    }

    /// Waits until the current manifests are programmed on every node.
    #[track_caller]
    pub fn wait_until_programmed(&mut self) {
        let (revision, marks) = self.fence();
        let backends = self.backends.iter().filter_map(|backend| backend.process.as_ref());
        for (backend, mark) in backends.zip(marks) {
            backend.wait_for(&format!("revision {revision}"), mark, TIMEOUT, |line| self.is_programmed(line, revision));
        }
    }

    /// Whether a backend reports by this line that it has programmed a revision, or a later one.
    fn is_programmed(&self, line: &str, revision: u64) -> bool {
        self.backend_kind.programmed_revision(line).is_some_and(|programmed| programmed >= revision)
    }

    /// Changes the fence. Returns the revision of that change, and the mark of each running backend before it.
    #[track_caller]
    fn fence(&mut self) -> (u64, Vec<usize>) {
        self.fences += 1;
        let port = self.fences;
        let watch = self.watch();
        let seen = watch.mark();
        let backends = self.backends.iter().filter_map(|backend| backend.process.as_ref());
        let marks = backends.map(Process::mark).collect();
        let fence = Service::new("fence").namespace("e2e").single_stack(plan::cluster_ip(FENCE).v4.into());
        self.manifests.apply(&fence.port(Protocol::Tcp, port, port));
        let line =
            watch.wait_for_line(&format!("e2e/fence:tcp-{port}/tcp {}", plan::cluster_ip(FENCE).v4), seen, TIMEOUT);
        let revision = line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        (revision.unwrap_or_else(|| panic!("a line of watch begins with a revision: {line}")), marks)
    }

    #[track_caller]
    fn watch(&self) -> &Process {
        self.watch.as_ref().expect("the frontend runs")
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Ok(entries) = fs::read_dir(self.directory.path()) else { return };
        let logs = entries.filter_map(|entry| Some(entry.ok()?.path()));
        logs.filter(|path| path.extension().is_some_and(|extension| extension == "log")).for_each(|log| show(&log));
    }
}

/// Prints the end of a log.
fn show(log: &Path) {
    const SHOWN_LINES: usize = 40;
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().collect::<Vec<_>>();
    eprintln!("--- {}", log.display());
    lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| eprintln!("{line}"));
}
