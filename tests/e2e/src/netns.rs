//! Named network namespaces: created with `ip netns`, so that an operator can inspect them, and removed by their owner,
//! or by the next test run if the owner was killed.
//!
//! A name is `fl-<pid>-<number>-<what>`: unique among parallel tests, and identifies its owner.

use std::{
    fs::{self, File},
    io::Write,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    mount::{MntFlags, umount2},
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{fork, wait::eventually};

/// The directory of `ip netns`.
const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "fl";
/// The network namespace of the calling thread.
const THREAD_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// Timeout of waits for the kernel.
const DEADLINE: Duration = Duration::from_secs(10);

/// A handle of a namespace, cheap to clone. Its cluster removes the namespace.
#[derive(Clone, Debug)]
pub struct Netns {
    name: Arc<str>,
    file: Arc<File>,
}

/// The namespace that a thread has left for a while. Dropping this returns the thread to it.
struct Own(File);

/// The namespaces of one cluster. Dropping this removes them, also while a test panics.
#[derive(Debug)]
pub(crate) struct Owner {
    prefix: String,
    names: Vec<String>,
}

// === impl Netns ===

impl Netns {
    /// The name under `/run/netns`, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` in the namespace, on the calling thread, which returns to its own namespace afterwards, also when
    /// `work` panics. Threads and programs that `work` starts stay in the namespace.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _own = Own(File::open(THREAD_NAMESPACE).expect("procfs"));
        self.enter();
        work()
    }

    /// Starts a thread in the namespace; the caller joins it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let netns = self.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                netns.enter();
                work()
            })
            .expect("start a thread")
    }

    /// Runs a program in the namespace, and returns its status and output.
    #[track_caller]
    pub fn finish(&self, command: &mut Command) -> process::Output {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.set_iptables_lock(command);
        let finished = self.run(|| fork::spawn(command)).and_then(Child::wait_with_output);
        finished.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Runs a program in the namespace and returns its standard output. Panics if it fails.
    #[track_caller]
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.finish(Command::new(program).args(arguments));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?} in {}: {stderr}", self.name);
        String::from_utf8(output.stdout).expect("UTF-8 output")
    }

    /// Runs a program in the namespace with `input` as its standard input. Panics if it fails.
    #[track_caller]
    pub fn run_with_input(&self, program: &str, arguments: &[&str], input: &str) {
        let mut command = Command::new(program);
        self.set_iptables_lock(command.args(arguments));
        if let Err(error) = self.run(|| run_with_input(&mut command, input)) {
            panic!("{program} {arguments:?} in {}: {error}\n{input}", self.name);
        }
    }

    /// Runs lines of `ip` commands in one process.
    #[track_caller]
    pub fn ip(&self, script: &str) {
        self.run_with_input("ip", &["-batch", "-"], script);
    }

    /// Adds an address to a device, and waits until packets to it are received: the kernel adds the local route of a
    /// new IPv6 address later, also with `nodad`. `options`: those of `ip address add`.
    #[track_caller]
    pub fn add_address(&self, address: IpAddr, device: &str, options: &str) {
        let options = if address.is_ipv6() { format!("nodad {options}") } else { options.to_owned() };
        self.ip(&format!("address add {address} dev {device} {options}\n"));
        let family = if address.is_ipv6() { "-6" } else { "-4" };
        let address = address.to_string();
        eventually("the local route of a new address", DEADLINE, || {
            let route = self.output("ip", &[family, "route", "show", "table", "local", &address]);
            (!route.is_empty()).then_some(())
        });
    }

    /// Sets sysctls of the namespace, by their path below `/proc/sys/net`.
    pub fn sysctls(&self, values: &[(&str, &str)]) {
        self.run(|| values.iter().for_each(|(name, value)| set_sysctl(name, value)));
    }

    /// As [`sysctls`](Self::sysctls), for those that not every kernel has in each namespace.
    pub(crate) fn sysctls_if_any(&self, values: &[(&str, &str)]) {
        let exists = |name: &str| sysctl_path(name).exists();
        self.run(|| {
            values.iter().filter(|(name, _)| exists(name)).for_each(|(name, value)| set_sysctl(name, value));
        });
    }

    /// The lock file of iptables in this namespace.
    pub fn iptables_lock(&self) -> PathBuf {
        path(&self.name)
    }

    /// Sets a lock file for iptables-legacy. By default all namespaces share one, and parallel tests would wait for
    /// each other.
    pub(crate) fn set_iptables_lock<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("XTABLES_LOCKFILE", self.iptables_lock())
    }

    fn enter(&self) {
        setns(&*self.file, CloneFlags::CLONE_NEWNET).expect("enter a namespace (requires root)");
    }
}

// === impl Own ===

impl Drop for Own {
    fn drop(&mut self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).expect("return to the own namespace");
    }
}

// === impl Owner ===

impl Owner {
    /// Creates a namespace for each of `what`, with one `ip` process.
    pub(crate) fn create(what: &[String]) -> (Self, Vec<Netns>) {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}-{}-{number}-", process::id());
        let names = what.iter().map(|what| format!("{prefix}{what}")).collect::<Vec<_>>();
        // Created before the namespaces, so that a failure removes those that exist already.
        let owner = Self { prefix, names };
        let script = owner.names.iter().map(|name| format!("netns add {name}\n")).collect::<String>();
        run_with_input(Command::new("ip").args(["-batch", "-"]), &script)
            .unwrap_or_else(|error| panic!("create namespaces (requires root): {error}"));
        let namespaces = owner.names.iter().map(|name| Netns {
            name: name.as_str().into(),
            file: Arc::new(File::open(path(name)).expect("open the new namespace")),
        });
        let namespaces = namespaces.collect();
        (owner, namespaces)
    }

    /// The prefix of all names.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| remove(name));
    }
}

// === namespaces of dead processes ===

/// The names that still exist and begin with `prefix`.
pub fn leftovers(prefix: &str) -> Vec<String> {
    // No directory: no namespace was ever created.
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

/// Removes the namespaces of killed test runs, and kills the programs in them.
pub fn remove_dead_namespaces() {
    let dead = leftovers(&format!("{PREFIX}-")).into_iter().filter(|name| match owner_pid(name) {
        Some(pid) => !Path::new("/proc").join(pid.to_string()).exists(),
        None => false,
    });
    for name in dead {
        kill_inside(&name);
        remove(&name);
    }
}

fn owner_pid(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-').next()?.parse().ok()
}

/// Kills all programs in a namespace.
fn kill_inside(name: &str) {
    let Ok(namespace) = fs::metadata(path(name)) else { return };
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse::<i32>().ok()) else { continue };
        let Ok(its) = fs::metadata(entry.path().join("ns/net")) else { continue };
        if (its.dev(), its.ino()) == (namespace.dev(), namespace.ino()) {
            // An error means that it has ended meanwhile.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Removes a namespace, as `ip netns del` does; the kernel frees it when the last thread has left it. An error means
/// that another test run has removed it, or that its creation failed.
fn remove(name: &str) {
    let path = path(name);
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(name)
}

/// In the namespace of the calling thread.
fn set_sysctl(name: &str, value: &str) {
    let path = sysctl_path(name);
    fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Runs a program with `input` as its standard input. The error is its standard error.
fn run_with_input(command: &mut Command, input: &str) -> Result<(), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = fork::spawn(command).map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().expect("piped");
    // A program that stops reading reports the reason on its standard error.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
