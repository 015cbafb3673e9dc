//! The disk of a node: what is written survives the end of a process; what is synced, or written back by chance, also
//! survives the loss of power. Writes are slow, fail, and end between any two steps with their process.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backend::{FileStep, FileWrite, Storage, WriteQueue};
use fastrand::Rng;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::{Instant, sleep, timeout};

/// The disk of a node with its one file. Clones share it.
#[derive(Clone)]
pub(crate) struct SimulatedDisk(Arc<Mutex<DiskState>>);

struct DiskState {
    rng: Rng,
    /// What a process finds under the name of the file, and under that of its successor.
    file: Option<Inode>,
    successor: Option<Inode>,
    /// What has the name of the file on the medium.
    medium: Option<Inode>,
    faults: DiskFaults,
    /// The last time at which it had faults.
    faulty: Option<Instant>,
    /// The number of the process that may write: a write of an earlier one does not take effect.
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

impl SimulatedDisk {
    pub(crate) fn new(rng: Rng) -> Self {
        let (file, successor, medium) = (None, None, None);
        let state = DiskState { rng, file, successor, medium, faults: DiskFaults::default(), faulty: None, process: 0 };
        Self(Arc::new(Mutex::new(state)))
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
        let DiskState { rng, file, successor, medium, .. } = &mut *state;
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
        *successor = None;
        file.clone_from(medium);
    }

    async fn perform(&self, process: u64, opened: &mut Option<Inode>, write: FileWrite) -> io::Result<()> {
        let steps = write.steps();
        let (delay, failing) = {
            let DiskState { rng, faults, .. } = &mut *self.lock();
            let stalls = rng.u8(0..100) < faults.stalls;
            let delay = if stalls { rng.u64(1_000_000..60_000_000) } else { rng.u64(50..5_000) };
            (delay, (rng.u8(0..100) < faults.fails).then(|| rng.usize(..steps.len())))
        };
        let slow = { self.lock().rng.usize(..steps.len()) };
        for (number, step) in steps.into_iter().enumerate() {
            sleep(Duration::from_micros(if number == slow { delay } else { 50 })).await;
            let mut state = self.lock();
            if state.process != process {
                return Err(io::Error::other("the process has ended"));
            }
            state.step(opened, step, failing == Some(number))?;
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
    fn step(&mut self, opened: &mut Option<Inode>, step: FileStep, fails: bool) -> io::Result<()> {
        let Self { rng, file, successor, medium, .. } = self;
        let error = || io::Error::from(io::ErrorKind::StorageFull);
        let open = |opened: &Option<Inode>| opened.clone().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        match step {
            FileStep::Write(bytes) => {
                let inode = open(opened)?;
                let Content { written, synced } = &mut *content(&inode);
                let length = if fails { rng.usize(0..=bytes.len()) } else { bytes.len() };
                written.extend_from_slice(&bytes[..length]);
                if fails {
                    return Err(error());
                }
                if rng.u8(0..4) == 0 {
                    synced.clone_from(written);
                }
            }
            _ if fails => return Err(error()),
            FileStep::Open => *opened = Some(open(file)?),
            FileStep::Truncate(length) => {
                content(&open(opened)?).written.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            }
            FileStep::CreateSuccessor => {
                let inode = Inode::default();
                *successor = Some(inode.clone());
                *opened = Some(inode);
            }
            FileStep::Sync => {
                let inode = open(opened)?;
                let Content { written, synced } = &mut *content(&inode);
                synced.clone_from(written);
            }
            FileStep::RenameSuccessor => *file = Some(open(successor)?),
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

impl fmt::Debug for SimulatedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedDisk")
    }
}

impl Storage for SimulatedDisk {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let disk = self.clone();
        async move {
            let delay = disk.lock().rng.u64(50..5_000);
            sleep(Duration::from_micros(delay)).await;
            disk.content().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        .boxed()
    }

    fn serve(&self, queue: WriteQueue) -> io::Result<()> {
        let disk = self.clone();
        let process = disk.lock().process;
        tokio::spawn(async move {
            let mut opened = None;
            while let Some(write) = queue.next().await {
                let result = disk.perform(process, &mut opened, write).await;
                if result.is_err() {
                    opened = None;
                    disk.remove(process);
                }
                queue.finished(result);
            }
        });
        Ok(())
    }

    fn wait(&self, queue: WriteQueue, limit: Duration) -> BoxFuture<'static, bool> {
        async move { timeout(limit, queue.idle()).await.is_ok() }.boxed()
    }
}
