//! The disk of a node: what is written survives the end of a process; what is synced, or written back by chance, also
//! survives the loss of power. Writes are slow, fail, and end between any two steps with their process.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backend::{Storage, StoredState};
use fastrand::Rng;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::{Instant, sleep};

/// The disk of a node with its one file. Clones share it.
#[derive(Clone)]
pub(crate) struct SimulatedDisk(Arc<Mutex<DiskState>>);

/// The disk as one process uses it: after its end, no write of it takes effect.
struct ProcessDisk {
    disk: SimulatedDisk,
    process: u64,
}

struct DiskState {
    rng: Rng,
    /// What a process finds under the name of the file.
    file: Option<Inode>,
    /// What has the name of the file on the medium.
    medium: Option<Inode>,
    faults: DiskFaults,
    /// The last time at which it had faults.
    faulty: Option<Instant>,
    /// The number of the process that may write.
    process: u64,
}

/// A file. Clones share it.
type Inode = Arc<Mutex<Content>>;

#[derive(Clone, Default)]
struct Content {
    written: Vec<u8>,
    /// What is on the medium.
    synced: Vec<u8>,
}

/// What a disk does wrong, as probabilities in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskFaults {
    pub(crate) fails: u8,
    pub(crate) stalls: u8,
}

/// A step of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Write,
    Sync,
    Rename,
}

const STEPS: [Step; 4] = [Step::Create, Step::Write, Step::Sync, Step::Rename];

impl SimulatedDisk {
    pub(crate) fn new(rng: Rng) -> Self {
        let state =
            DiskState { rng, file: None, medium: None, faults: DiskFaults::default(), faulty: None, process: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// For the process that runs now.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        let process = self.lock().process;
        Arc::new(ProcessDisk { disk: self.clone(), process })
    }

    pub(crate) fn set_faults(&self, faults: DiskFaults) {
        let mut state = self.lock();
        if state.faults != DiskFaults::default() {
            state.faulty = Some(Instant::now());
        }
        state.faults = faults;
    }

    /// Whether it has had no faults for this long.
    pub(crate) fn is_healthy_for(&self, time: Duration) -> bool {
        let state = self.lock();
        state.faults == DiskFaults::default() && state.faulty.is_none_or(|faulty| faulty.elapsed() > time)
    }

    /// What a process reads now.
    pub(crate) fn content(&self) -> Option<Vec<u8>> {
        self.lock().file.as_ref().map(|file| content(file).written.clone())
    }

    /// The process ends: writes that have begun have no further effect.
    pub(crate) fn process_ended(&self) {
        self.lock().process += 1;
    }

    /// The power fails: what was not synced is lost, except for a part that was written back.
    pub(crate) fn power_lost(&self) {
        let mut state = self.lock();
        state.process += 1;
        let DiskState { rng, file, medium, .. } = &mut *state;
        if rng.bool() {
            medium.clone_from(file);
        }
        if let Some(inode) = medium {
            let Content { written, synced } = &mut *content(inode);
            if written.starts_with(synced) {
                let kept = rng.usize(synced.len()..=written.len());
                let torn = rng.usize(synced.len()..=kept);
                *synced = written[..kept].to_vec();
                // A file whose size reached the medium before its content.
                if rng.u8(0..4) == 0 {
                    synced[torn..].fill(0);
                }
            }
            written.clone_from(synced);
        }
        file.clone_from(medium);
    }

    async fn perform(&self, process: u64, bytes: &[u8]) -> io::Result<()> {
        let (delay, failing, slow) = {
            let DiskState { rng, faults, .. } = &mut *self.lock();
            let stalls = rng.u8(0..100) < faults.stalls;
            let delay = if stalls { rng.u64(1_000_000..60_000_000) } else { rng.u64(50..5_000) };
            let failing = if rng.u8(0..100) < faults.fails { rng.choice(STEPS) } else { None };
            (delay, failing, rng.choice(STEPS))
        };
        let inode = Inode::default();
        for step in STEPS {
            sleep(Duration::from_micros(if slow == Some(step) { delay } else { 50 })).await;
            let mut state = self.lock();
            if state.process != process {
                return Err(io::Error::other("the process has ended"));
            }
            state.step(&inode, bytes, step, failing == Some(step))?;
        }
        Ok(())
    }

    fn remove(&self, process: u64) {
        let mut state = self.lock();
        if state.process == process {
            state.file = None;
            if state.rng.bool() {
                state.medium = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskState {
    fn step(&mut self, inode: &Inode, bytes: &[u8], step: Step, fails: bool) -> io::Result<()> {
        let Self { rng, file, medium, .. } = self;
        if fails {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let Content { written, synced } = &mut *content(inode);
        match step {
            Step::Create => {}
            Step::Write => {
                written.extend_from_slice(bytes);
                if rng.u8(0..4) == 0 {
                    synced.clone_from(written);
                }
            }
            Step::Sync => synced.clone_from(written),
            Step::Rename => *file = Some(inode.clone()),
        }
        if rng.u8(0..4) == 0 {
            medium.clone_from(file);
        }
        Ok(())
    }
}

fn content(inode: &Inode) -> MutexGuard<'_, Content> {
    inode.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for ProcessDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDisk")
    }
}

impl Storage for ProcessDisk {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let disk = self.disk.clone();
        async move {
            let delay = disk.lock().rng.u64(50..5_000);
            sleep(Duration::from_micros(delay)).await;
            disk.content().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        .boxed()
    }

    fn replace(&self, stored: StoredState) -> BoxFuture<'static, io::Result<usize>> {
        let (disk, process) = (self.disk.clone(), self.process);
        async move {
            let bytes = stored.encode();
            let result = disk.perform(process, &bytes).await;
            if result.is_err() {
                disk.remove(process);
            }
            result.map(|()| bytes.len())
        }
        .boxed()
    }
}
