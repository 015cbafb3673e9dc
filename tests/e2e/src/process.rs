//! A program in a namespace, whose output goes to a file and can be waited for line by line. It ends with the test.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use crate::{fork, netns::Netns, pace::patience};

/// Timeout of SIGTERM, after which SIGKILL follows.
const GRACE: Duration = Duration::from_secs(10);
/// Lines of output in the message of a failed expectation.
const SHOWN_LINES: usize = 40;

/// A running (or ended) program. Dropping it kills it. Deadlines are those of a quiet machine, which [`patience`]
/// extends.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    shared: Arc<Shared>,
    waiter: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<ProcessState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ProcessState {
    lines: Vec<String>,
    log: File,
    /// How many of standard output and standard error are open.
    open_pipes: u8,
    exited: Option<ExitStatus>,
}

// === impl Process ===

impl Process {
    /// Starts `command` in `netns`. Its output (both streams) goes to the file `log`, line by line.
    #[track_caller]
    pub fn spawn(netns: &Netns, mut command: Command, log: &Path) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        netns.set_iptables_lock(&mut command);
        // A child starts in the namespace of the thread that spawns it.
        let child = netns.run(|| fork::spawn(&mut command));
        let mut child = child.unwrap_or_else(|error| panic!("start {name}: {error}"));
        let pid = Pid::from_raw(child.id().try_into().expect("a pid"));
        let state = ProcessState {
            lines: Vec::new(),
            log: File::create(log).unwrap_or_else(|error| panic!("{}: {error}", log.display())),
            open_pipes: 2,
            exited: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        // These threads are not joined: they end with the pipes, which a grandchild may keep open.
        shared.read(child.stdout.take().expect("piped"));
        shared.read(child.stderr.take().expect("piped"));
        let waiter = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.wait(child, pid)
        });
        Self { name, pid, log: log.to_owned(), shared, waiter: Some(waiter) }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The file with its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The number of lines it has printed, from which [`Self::wait_for_line`] can start.
    pub fn mark(&self) -> usize {
        self.shared.lock().lines.len()
    }

    /// The lines it has printed since `mark`.
    pub fn lines_since(&self, mark: usize) -> Vec<String> {
        self.shared.lock().lines[mark..].to_vec()
    }

    /// Waits for a line that contains `pattern`, at `mark` or later, and returns it. Panics, with the end of the
    /// output, after the deadline or if the program closes its output without such a line.
    #[track_caller]
    pub fn wait_for_line(&self, pattern: &str, mark: usize, deadline: Duration) -> String {
        self.wait_for(&format!("{pattern:?}"), mark, deadline, |line| line.contains(pattern))
    }

    /// Waits for a line that satisfies `wanted`, as [`Self::wait_for_line`] does.
    #[track_caller]
    pub fn wait_for(&self, what: &str, mark: usize, deadline: Duration, wanted: impl Fn(&str) -> bool) -> String {
        self.find(mark, deadline, wanted).unwrap_or_else(|| {
            let state = self.shared.lock();
            let shown = state.lines[state.lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
            panic!("{} has not printed {what} within {deadline:?}; its output ends:\n{shown}", self.name)
        })
    }

    /// Waits for a line that satisfies `wanted`; `None` after the deadline, or if the program closes its output without
    /// such a line.
    pub fn find(&self, mark: usize, deadline: Duration, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let find = |state: &ProcessState| state.lines[mark..].iter().find(|line| wanted(line)).cloned();
        let state = self.shared.wait_while(deadline, |state| state.open_pipes > 0 && find(state).is_none());
        find(&state)
    }

    /// Its exit status, if it has ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        self.shared.lock().exited
    }

    /// Waits for its end; `None` if it still runs after `deadline`.
    pub fn wait(&self, deadline: Duration) -> Option<ExitStatus> {
        self.shared.wait_while(deadline, |state| state.exited.is_none()).exited
    }

    /// Sends a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        let state = self.shared.lock();
        // Under the lock under which it is reaped: until then the kernel does not reuse the pid.
        if state.exited.is_none() {
            kill(self.pid, signal).expect("signal a program that was started here");
        }
    }

    /// Sends SIGTERM and waits for its end. Panics, after SIGKILL, if it does not end.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait(GRACE).unwrap_or_else(|| {
            self.kill();
            panic!("{} did not end within {GRACE:?} of SIGTERM", self.name)
        })
    }

    /// Sends SIGKILL and waits for its end.
    pub fn kill(&self) -> ExitStatus {
        self.signal(Signal::SIGKILL);
        self.wait(GRACE).expect("SIGKILL ends a program")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(waiter) = self.waiter.take() {
            // The thread does not panic, and drop must not.
            let _ = waiter.join();
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Reads one pipe to its end.
    fn read(self: &Arc<Self>, pipe: impl Read + Send + 'static) {
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(length) if length > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                line.clear();
                let mut state = shared.lock();
                // An error, such as a full disk, is ignored: the lines are also in memory.
                let _ = writeln!(state.log, "{text}");
                state.lines.push(text);
                drop(state);
                shared.changed.notify_all();
            }
            shared.lock().open_pipes -= 1;
            shared.changed.notify_all();
        });
    }

    /// Waits for its end, and reaps it under the lock.
    fn wait(&self, mut child: Child, pid: Pid) {
        // An error is an interruption by a signal, which `child.wait` handles, or no such child, which it reports.
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        let mut state = self.lock();
        state.exited = child.wait().ok();
        drop(state);
        self.changed.notify_all();
    }

    fn wait_while(
        &self,
        deadline: Duration,
        mut condition: impl FnMut(&ProcessState) -> bool,
    ) -> MutexGuard<'_, ProcessState> {
        let waited = self.changed.wait_timeout_while(self.lock(), patience(deadline), |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
