//! The cluster, the directory of manifests, one frontend and a backend on each node.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use fairlead_e2e::{Backend, Cluster, Netns, Node, Process, plan};
use tempfile::TempDir;

use crate::{kernel, show::Show};

/// Time limit for a process to become ready, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// The manifests of the demo.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/manifests");
/// Lines of each log that are printed after a failure.
const SHOWN_LINES: usize = 15;

/// Everything that runs. Processes are dropped before their namespaces.
pub(crate) struct Scene {
    /// In the order of the nodes.
    backends: Vec<Process>,
    frontend: Process,
    pub(crate) cluster: Cluster,
    pub(crate) backend: Backend,
    program: PathBuf,
    directory: TempDir,
}

impl Scene {
    /// Starts two nodes with two pods each, on a copy of the example manifests, and waits until both are programmed.
    pub(crate) fn start(show: &mut Show, backend: Backend) -> Result<Self> {
        let program = env::current_exe().context("find this program")?.with_file_name("fairlead");
        ensure!(program.is_file(), "no {}: build it first (cargo build -p fairlead)", program.display());
        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let manifests = directory.path().join("manifests");
        copy(Path::new(EXAMPLES), &manifests)?;

        let cluster = Cluster::builder().pods_per_node(2).start();
        for node in cluster.nodes() {
            let pods = node.pods.iter().map(|pod| format!("{} {}", pod.name, pod.address.v4));
            let pods = pods.collect::<Vec<_>>().join(", ");
            show.result(&format!("{} {} (pods: {pods})", node.name, node.address.v4));
        }
        show.result(&format!("outside {} (VIPs are routed through node-a)", plan::OUTSIDE.v4));

        let address = listen_address(&directory);
        show.command("outside", &format!("fairlead frontend --manifests {} --listen {address}", manifests.display()));
        let mut command = Command::new(&program);
        command.arg("frontend").arg("--manifests").arg(&manifests).args(["--listen", &address]);
        let frontend = spawn(cluster.outside(), command, &directory.path().join("frontend.log"));
        frontend.wait_for_line("listening", 0, DEADLINE);

        let mut scene = Self { backends: Vec::new(), frontend, cluster, backend, program, directory };
        let name = backend.name();
        show.command("node-a", &format!("fairlead backend {name} --frontend {address} ...    # and so on node-b"));
        scene.backends = scene.cluster.nodes().iter().map(|node| scene.spawn_backend(node)).collect();
        for (node, backend) in scene.cluster.nodes().iter().zip(&scene.backends) {
            backend.wait_for_line("reconciled", 0, DEADLINE);
            show.detail(&node.name, &format!("fairlead {}", scene.backend_arguments(node).join(" ")), "")?;
        }
        Ok(scene)
    }

    /// The binary, as text.
    pub(crate) fn program(&self) -> Result<&str> {
        self.program.to_str().context("the path of the program is not UTF-8")
    }

    /// The address of the frontend.
    pub(crate) fn address(&self) -> String {
        listen_address(&self.directory)
    }

    /// A file of the manifests.
    pub(crate) fn manifest(&self, name: &str) -> PathBuf {
        self.directory.path().join("manifests").join(name)
    }

    /// A command of the binary in a node's namespace, running until it is dropped.
    pub(crate) fn spawn(&self, node: &Node, arguments: &[&str], log: &str) -> Process {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        spawn(&node.netns, command, &self.directory.path().join(log))
    }

    /// The backends, in the order of the nodes.
    pub(crate) fn backends(&self) -> &[Process] {
        &self.backends
    }

    /// The backend of the first node.
    pub(crate) fn first_backend(&self) -> &Process {
        &self.backends[0]
    }

    /// Starts the backend of the first node again, after its end.
    pub(crate) fn restart_first_backend(&mut self) {
        self.backends[0] = self.spawn_backend(&self.cluster.nodes()[0]);
    }

    /// The arguments of a node's backend.
    pub(crate) fn backend_arguments(&self, node: &Node) -> Vec<String> {
        let state = self.directory.path().join(&node.name);
        let (address, pods) = (self.address(), plan::CLUSTER_CIDRS.join(","));
        let state = state.display().to_string();
        let backend = ["backend", self.backend.name(), "--frontend", &address, "--node-name", &node.name];
        // The conntrack limit belongs to the host.
        let node = ["--cluster-cidr", &pods, "--state-dir", &state, "--conntrack-max-per-core=0"];
        let arguments = backend.iter().chain(&node).chain(self.backend.arguments());
        arguments.map(|argument| (*argument).to_owned()).collect()
    }

    fn spawn_backend(&self, node: &Node) -> Process {
        let arguments = self.backend_arguments(node);
        let arguments = arguments.iter().map(String::as_str).collect::<Vec<_>>();
        self.spawn(node, &arguments, &format!("backend-{}.log", node.name))
    }

    /// Ends everything, in order.
    pub(crate) fn clean_up(self, show: &Show) -> Result<()> {
        for process in self.backends.iter().chain([&self.frontend]) {
            let status = process.terminate();
            ensure!(status.success(), "a program ended with {status}");
        }
        let backend = self.backend.name();
        show.command("node-a", &format!("fairlead cleanup --backend {backend}"));
        let node = &self.cluster.node('a').netns;
        let state = self.directory.path().join("node-a").display().to_string();
        node.output(self.program()?, &["cleanup", "--backend", backend, "--state-dir", &state]);
        let left = kernel::ours(self.backend, node);
        ensure!(left.is_empty(), "cleanup left behind: {left:?}");
        show.result("no kernel object of Fairlead is left on node-a; all processes have exited");
        Ok(())
    }

    /// Prints the last log lines of all processes, after a failure.
    pub(crate) fn print_logs(&self) {
        for process in self.backends.iter().chain([&self.frontend]) {
            eprintln!("\nlast lines of {}:", process.log().display());
            let lines = process.lines_since(0);
            lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// The message of a log line, without time, level and module.
pub(crate) fn message(line: &str) -> &str {
    line.rsplit_once("::").and_then(|(_, rest)| rest.split_once(": ")).map_or(line, |(_, message)| message)
}

fn listen_address(directory: &TempDir) -> String {
    format!("unix:{}", directory.path().join("frontend.sock").display())
}

/// Starts a program with only PATH in its environment, so that the environment of the caller has no effect.
fn spawn(netns: &Netns, mut command: Command, log: &Path) -> Process {
    let path = env::var("PATH").unwrap_or_default();
    command.env_clear().env("PATH", format!("{path}:/usr/sbin:/sbin"));
    Process::spawn(netns, command, log)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))
            .with_context(|| format!("copy {}", entry.path().display()))?;
    }
    Ok(())
}
