//! The disk of a node: what is written survives the end of a process; what is synced, or written back by chance, also
//! survives the loss of power. Writes can be slow, fail, and be torn.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backend::{FileWrite, Storage, WriteQueue};
use fastrand::Rng;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::{sleep, timeout};

/// The disk of a node with its one file. Clones share it.
#[derive(Clone)]
pub(crate) struct SimulatedDisk(Arc<Mutex<DiskState>>);

struct DiskState {
    rng: Rng,
    /// What a process reads.
    file: Option<Vec<u8>>,
    /// What is on the medium.
    synced: Option<Vec<u8>>,
    faults: DiskFaults,
    /// The number of the process that may write: a write of an earlier one does not take effect.
    process: u64,
}

/// What a disk does wrong, as probabilities in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskFaults {
    pub(crate) fails: u8,
    pub(crate) stalls: u8,
}

impl SimulatedDisk {
    pub(crate) fn new(rng: Rng) -> Self {
        let state = DiskState { rng, file: None, synced: None, faults: DiskFaults::default(), process: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn set_faults(&self, faults: DiskFaults) {
        self.lock().faults = faults;
    }

    /// The process ends: writes that have begun have no further effect.
    pub(crate) fn process_ended(&self) {
        self.lock().process += 1;
    }

    /// The power fails: what was not synced is lost, except for a part that was written back.
    pub(crate) fn power_lost(&self) {
        let mut state = self.lock();
        state.process += 1;
        let DiskState { rng, file, synced, .. } = &mut *state;
        *file = match (file.take(), synced.take()) {
            (Some(written), Some(synced)) if written.starts_with(&synced) => {
                let kept = rng.usize(synced.len()..=written.len());
                let mut kept = written[..kept].to_vec();
                // A file whose size reached the medium before its content.
                if kept.len() > synced.len() && rng.u8(0..4) == 0 {
                    let torn = rng.usize(synced.len()..kept.len());
                    kept[torn..].fill(0);
                }
                Some(kept)
            }
            (_, synced) => synced,
        };
        synced.clone_from(file);
    }

    async fn perform(&self, process: u64, write: FileWrite) -> io::Result<()> {
        let (delay, fails) = {
            let DiskState { rng, faults, .. } = &mut *self.lock();
            let stalls = rng.u8(0..100) < faults.stalls;
            let delay = if stalls { rng.u64(1_000_000..60_000_000) } else { rng.u64(50..5_000) };
            (Duration::from_micros(delay), rng.u8(0..100) < faults.fails)
        };
        sleep(delay).await;
        let mut state = self.lock();
        if state.process != process {
            return Err(io::Error::other("the process has ended"));
        }
        let DiskState { rng, file, synced, .. } = &mut *state;
        match write {
            FileWrite::Reopen(length, bytes) => {
                let Some(file) = file else { return Err(io::ErrorKind::NotFound.into()) };
                file.truncate(usize::try_from(length).unwrap_or(usize::MAX));
                if fails {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                file.extend(bytes);
            }
            FileWrite::Append(bytes) => {
                let Some(file) = file else { return Err(io::ErrorKind::NotFound.into()) };
                if fails {
                    file.extend_from_slice(&bytes[..rng.usize(0..=bytes.len())]);
                    return Err(io::ErrorKind::StorageFull.into());
                }
                file.extend(bytes);
            }
            FileWrite::Replace(_) if fails => return Err(io::ErrorKind::StorageFull.into()),
            FileWrite::Replace(bytes) => {
                // The new file is synced before it gets the name.
                *synced = Some(bytes.clone());
                *file = Some(bytes);
            }
        }
        if rng.u8(0..4) == 0
            && file.as_ref().is_some_and(|file| synced.as_ref().is_some_and(|synced| file.starts_with(synced)))
        {
            synced.clone_from(file);
        }
        Ok(())
    }

    fn remove(&self, process: u64) {
        let mut state = self.lock();
        if state.process == process {
            (state.file, state.synced) = (None, None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            disk.lock().file.clone().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        .boxed()
    }

    fn serve(&self, queue: WriteQueue) -> io::Result<()> {
        let disk = self.clone();
        let process = disk.lock().process;
        tokio::spawn(async move {
            while let Some(write) = queue.next().await {
                let result = disk.perform(process, write).await;
                if result.is_err() {
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
