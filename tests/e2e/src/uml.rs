//! A guest kernel with features that the host's may lack (IPVS, dummy devices): user-mode-linux, a kernel in a process.
//!
//! ```text
//!   host  ──▶  linux.uml  ──▶  init  ──▶  job: the program, as root
//!    ▲           its console: the output         │
//!    └────────── a directory: the status ────────┘
//! ```
//!
//! The guest has the file system of the host; writes stay in its memory. Programs have the same paths as on the host,
//! so a test can run itself in a guest: [`inside`].

use std::{
    any, env,
    fmt::Write as _,
    fs::{self, Permissions},
    io::{self, BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{fork, pace::patience};

/// The modules for tests of IPVS.
const IPVS: [&str; 4] = ["ip_vs", "ip_vs_rr", "dummy", "xt_set"];
/// The size of the conntrack table, which is that of a node. The guest's own, 8,192, is full after 9,000 connections:
/// closed ones stay in it for two minutes.
const CONNTRACK_MAX: (&str, &str) = ("/proc/sys/net/netfilter/nf_conntrack_max", "131072");
const KERNEL: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
const INIT: &str = include_str!("../uml/init");
const PTRACE: &str = include_str!("../uml/ptrace.c");
/// The line that init prints before the program starts, after messages of the kernel.
const READY: &str = "fairlead-uml-ready";
/// An environment variable of programs in a guest: the directory that the guest shares with the host.
const GUEST: &str = "FAIRLEAD_UML";
/// The name of [`shared_file`].
const SHARED_FILE: &str = "shared";
/// Environment variables of the host that programs in a guest have too.
const INHERITED: [&str; 5] = ["CASES", "FAIRLEAD_PREVIOUS", "FAULT", "FAULTS", "MUTANT"];
/// The guest's memory. The host allocates only the pages that the guest uses.
const MEMORY: &str = "mem=1024M";
/// Timeout of a test in a guest, including the boot. Tests take one minute on an idle machine.
const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// Timeout of SIGTERM, after which SIGKILL follows.
const GRACE: Duration = Duration::from_secs(5);

/// The result of a program in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestResult {
    /// Its exit status; 128 plus the number of the signal that has ended it.
    pub status: u8,
    /// The lines of both its streams, mixed with messages of the guest kernel.
    pub output: Vec<String>,
    /// What it wrote to [`shared_file`].
    pub shared: Option<String>,
}

/// Runs a test in a guest, with the same output and result as on the host.
///
/// # Panics
/// If the test panics, or if no guest can be started.
#[track_caller]
pub fn inside<F: FnOnce()>(test: F) {
    inside_for(DEADLINE, test);
}

/// Runs a test in a guest that is booted with additional parameters of the kernel.
///
/// # Panics
/// As [`inside`].
#[track_caller]
pub fn inside_with<F: FnOnce()>(parameters: &[&str], test: F) {
    inside_guest(parameters, DEADLINE, test);
}

/// Runs a test in a guest, with another timeout.
///
/// # Panics
/// As [`inside`].
#[track_caller]
pub fn inside_for<F: FnOnce()>(deadline: Duration, test: F) {
    inside_guest(&[], deadline, test);
}

#[track_caller]
fn inside_guest<F: FnOnce()>(parameters: &[&str], deadline: Duration, test: F) {
    if is_guest() {
        return test();
    }
    let this = env::current_exe().expect("the path of this program");
    let name = test_name::<F>();
    let arguments = [name, "--exact", "--include-ignored", "--nocapture"];
    let finished = run_with(parameters, &this, &arguments, deadline);
    assert_passed(name, &finished);
}

/// Checks that one test has run and passed: libtest also succeeds if there is no test of this name.
#[track_caller]
fn assert_passed(name: &str, finished: &GuestResult) {
    let passed = finished.output.iter().any(|line| line.starts_with("test result: ok. 1 passed"));
    assert!(finished.status == 0 && passed, "{name} failed inside user-mode-linux: {}", finished.status);
}

/// Whether this process runs in a guest.
pub fn is_guest() -> bool {
    env::var_os(GUEST).is_some()
}

/// The only file that the host sees when a program in a guest writes it; `None` on the host.
pub fn shared_file() -> Option<PathBuf> {
    env::var_os(GUEST).map(|directory| Path::new(&directory).join(SHARED_FILE))
}

/// Loads the modules of IPVS with its scheduler `rr`, and others, and enlarges the conntrack table.
///
/// # Panics
/// If the kernel lacks one of them.
#[track_caller]
pub fn load(others: &[&str]) {
    let loaded = Command::new("modprobe").arg("-a").args(IPVS).args(others).status();
    assert!(
        loaded.is_ok_and(|status| status.success()),
        "the kernel lacks one of these modules: {} {}",
        IPVS.join(" "),
        others.join(" ")
    );
    fs::write(CONNTRACK_MAX.0, CONNTRACK_MAX.1).expect("enlarge the conntrack table");
}

/// Runs a program in a guest, as root in a new network namespace, and prints its output.
///
/// # Panics
/// If no guest can be started, or the program has not ended by the deadline, which starts with the boot.
#[track_caller]
pub fn run(program: &Path, arguments: &[&str], deadline: Duration) -> GuestResult {
    run_with(&[], program, arguments, deadline)
}

#[track_caller]
fn run_with(parameters: &[&str], program: &Path, arguments: &[&str], deadline: Duration) -> GuestResult {
    let directory = tempfile::Builder::new().prefix(&prefix()).tempdir().expect("a directory");
    let mut guest = Guest::boot(directory, parameters, program, arguments);
    let output = guest.follow(Instant::now() + patience(deadline));
    let read = |name| fs::read_to_string(guest.directory.path().join(name)).ok();
    let status = read("status");
    let shared = read(SHARED_FILE);
    match (status.and_then(|status| status.trim().parse().ok()), output) {
        (Some(status), Some(output)) => GuestResult { status, output, shared },
        (_, output) => panic!(
            "user-mode-linux {}; the end of its output is above. It requires an x86-64 machine that allows ptrace, \
             {KERNEL}, the modules in {MODULES} and modprobe, which .ci/setup installs",
            if output.is_none() { "did not end in time" } else { "ended before the program" }
        ),
    }
}

/// A running guest. Dropping it ends it.
#[derive(Debug)]
struct Guest {
    kernel: Child,
    lines: Receiver<String>,
    directory: TempDir,
}

// === impl Guest ===

impl Guest {
    #[track_caller]
    fn boot(directory: TempDir, parameters: &[&str], program: &Path, arguments: &[&str]) -> Self {
        for (path, package) in [(KERNEL, "user-mode-linux"), (MODULES, "user-mode-linux"), ("/sbin/modprobe", "kmod")] {
            assert!(Path::new(path).exists(), "{path} is missing: .ci/setup installs it (package {package})");
        }
        let at = directory.path();
        write_executable(&at.join("init"), INIT);
        write_executable(&at.join("job"), &job(at, program, arguments));
        let preload = at.join("ptrace.so");
        compile(PTRACE, &preload);
        let mut command = Command::new(KERNEL);
        command
            .args([MEMORY, "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "con=null", "con0=null,fd:1"])
            .args(parameters)
            .arg(format!("init={}", at.join("init").display()))
            .arg(format!("READY={READY}"))
            .arg(format!("uml_dir={}", at.display()))
            .env("LD_PRELOAD", &preload)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Messages before the console exists, which then repeats them.
            .stderr(Stdio::null());
        let mut kernel = on_one_cpu(|| fork::spawn(&mut command)).expect("start user-mode-linux");
        let mut console = BufReader::new(kernel.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        // Ends with the console, which helper processes close when the kernel ends.
        thread::spawn(move || {
            let mut line = Vec::new();
            while matches!(console.read_until(b'\n', &mut line), Ok(length) if length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Self { kernel, lines, directory }
    }

    /// Prints the output of the program until the console ends, and returns it; `None` after `end`. Messages of the
    /// kernel before the program are printed only if it does not start.
    fn follow(&mut self, end: Instant) -> Option<Vec<String>> {
        let mut boot_messages = Vec::new();
        let mut output = Vec::new();
        let mut is_ready = false;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line == READY => is_ready = true,
                Ok(line) if !is_ready => boot_messages.push(line),
                Ok(line) => {
                    println!("{line}");
                    output.push(line);
                }
                Err(error) => {
                    if !is_ready {
                        boot_messages.iter().for_each(|line| println!("{line}"));
                    }
                    return if error == RecvTimeoutError::Disconnected { Some(output) } else { None };
                }
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It kills its helper processes on SIGTERM; on SIGKILL it cannot.
        let pid = Pid::from_raw(self.kernel.id().cast_signed());
        let end = Instant::now() + GRACE;
        if matches!(self.kernel.try_wait(), Ok(None)) {
            let _ = kill(pid, Signal::SIGTERM);
            while self.lines.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
            let _ = self.kernel.kill();
        }
        let _ = self.kernel.wait();
    }
}

/// Starts a program, all threads and children of which stay on one CPU. The kernel of a guest and its processes run by
/// turns, at each system call; on different CPUs, each turn would wake a CPU that rests.
fn on_one_cpu(start: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let cpus: Vec<_> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true)).collect();
    // Guests beside each other have different slots in their group of tests.
    let slot = env::var("NEXTEST_TEST_GROUP_SLOT").ok().and_then(|slot| slot.parse().ok());
    let slot: usize = slot.unwrap_or(std::process::id() as usize);
    let mut one = CpuSet::new();
    one.set(cpus[slot % cpus.len()])?;
    sched_setaffinity(this_thread, &one)?;
    let child = start();
    sched_setaffinity(this_thread, &allowed)?;
    child
}

/// The prefix of the directories of this process, which the command lines of its guests' processes contain.
fn prefix() -> String {
    format!("fairlead-uml-{}-", std::process::id())
}

/// The path of a test function as libtest knows it, from the type of a closure in it: `uml::tests::boots::{{closure}}`.
fn test_name<F>() -> &'static str {
    let path = any::type_name::<F>();
    let path = path.trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// A shell script that executes the program.
fn job(shared: &Path, program: &Path, arguments: &[&str]) -> String {
    let shared = quoted(&shared.display().to_string());
    let mut script = format!("#!/bin/sh\nexport {GUEST}={shared} RUST_BACKTRACE=1\n");
    // Writing to a String cannot fail.
    for (name, value) in INHERITED.iter().filter_map(|name| Some((name, env::var(name).ok()?))) {
        let _ = writeln!(script, "export {name}={}", quoted(&value));
    }
    let _ = write!(script, "exec {}", quoted(&program.display().to_string()));
    for argument in arguments {
        let _ = write!(script, " {}", quoted(argument));
    }
    script.push_str(" 2>&1\n");
    script
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[track_caller]
fn write_executable(path: &Path, content: &str) {
    fs::write(path, content).expect("write a file");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("make a file executable");
}

/// Compiles C source to a shared library.
#[track_caller]
fn compile(source: &str, library: &Path) {
    let file = library.with_extension("c");
    fs::write(&file, source).expect("write a file");
    let mut command = Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(library).arg(&file);
    let output = command.output().expect("start cc: .ci/setup installs it (package gcc)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests;
