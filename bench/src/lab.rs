//! A node's namespace, the programs in it, and what can be seen of both from outside: log lines, memory, commits.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{Cluster, Netns, Process};
use netlink::nft::{NftEvent, NftHandle, NftMonitor};
use tempfile::TempDir;

use crate::manifests::{CLUSTER_CIDR, Manifests, NODE};

/// How long anything may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A namespace, and a directory for everything that is written.
pub(crate) struct Lab {
    cluster: Cluster,
    program: PathBuf,
    directory: TempDir,
}

/// A program's memory, in kB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Now (`VmRSS`).
    pub(crate) resident: u64,
    /// At its most so far (`VmHWM`).
    pub(crate) peak: u64,
}

impl Lab {
    pub(crate) fn new() -> Result<Self> {
        let program = env::current_exe().context("find this program")?.with_file_name("fairlead");
        ensure!(program.is_file(), "no {}: build it first", program.display());
        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let cluster = Cluster::builder().nodes(1).pods_per_node(0).ports(&[]).start();
        Ok(Self { cluster, program, directory })
    }

    /// A directory of this name, in the lab's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn spawn_local(&self, manifests: &Manifests) -> Process {
        let directory = manifests.directory();
        let mut command = self.command(&["local", "--backend", "nftables"]);
        command.arg("--manifests").arg(directory).args(["--node-name", NODE, "--cluster-cidr", CLUSTER_CIDR]);
        command.arg("--state-dir").arg(self.path("state")).arg("--conntrack-max-per-core=0");
        self.spawn(command, "local.log")
    }

    pub(crate) fn spawn_frontend(&self, manifests: &Manifests) -> Process {
        let mut command = self.command(&["frontend", "--listen", &self.address()]);
        command.arg("--manifests").arg(manifests.directory());
        self.spawn(command, "frontend.log")
    }

    pub(crate) fn spawn_frontend_on_api(&self, kubeconfig: &Path) -> Process {
        let mut command = self.command(&["frontend", "--listen", &self.address()]);
        command.arg("--kubeconfig").arg(kubeconfig);
        self.spawn(command, "frontend-on-api.log")
    }

    /// Starts the program with just these arguments.
    pub(crate) fn spawn_program(&self, arguments: &[&str], log: &str) -> Process {
        self.spawn(self.command(arguments), log)
    }

    /// Starts another program, with just these arguments and the paths of system tools.
    pub(crate) fn spawn_other(&self, program: &Path, arguments: &[&str], log: &str) -> Process {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(arguments);
        self.spawn(command, log)
    }

    pub(crate) fn spawn_backend(&self) -> Process {
        let mut command = self.command(&["backend", "nftables", "--frontend", &self.address()]);
        command.args(["--node-name", NODE, "--cluster-cidr", CLUSTER_CIDR]);
        command.arg("--state-dir").arg(self.path("state")).arg("--conntrack-max-per-core=0");
        self.spawn(command, "backend.log")
    }

    /// Takes away everything that programs left, in the kernel and on disk.
    pub(crate) fn clean(&self) -> Result<()> {
        let program = self.program.to_str().context("the path of the program is not UTF-8")?;
        let state = self.path("state");
        let state = state.to_str().context("the path of the state is not UTF-8")?;
        self.netns().output(program, &["cleanup", "--backend", "nftables", "--state-dir", state]);
        self.forget_state()
    }

    /// Takes the agent's state file away.
    pub(crate) fn forget_state(&self) -> Result<()> {
        fs::remove_dir_all(self.path("state")).context("remove the state")
    }

    /// Listens to the kernel from now on.
    pub(crate) fn monitor(&self) -> Result<NftMonitor> {
        self.netns().run(NftMonitor::open).context("listen to the kernel")
    }

    /// Does something in the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns().run(work)
    }

    /// Which transaction the kernel is at.
    pub(crate) fn generation(&self) -> Result<u32> {
        self.netns().run(|| NftHandle::open()?.generation()).context("ask for the generation")
    }

    /// The node's namespace.
    pub(crate) fn netns(&self) -> &Netns {
        &self.cluster.node('a').netns
    }

    fn address(&self) -> String {
        format!("unix:{}", self.path("frontend.sock").display())
    }

    /// With nothing but its arguments: the environment may say otherwise.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().args(arguments);
        command
    }

    fn spawn(&self, command: Command, log: &str) -> Process {
        Process::spawn(self.netns(), command, &self.path(log))
    }
}

/// Waits for the end of a transaction.
pub(crate) fn commit(kernel: &mut NftMonitor, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        let notices = kernel.wait(left).context("listen to the kernel")?;
        if notices.iter().any(|notice| matches!(notice, NftEvent::Generation { .. })) {
            return Ok(());
        }
    }
    bail!("no commit within {within:?}")
}

/// Ends a program as an operator would.
pub(crate) fn stop(process: Process) -> Result<()> {
    let status = process.terminate();
    ensure!(status.success(), "a program ended with {status}");
    Ok(())
}

/// A program's memory now.
pub(crate) fn memory(process: &Process) -> Result<Memory> {
    let path = Path::new("/proc").join(process.pid().to_string()).join("status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim_start_matches(':').trim().strip_suffix(" kB"));
        number.and_then(|number| number.parse().ok()).with_context(|| format!("no {name} in {}", path.display()))
    };
    Ok(Memory { resident: kilobytes("VmRSS")?, peak: kilobytes("VmHWM")? })
}

/// The value of a field in a line of a log.
pub(crate) fn field<'a>(line: &'a str, name: &str) -> Result<&'a str> {
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.with_context(|| format!("no {name} in {line:?}"))
}
