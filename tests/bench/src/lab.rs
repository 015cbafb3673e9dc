//! The network namespace of a node and the programs in it, with their logs and memory, and the kernel's notifications.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{Cluster, Netns, Process};
use netlink::nft::{NftEvent, NftHandle, NftMonitor};
use tempfile::TempDir;

use crate::manifests::{CLUSTER_CIDR, Manifests, NODE};

/// What the chart sets for a backend.
const BACKEND_ENVIRONMENT: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// Timeout of every step.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A namespace, and a directory for all files.
pub(crate) struct Lab {
    cluster: Arc<Cluster>,
    /// The number of the node in the cluster, whose namespace this is.
    node: usize,
    program: PathBuf,
    directory: TempDir,
}

/// The memory of a program, in kB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The current resident size (`VmRSS`).
    pub(crate) resident: u64,
    /// The peak resident size (`VmHWM`).
    pub(crate) peak: u64,
}

impl Lab {
    pub(crate) fn new() -> Result<Self> {
        Self::connected(1)?.pop().context("one namespace")
    }

    /// So many namespaces that reach each other.
    pub(crate) fn connected(count: u8) -> Result<Vec<Self>> {
        let program = env::current_exe().context("find this program")?.with_file_name("fairlead");
        ensure!(program.is_file(), "no {}: build it first", program.display());
        let cluster = Arc::new(Cluster::builder().nodes(count).pods_per_node(0).ports(&[]).start());
        let lab = |node| {
            let directory = tempfile::tempdir().context("make a temporary directory")?;
            Ok(Self { cluster: cluster.clone(), node, program: program.clone(), directory })
        };
        (0..count.into()).map(lab).collect()
    }

    /// The address at which the other namespaces reach this one.
    pub(crate) fn address(&self) -> IpAddr {
        self.cluster.nodes()[self.node].address.v4.into()
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The kubeconfig that the API server writes.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    pub(crate) fn spawn_local(&self, manifests: &Manifests) -> Process {
        let mut command = self.local(NODE);
        command.arg("--manifests").arg(manifests.directory());
        self.spawn(command, "local.log")
    }

    /// On the API of a kubeconfig.
    pub(crate) fn spawn_local_on_api(&self, kubeconfig: &Path, node: &str) -> Process {
        let mut command = self.local(node);
        command.envs([BACKEND_ENVIRONMENT]).arg("--kubeconfig").arg(kubeconfig);
        self.spawn(command, "local.log")
    }

    fn local(&self, node: &str) -> Command {
        let mut command = self.command(&["local", "--backend", "nftables"]);
        command.args(["--node-name", node, "--cluster-cidr", CLUSTER_CIDR]);
        command.arg("--state-dir").arg(self.path("state")).arg("--conntrack-max-per-core=0");
        command
    }

    pub(crate) fn spawn_frontend(&self, manifests: &Manifests) -> Process {
        let mut command = self.command(&["frontend", "--listen", &self.frontend_address()]);
        command.arg("--manifests").arg(manifests.directory());
        self.spawn(command, "frontend.log")
    }

    /// On the API of [`Self::kubeconfig`].
    pub(crate) fn spawn_frontend_on_api(&self) -> Process {
        let mut command = self.command(&["frontend", "--listen", &self.frontend_address()]);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        self.spawn(command, "frontend-on-api.log")
    }

    /// Starts `fairlead` with these arguments.
    pub(crate) fn spawn_program(&self, arguments: &[impl AsRef<OsStr>], log: &str) -> Process {
        self.spawn(self.command(arguments), log)
    }

    /// Starts another program with these arguments and only PATH in its environment.
    pub(crate) fn spawn_other(&self, program: &Path, arguments: &[&str], log: &str) -> Process {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(arguments);
        self.spawn(command, log)
    }

    pub(crate) fn spawn_backend(&self) -> Process {
        self.spawn(self.backend(), "backend.log")
    }

    /// Starts the backend of a node whose frontend is elsewhere. `credentials`: flags.
    pub(crate) fn spawn_backend_of(&self, frontend: &str, node: &str, credentials: &[OsString]) -> Process {
        let mut command = self.backend_of(frontend, node);
        command.args(credentials);
        self.spawn(command, "backend.log")
    }

    fn backend(&self) -> Command {
        self.backend_of(&self.frontend_address(), NODE)
    }

    fn backend_of(&self, frontend: &str, node: &str) -> Command {
        let mut command = self.command(&["backend", "nftables", "--frontend", frontend]);
        command.envs([BACKEND_ENVIRONMENT]);
        command.args(["--node-name", node, "--cluster-cidr", CLUSTER_CIDR]);
        command.arg("--state-dir").arg(self.path("state")).arg("--conntrack-max-per-core=0");
        command
    }

    /// Starts the backend with the identifier of another boot.
    pub(crate) fn spawn_backend_after_reboot(&self) -> Process {
        let script = r#"echo another > "$0" && mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@""#;
        let mut command = Command::new("unshare");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs([BACKEND_ENVIRONMENT]);
        command.args(["--mount", "sh", "-c", script]);
        let backend = self.backend();
        command.arg(self.path("boot-id")).arg(backend.get_program()).args(backend.get_args());
        self.spawn(command, "backend.log")
    }

    /// Removes everything that a backend has programmed, and its state.
    pub(crate) fn clean(&self) -> Result<()> {
        let program = self.program.to_str().context("the path of the program is not UTF-8")?;
        let state = self.path("state");
        let state = state.to_str().context("the path of the state is not UTF-8")?;
        self.netns().output(program, &["cleanup", "--backend", "nftables", "--state-dir", state]);
        self.remove_state()
    }

    /// Removes the backend's state directory.
    pub(crate) fn remove_state(&self) -> Result<()> {
        fs::remove_dir_all(self.path("state")).context("remove the state")
    }

    /// Subscribes to notifications of nf_tables.
    pub(crate) fn monitor(&self) -> Result<NftMonitor> {
        self.netns().run(NftMonitor::open).context("listen for kernel notifications")
    }

    /// Calls `work` in the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns().run(work)
    }

    /// The generation of the kernel's ruleset, which each transaction increments.
    pub(crate) fn generation(&self) -> Result<u32> {
        self.netns().run(|| NftHandle::open()?.generation()).context("get the generation")
    }

    /// The node's namespace.
    pub(crate) fn netns(&self) -> &Netns {
        &self.cluster.nodes()[self.node].netns
    }

    fn frontend_address(&self) -> String {
        format!("unix:{}", self.path("frontend.sock").display())
    }

    /// `fairlead` with these arguments and an empty environment, which could contain `FAIRLEAD_*` settings.
    fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().args(arguments);
        // `FAIRLEAD_LOG=debug bench api` shows more in the logs below the temporary directory.
        command.envs(env::var_os("FAIRLEAD_LOG").map(|filter| ("FAIRLEAD_LOG", filter)));
        command
    }

    fn spawn(&self, command: Command, log: &str) -> Process {
        Process::spawn(self.netns(), command, &self.path(log))
    }
}

/// `fairlead`, beside this program, with only PATH in its environment.
pub(crate) fn program() -> Result<Command> {
    let program = env::current_exe().context("find this program")?.with_file_name("fairlead");
    ensure!(program.is_file(), "no {}: build it first", program.display());
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    Ok(command)
}

/// Waits for the end of a transaction.
pub(crate) fn commit(kernel: &mut NftMonitor, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        let notices = kernel.wait(left).context("listen for kernel notifications")?;
        if notices.iter().any(|notice| matches!(notice, NftEvent::Generation { .. })) {
            return Ok(());
        }
    }
    bail!("no commit within {within:?}")
}

/// Ends a program with SIGTERM.
pub(crate) fn stop(process: Process) -> Result<()> {
    let status = process.terminate();
    ensure!(status.success(), "a program ended with {status}");
    Ok(())
}

/// Reads the memory of a program.
pub(crate) fn memory(process: &Process) -> Result<Memory> {
    let path = Path::new("/proc").join(process.pid().to_string()).join("status");
    let [resident, peak] = kilobytes(&path, ["VmRSS", "VmHWM"])?;
    Ok(Memory { resident, peak })
}

/// The kernel's memory that it cannot reclaim, of the whole machine (`SUnreclaim` of `/proc/meminfo`), in kB.
pub(crate) fn unreclaimable() -> Result<u64> {
    let [unreclaimable] = kilobytes(Path::new("/proc/meminfo"), ["SUnreclaim"])?;
    Ok(unreclaimable)
}

/// The kernel's memory for its own tables, of the whole machine, in kB: in slabs, and large ones outside of them.
pub(crate) fn kernel_memory() -> Result<u64> {
    let [unreclaimable, mapped] = kilobytes(Path::new("/proc/meminfo"), ["SUnreclaim", "VmallocUsed"])?;
    Ok(unreclaimable + mapped)
}

/// All memory of this machine, in kB.
pub(crate) fn memory_of_machine() -> Result<u64> {
    let [memory] = kilobytes(Path::new("/proc/meminfo"), ["MemTotal"])?;
    Ok(memory)
}

/// Numbers of a file of `/proc` with a line `NAME: NUMBER kB` for each.
fn kilobytes<const N: usize>(path: &Path, names: [&str; N]) -> Result<[u64; N]> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut numbers = [0; N];
    for (number, name) in numbers.iter_mut().zip(names) {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        *number = value.with_context(|| format!("no {name} in {}", path.display()))?;
    }
    Ok(numbers)
}

/// The value of a field in a log line.
pub(crate) fn field<'a>(line: &'a str, name: &str) -> Result<&'a str> {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.with_context(|| format!("no {name} in {line:?}"))
}
