//! CPU time of processes and of their threads.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, Result, bail};
use e2e::Process;

/// The unit of CPU times in `/proc`: `USER_HZ`, which is 100 on all architectures that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The CPU time that a process has used, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage(f64);

impl Usage {
    pub(crate) fn of(process: &Process) -> Result<Self> {
        Self::read(&process.pid().to_string())
    }

    /// The CPU time of this process.
    pub(crate) fn of_this() -> Result<Self> {
        Self::read("self")
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0
    }

    /// The CPU time that the same process has used since.
    pub(crate) fn since(self, process: &Process) -> Result<f64> {
        Ok(Self::of(process)?.0 - self.0)
    }

    pub(crate) fn since_this(self) -> Result<f64> {
        Ok(Self::of_this()?.0 - self.0)
    }

    fn read(pid: &str) -> Result<Self> {
        let [own, _] = seconds(pid)?;
        Ok(Self(own))
    }
}

/// The CPU time of a process: exact, also below the ticks of [`Usage`], and with the programs that it runs.
pub(crate) struct CpuTime {
    /// By the id of the thread, with its name.
    threads: BTreeMap<String, (String, Duration)>,
    /// Of its children that run or have ended, in seconds.
    children: f64,
}

impl CpuTime {
    pub(crate) fn of(process: &Process) -> Result<Self> {
        let pid = process.pid();
        let threads = thread_times(process)?;
        let [_, mut children] = seconds(&pid.to_string())?;
        for thread in threads.keys() {
            // A thread that has ended since has no file any more; its children are those of another thread.
            let running = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
            for child in running.split_whitespace() {
                // One that has ended is in the number above, at the next reading.
                children += seconds(child).map_or(0.0, |[own, children]| own + children);
            }
        }
        Ok(Self { threads, children })
    }

    /// In seconds, since the start of the process.
    pub(crate) fn seconds(&self) -> f64 {
        let threads: Duration = self.threads.values().map(|(_, time)| time).sum();
        threads.as_secs_f64() + self.children
    }

    /// In seconds, since an earlier reading of the same process.
    pub(crate) fn since(&self, earlier: &Self) -> f64 {
        let before = |thread| earlier.threads.get(thread).map_or(Duration::ZERO, |(_, time)| *time);
        let threads: Duration =
            self.threads.iter().map(|(thread, (_, time))| time.saturating_sub(before(thread))).sum();
        threads.as_secs_f64() + (self.children - earlier.children).max(0.0)
    }
}

/// The CPU time of the threads of a process, by their ids, with their names.
pub(crate) fn thread_times(process: &Process) -> Result<BTreeMap<String, (String, Duration)>> {
    let tasks = format!("/proc/{}/task", process.pid());
    let mut times = BTreeMap::new();
    for task in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
        let task = task.with_context(|| format!("list {tasks}"))?;
        let file = |name| fs::read_to_string(task.path().join(name));
        let (Ok(name), Ok(statistics)) = (file("comm"), file("schedstat")) else {
            // The thread has ended.
            continue;
        };
        let nanoseconds = statistics.split_whitespace().next().and_then(|field| field.parse().ok());
        let time = Duration::from_nanos(nanoseconds.with_context(|| format!("no CPU time in {statistics:?}"))?);
        times.insert(task.file_name().to_string_lossy().into_owned(), (name.trim_end().to_owned(), time));
    }
    Ok(times)
}

/// The CPU time of a process, and of its children that have ended, in seconds: `utime` and `stime`, `cutime` and
/// `cstime`, the 14th to 17th field of `/proc/PID/stat`.
fn seconds(pid: &str) -> Result<[f64; 2]> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The name, in parentheses, may contain anything.
    let (_, fields) = text.rsplit_once(')').with_context(|| format!("read {path}"))?;
    let ticks: Vec<_> = fields.split_whitespace().skip(11).take(4).map(str::parse::<f64>).collect::<Result<_, _>>()?;
    let [user, system, children_user, children_system] = ticks[..] else { bail!("not enough fields in {path}") };
    Ok([user + system, children_user + children_system].map(|ticks| ticks / TICKS_PER_SECOND))
}
