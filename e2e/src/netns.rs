//! Named network namespaces: created with `ip netns` so that people can inspect them, entered by threads, removed by
//! their owner, or by the next run if the owner was killed.
//!
//! A name is `fl-<pid>-<number>-<what>`: unique among parallel tests, and identifies its owner.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fork;

/// Where `ip netns` keeps its names.
const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "fl";

/// A handle of a namespace; cheap to clone. The namespace itself belongs to its cluster and loses its name with it.
#[derive(Clone, Debug)]
pub struct Netns {
    name: Arc<str>,
    file: Arc<File>,
}

/// The names of one cluster, removed on drop, also while a test panics.
#[derive(Debug)]
pub(crate) struct Owner {
    prefix: String,
    names: Vec<String>,
}

// === impl Netns ===

impl Netns {
    /// The name under `/run/netns`, for `ip netns exec` by hand.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread of its own inside the namespace. A panic in it goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter();
                    work()
                })
                .join()
        });
        inside.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// Starts a thread inside the namespace; the caller joins it.
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

    /// Runs a program inside the namespace to its end, however that is.
    #[track_caller]
    pub(crate) fn finish(&self, command: &mut Command) -> process::Output {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.lock_own(command);
        let finished = self.run(|| fork::spawn(command)).and_then(Child::wait_with_output);
        finished.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Runs a program inside the namespace to its end and returns what it printed; panics if it fails.
    #[track_caller]
    pub fn output(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.finish(Command::new(program).args(arguments));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?} in {}: {stderr}", self.name);
        String::from_utf8(output.stdout).expect("UTF-8 output")
    }

    /// Runs a program that reads `input`, as [`Self::output`].
    #[track_caller]
    pub fn run_with_input(&self, program: &str, arguments: &[&str], input: &str) {
        let mut command = Command::new(program);
        self.lock_own(command.args(arguments));
        let fed = self.run(|| feed(&mut command, input));
        if let Err(error) = fed {
            panic!("{program} {arguments:?} in {}: {error}\n{input}", self.name);
        }
    }

    /// Runs lines of `ip` commands in one process.
    #[track_caller]
    pub fn ip(&self, script: &str) {
        self.run_with_input("ip", &["-batch", "-"], script);
    }

    /// Sets sysctls of the namespace, by their path below `/proc/sys/net`.
    pub fn sysctls(&self, values: &[(&str, &str)]) {
        self.run(|| {
            for (name, value) in values {
                let path = Path::new("/proc/sys/net").join(name);
                fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
        });
    }

    /// The lock file of iptables in this namespace.
    pub fn iptables_lock(&self) -> PathBuf {
        path(&self.name)
    }

    /// Rules of iptables-legacy belong to the namespace, but its lock file to the machine: without a lock file for each
    /// namespace, parallel tests would wait for each other.
    pub(crate) fn lock_own<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("XTABLES_LOCKFILE", self.iptables_lock())
    }

    fn enter(&self) {
        setns(&*self.file, CloneFlags::CLONE_NEWNET).expect("enter a namespace (needs root)");
    }
}

// === impl Owner ===

impl Owner {
    /// Makes a namespace for each of `what`, in one process.
    pub(crate) fn create(what: &[String]) -> (Self, Vec<Netns>) {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}-{}-{number}-", process::id());
        let names = what.iter().map(|what| format!("{prefix}{what}")).collect::<Vec<_>>();
        // Before the namespaces are, so that a failure half-way removes those that were made.
        let owner = Self { prefix, names };
        let script = owner.names.iter().map(|name| format!("netns add {name}\n")).collect::<String>();
        feed(Command::new("ip").args(["-batch", "-"]), &script)
            .unwrap_or_else(|error| panic!("make namespaces (needs root): {error}"));
        let namespaces = owner.names.iter().map(|name| Netns {
            name: name.as_str().into(),
            file: Arc::new(File::open(path(name)).expect("open the namespace just made")),
        });
        let namespaces = namespaces.collect();
        (owner, namespaces)
    }

    /// What all the names begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| remove(name));
    }
}

// === namespaces of dead runs ===

/// The names that still exist and begin with `prefix`.
pub fn leftovers(prefix: &str) -> Vec<String> {
    // No directory: no namespace was ever created.
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

/// Removes the namespaces of runs that were killed, and kills the programs that were left in them.
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

/// Kills what runs in a namespace whose owner is dead. A process that ends meanwhile is as good.
fn kill_inside(name: &str) {
    let Ok(namespace) = fs::metadata(path(name)) else { return };
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for entry in processes.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse::<i32>().ok()) else { continue };
        let Ok(theirs) = fs::metadata(entry.path().join("ns/net")) else { continue };
        if (theirs.dev(), theirs.ino()) == (namespace.dev(), namespace.ino()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Takes the name away, as `ip netns del` does; the kernel frees the namespace when the last thread has left it. Errors
/// mean that it is gone already: another run removed it, or its creation failed.
fn remove(name: &str) {
    let path = path(name);
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Runs `command` to its end with `input` as its standard input. The error is what it printed.
fn feed(command: &mut Command, input: &str) -> Result<(), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = fork::spawn(command).map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().expect("piped");
    // A program that stopped reading reports why on its standard error.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
