//! Faults of a program at one of its writes to the kernel: it is killed before, halfway through or after the write, or
//! the write fails. Netlink messages are intercepted by `strace`, runs of `iptables-restore` by a script in the PATH.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{netns::Netns, pace::patience, process::Process, wait::eventually};

/// Attempts of `strace` to attach to a program, and the timeout of each.
const ATTEMPTS: usize = 20;
const ATTACHED: Duration = Duration::from_secs(60);

/// What `strace` writes after a call that has failed for it.
const INJECTED: &str = "(INJECTED)";
/// Between two looks at what it has written.
const POLL: Duration = Duration::from_millis(10);

/// A fault at a write to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Killed before a netlink message is sent, which may be a transaction of many messages.
    KilledBeforeMessage,
    /// The kernel does not take a netlink message and returns this error, such as `ENOBUFS`.
    MessageFails(&'static str),
    /// The kernel returns this error instead of an answer.
    AnswerFails(&'static str),
    /// Killed before `iptables-restore` begins.
    KilledBeforeRestore,
    /// Killed when `iptables-restore` has read half of its input.
    KilledHalfway,
    /// Killed when `iptables-restore` has ended, before its result is read.
    KilledAfterRestore,
    /// `iptables-restore` is killed, and has done nothing.
    RestoreKilled,
    /// `iptables-restore` fails with this message, and has done nothing.
    RestoreFails(&'static str),
}

/// A [`Fault`] at the write with this number, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPoint {
    /// What happens.
    pub fault: Fault,
    /// The number of the write. Netlink messages are counted for each thread by itself; the first thread that reaches
    /// it is the only one.
    pub number: u32,
}

/// The faults of the programs that use this directory: the record of `strace`, and the scripts' files.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    directory: PathBuf,
}

// === impl Fault ===

impl Fault {
    /// Whether it ends the program.
    pub(crate) fn kills(self) -> bool {
        match self {
            Self::KilledBeforeMessage | Self::KilledBeforeRestore | Self::KilledHalfway | Self::KilledAfterRestore => {
                true
            }
            Self::MessageFails(_) | Self::AnswerFails(_) | Self::RestoreKilled | Self::RestoreFails(_) => false,
        }
    }
}

// === impl Faults ===

impl Faults {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// A command that runs `command` until the point is reached.
    #[track_caller]
    pub(crate) fn inject(&self, point: FaultPoint, command: Command) -> Command {
        let Some(mut strace) = self.strace(point) else {
            self.prepare_scripts(point);
            return command;
        };
        // The tracer is a grandchild, so that the process is the program.
        strace.args(["-D", "-q"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => strace.env(name, value),
                None => strace.env_remove(name),
            };
        }
        strace
    }

    /// Lets a running program reach the point; returns the tracer, if there is one.
    #[track_caller]
    pub(crate) fn inject_running(&self, point: FaultPoint, program: &Process, netns: &Netns) -> Option<Process> {
        if self.strace(point).is_none() {
            self.prepare_scripts(point);
        }
        let pid = program.pid().to_string();
        for _ in 0..ATTEMPTS {
            let mut strace = self.strace(point)?;
            strace.args(["-p", &pid]);
            let tracer = Process::spawn(netns, strace, &self.directory.join("tracer.log"));
            // It fails if a thread ends meanwhile.
            if tracer.find(0, ATTACHED, |line| line.contains("attached")).is_some() {
                return Some(tracer);
            }
        }
        panic!("strace cannot attach to process {pid}");
    }

    /// Waits for a line of the program, as [`Process::find`] does, and removes a fault of `strace` once it has
    /// happened: `strace` counts the calls of each thread, so that every one would run into it, and new ones again.
    #[track_caller]
    pub(crate) fn find(
        &self,
        program: &Process,
        mark: usize,
        deadline: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let begun = Instant::now();
        while begun.elapsed() < patience(deadline) && program.exited().is_none() && !self.has_failed_a_call() {
            if let Some(line) = program.find(mark, POLL, &wanted) {
                return Some(line);
            }
        }
        detach(program);
        program.find(mark, deadline, wanted)
    }

    /// Whether `strace` has let a call fail.
    fn has_failed_a_call(&self) -> bool {
        fs::read_to_string(self.record()).is_ok_and(|record| record.contains(INJECTED))
    }

    /// Whether the point was reached. Removes the fault, of this program if it still runs: threads that are started
    /// later are not affected. `attached`: what [`Self::inject_running`] returned.
    #[track_caller]
    pub(crate) fn finish(&self, program: &Process, attached: Option<Process>) -> bool {
        detach(program);
        // Its record is complete then.
        if let Some(tracer) = attached {
            assert!(tracer.wait(ATTACHED).is_some(), "strace has not ended");
        }
        let record = fs::read_to_string(self.record()).unwrap_or_default();
        let is_hit = fs::read_to_string(self.directory.join("left")).is_ok_and(|left| left.trim() == "0");
        for file in [self.record(), self.directory.join("fault"), self.directory.join("left")] {
            let _ = fs::remove_file(file);
        }
        is_hit || record.contains("killed by SIGKILL") || record.contains(INJECTED)
    }

    fn record(&self) -> PathBuf {
        self.directory.join("trace")
    }

    /// `strace` for faults of netlink messages. The lines that it records are those of the intercepted calls.
    #[track_caller]
    fn strace(&self, FaultPoint { fault, number }: FaultPoint) -> Option<Command> {
        let (call, injected) = match fault {
            Fault::KilledBeforeMessage => ("sendmsg", "signal=SIGKILL".to_owned()),
            Fault::MessageFails(errno) => ("sendmsg", format!("error={errno}")),
            Fault::AnswerFails(errno) => ("recvfrom", format!("error={errno}")),
            _ => return None,
        };
        fs::create_dir_all(&self.directory).expect("a directory");
        let mut strace = Command::new("strace");
        // It ends at SIGTERM, follows threads, and leaves the programs alone that are run.
        strace.args(["-I1", "-f", "-b", "execve", "-s", "0", "-e", &format!("trace={call}"), "-e"]);
        strace.arg(format!("inject={call}:{injected}:when={number}")).arg("-o").arg(self.record());
        Some(strace)
    }

    /// Writes the files that the script of `iptables-restore` reads.
    #[track_caller]
    fn prepare_scripts(&self, FaultPoint { fault, number }: FaultPoint) {
        let script = match fault {
            Fault::KilledBeforeRestore => "kill -9 $PPID; exit 1\n".to_owned(),
            Fault::KilledHalfway => HALFWAY.to_owned(),
            Fault::KilledAfterRestore => "\"$tool\" \"$@\"; kill -9 $PPID; exit 1\n".to_owned(),
            Fault::RestoreKilled => "cat >/dev/null; kill -9 $$\n".to_owned(),
            Fault::RestoreFails(message) => {
                format!("cat >/dev/null; echo \"$tool: line 1 failed: {message}.\" >&2; exit 1\n")
            }
            Fault::KilledBeforeMessage | Fault::MessageFails(_) | Fault::AnswerFails(_) => {
                unreachable!("strace injects it")
            }
        };
        write(&self.directory.join("left"), &format!("{number}\n"));
        write(&self.directory.join("fault"), &script);
    }
}

/// Ends the tracer of a program, if it has one.
#[track_caller]
fn detach(program: &Process) {
    if let Some(pid) = tracer(program) {
        let _ = kill(pid, Signal::SIGTERM);
        eventually("the tracer detaches", ATTACHED, || tracer(program).is_none().then_some(()));
    }
}

/// The process that traces a program.
fn tracer(program: &Process) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).ok()?;
    let pid = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    (pid != 0).then(|| Pid::from_raw(pid))
}

/// The first half of the input reaches the program, without the COMMIT of its last table.
const HALFWAY: &str = "\
cat >\"$here/input\"
head -n $(($(wc -l <\"$here/input\") / 2)) \"$here/input\" | \"$tool\" \"$@\"
kill -9 $PPID
exit 1
";

#[track_caller]
fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a file in a directory")).expect("a directory");
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
