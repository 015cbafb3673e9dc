//! Where the state file is kept: on a disk, or in a simulation.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::mpsc::RecvTimeoutError,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::{task::spawn_blocking, time::sleep};
use tracing::warn;

use super::StoredState;
use crate::disk;

/// The time between two checks whether a write on a disk that hangs has ended.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A place for a state file.
pub trait Storage: fmt::Debug + Send + Sync + 'static {
    /// The path, for people.
    fn name(&self) -> String;

    /// Reads the file.
    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>>;

    /// Replaces the file: a crash leaves the old or the new one. Returns its size in bytes. After an error there is no
    /// file, as an outdated one is worse, unless the new state is outdated itself.
    fn replace(&self, stored: StoredState) -> BoxFuture<'static, io::Result<usize>>;
}

/// A file on a disk of this machine.
#[derive(Clone, Debug)]
pub(super) struct LocalFile(pub(super) PathBuf);

impl Storage for LocalFile {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let path = self.0.clone();
        async move { spawn_blocking(move || disk::read(&path)).await? }.boxed()
    }

    fn replace(&self, stored: StoredState) -> BoxFuture<'static, io::Result<usize>> {
        let path = self.0.clone();
        async move {
            let written = disk::in_thread(move || replace(&path, &stored))?;

            // Bounded, because the async runtime waits for its blocking tasks when it ends.
            let first_poll = move || {
                let result = written.recv_timeout(POLL_INTERVAL);
                (written, result)
            };
            let (written, mut result) = spawn_blocking(first_poll).await?;
            while let Err(RecvTimeoutError::Timeout) = result {
                sleep(POLL_INTERVAL).await;
                result = written.recv_timeout(Duration::ZERO);
            }
            result.map_err(io::Error::other)?
        }
        .boxed()
    }
}

fn replace(path: &Path, stored: &StoredState) -> io::Result<usize> {
    let bytes = stored.encode();
    let result = disk::replace(path, &bytes);
    if result.is_err() {
        if !stored.is_outdated {
            remove(path);
        }
        // Fails if nothing was written.
        let _ = fs::remove_file(disk::successor(path));
    }
    result.map(|()| bytes.len())
}

fn remove(path: &Path) {
    // On a read-only file system, the removal of a file that does not exist fails with the same error as others.
    let is_absent = path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if !is_absent && let Err(error) = fs::remove_file(path) {
        warn!(path = %path.display(), %error, "cannot remove an outdated state file");
    }
}
