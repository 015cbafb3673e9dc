//! A kernel of its own for what the machine's does not have (IPVS, dummy devices): user-mode-linux, which is a program.
//!
//! ```text
//!   this machine  ──▶  linux.uml (a kernel in a process)  ──▶  init  ──▶  job: the program, as root
//!        ▲                  its console: the output                          │
//!        └────────────────── a directory: the status ────────────────────────┘
//! ```
//!
//! Inside, the file system is that of the machine; what is written there goes into memory and is gone with the guest.
//! Programs have the paths that they have outside, so a test can run itself inside: [`inside`].

use std::any;
use std::env;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::fork;

/// The modules that IPVS is tried with.
const IPVS: [&str; 4] = ["ip_vs", "ip_vs_rr", "dummy", "xt_set"];
const KERNEL: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
const INIT: &str = include_str!("../uml/init");
const PTRACE: &str = include_str!("../uml/ptrace.c");
/// What init prints when the program starts; what comes before is the kernel's.
const READY: &str = "fairlead-uml-ready";
/// Set inside.
const GUEST: &str = "FAIRLEAD_UML";
/// Of the guest; only what it touches is taken from the machine.
const MEMORY: &str = "mem=1024M";
/// How long a test may run inside, booting included.
const DEADLINE: Duration = Duration::from_secs(150);
/// How long the guest may take to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// What a program in a guest has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestResult {
    /// Its exit status; 128 and more when a signal has ended it.
    pub status: u8,
    /// What it has printed, both streams, line by line. The guest kernel's messages are among it.
    pub output: Vec<String>,
}

/// Runs a test in a guest. What it prints and how it ends is as if it had run here.
///
/// # Panics
/// When the test does, and when there can be no guest: such a test must not pass without.
#[track_caller]
pub fn inside<F: FnOnce()>(test: F) {
    inside_for(DEADLINE, test);
}

/// The same of a test that may run so long, booting included.
///
/// # Panics
/// As [`inside`].
#[track_caller]
pub fn inside_for<F: FnOnce()>(deadline: Duration, test: F) {
    if is_guest() {
        return test();
    }
    let this = env::current_exe().expect("the path of this program");
    let name = test_name::<F>();
    let finished = run(&this, &[name, "--exact", "--nocapture"], deadline);
    assert_passed(name, &finished);
}

/// That one test has run and passed: where no test has the name, libtest succeeds too.
#[track_caller]
fn assert_passed(name: &str, finished: &GuestResult) {
    let passed = finished.output.iter().any(|line| line.starts_with("test result: ok. 1 passed"));
    assert!(finished.status == 0 && passed, "{name} failed inside user-mode-linux: {}", finished.status);
}

/// Whether this runs in a guest.
pub fn is_guest() -> bool {
    env::var_os(GUEST).is_some()
}

/// Loads what IPVS needs in a guest, round robin with it, and other modules.
///
/// # Panics
/// When its kernel lacks one of them.
#[track_caller]
pub fn load(others: &[&str]) {
    let loaded = Command::new("modprobe").arg("-a").args(IPVS).args(others).status();
    assert!(
        loaded.is_ok_and(|status| status.success()),
        "the kernel lacks one of these modules: {} {}",
        IPVS.join(" "),
        others.join(" ")
    );
}

/// Runs a program in a guest, as root in a fresh network namespace, and prints what it prints.
///
/// # Panics
/// When there can be no guest, and when the program has not ended by the deadline, which starts with the boot.
#[track_caller]
pub fn run(program: &Path, arguments: &[&str], deadline: Duration) -> GuestResult {
    let directory = tempfile::Builder::new().prefix(&prefix()).tempdir().expect("a directory");
    let mut guest = Guest::boot(directory, program, arguments);
    let output = guest.follow(Instant::now() + deadline);
    let status = fs::read_to_string(guest.directory.path().join("status")).ok();
    match (status.and_then(|status| status.trim().parse().ok()), output) {
        (Some(status), Some(output)) => GuestResult { status, output },
        (_, output) => panic!(
            "user-mode-linux {}, its last words are above. It needs an x86-64 machine on which ptrace is allowed, {KERNEL} and the modules in \
             {MODULES}, modprobe, and the packages that ci/setup installs",
            if output.is_none() { "has not ended in time" } else { "ended before the program did" }
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
    fn boot(directory: TempDir, program: &Path, arguments: &[&str]) -> Self {
        for (path, package) in [(KERNEL, "user-mode-linux"), (MODULES, "user-mode-linux"), ("/sbin/modprobe", "kmod")] {
            assert!(Path::new(path).exists(), "{path} is missing: ci/setup installs it (package {package})");
        }
        let at = directory.path();
        write_executable(&at.join("init"), INIT);
        write_executable(&at.join("job"), &job(program, arguments));
        let preload = at.join("ptrace.so");
        compile(PTRACE, &preload);
        let mut command = Command::new(KERNEL);
        command
            .args([MEMORY, "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "con=null", "con0=null,fd:1"])
            .arg(format!("init={}", at.join("init").display()))
            .arg(format!("READY={READY}"))
            .arg(format!("uml_dir={}", at.display()))
            .env("LD_PRELOAD", &preload)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Only the output before the console, which repeats it.
            .stderr(Stdio::null());
        let mut kernel = fork::spawn(&mut command).expect("start user-mode-linux");
        let mut console = BufReader::new(kernel.stdout.take().expect("piped"));
        let (tell, lines) = mpsc::channel();
        // Ends with the console, which the kernel's helpers hold no longer than it lives.
        thread::spawn(move || {
            let mut line = Vec::new();
            while matches!(console.read_until(b'\n', &mut line), Ok(length) if length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                line.clear();
                if tell.send(text).is_err() {
                    break;
                }
            }
        });
        Self { kernel, lines, directory }
    }

    /// Prints what comes until it ends, and returns what came from the program; `None` if it has not ended by then.
    fn follow(&mut self, end: Instant) -> Option<Vec<String>> {
        let (mut output, mut ready) = (Vec::new(), false);
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line == READY => ready = true,
                Ok(line) => {
                    println!("{line}");
                    if ready {
                        output.push(line);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Some(output),
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It kills its helper processes when it is asked to end, and has no time for that when it is killed.
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

/// What the names of this process's directories begin with; each is in the command lines of its guest's processes.
fn prefix() -> String {
    format!("fairlead-uml-{}-", std::process::id())
}

/// The path of a test function as libtest knows it, from the type of a closure in it: `uml::tests::boots::{{closure}}`.
fn test_name<F>() -> &'static str {
    let path = any::type_name::<F>();
    let path = path.trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// A script that becomes the program.
fn job(program: &Path, arguments: &[&str]) -> String {
    let mut script =
        format!("#!/bin/sh\nexport {GUEST}=1 RUST_BACKTRACE=1\nexec {}", quoted(&program.display().to_string()));
    for argument in arguments {
        // Writing to a String cannot fail.
        let _ = write!(script, " {}", quoted(argument));
    }
    script.push_str(" 2>&1\n");
    script
}

/// One word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[track_caller]
fn write_executable(path: &Path, content: &str) {
    fs::write(path, content).expect("write into a directory of ours");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("change a file of ours");
}

/// Makes a shared library of a C file.
#[track_caller]
fn compile(source: &str, library: &Path) {
    let file = library.with_extension("c");
    fs::write(&file, source).expect("write into a directory of ours");
    let mut command = Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(library).arg(&file);
    let output = command.output().expect("start cc: ci/setup installs it (package gcc)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests;
