//! Reads and writes files in threads of their own: a disk that hangs blocks neither the caller nor the end of the
//! process.
//!
//! ```text
//!   FileWriter::submit ──▶ WriteQueue: one write, of at most MAX_QUEUED_BYTES ──▶ Storage: a thread ──▶ file
//!   FileWriter::progress ◀── finished writes, the last error ◀──────────────────────┘
//! ```
//!
//! A write is a sequence of [`FileStep`]s, between which a crash can come. A simulation implements [`Storage`] without
//! files and threads, and executes the same steps.

mod queue;

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use tracing::warn;

pub use queue::{FileWrite, WriteQueue};
pub(crate) use queue::{FileWriter, WriterProgress};

/// What the queue is built on.
mod sync {
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
}

/// The time that reading a file at the start may take. A healthy disk reads the state of a large cluster in less.
pub(crate) const READ_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(10) };

/// Where a file is kept: on a disk, or in a simulation.
pub trait Storage: fmt::Debug + Send + Sync + 'static {
    /// The path, for people.
    fn name(&self) -> String;

    /// Reads the file.
    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>>;

    /// Starts to perform the writes of a queue, one after the other, until the queue is closed.
    ///
    /// # Errors
    /// When that cannot be started.
    fn serve(&self, queue: WriteQueue) -> io::Result<()>;

    /// Waits until the queue is empty and its last write has finished, for at most `timeout`. Returns whether that is
    /// so.
    fn wait(&self, queue: WriteQueue, timeout: Duration) -> BoxFuture<'static, bool>;
}

/// A file on a disk of this machine.
#[derive(Clone, Debug)]
pub(crate) struct LocalFile {
    pub(crate) path: PathBuf,
    pub(crate) on_error: OnWriteError,
}

/// A step of a [`FileWrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileStep {
    /// Opens the existing file, to append to it.
    Open,
    /// Shortens the open file to this length.
    Truncate(u64),
    /// Creates the successor of the file, which is empty, and opens that.
    CreateSuccessor,
    /// Appends to the file that was opened last.
    Write(Vec<u8>),
    /// Waits until the content of the open file survives a power loss.
    Sync,
    /// Renames the successor over the file.
    RenameSuccessor,
}

/// What happens to a file that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWriteError {
    /// It is kept: old content is better than none.
    Keep,
    /// It is removed: old content is worse than none.
    Remove,
}

/// Reads a file. Blocks for at most `timeout`.
///
/// # Errors
/// When the file cannot be read, or not in time.
pub(crate) fn read(path: &Path, timeout: Duration) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    // Not a blocking task of the async runtime, which waits for those when it ends.
    thread::Builder::new().name("read file".to_owned()).spawn(move || {
        // After the timeout there is no receiver.
        let _ = sender.send(fs::read(path));
    })?;
    let no_answer = |_| io::Error::new(io::ErrorKind::TimedOut, format!("the disk did not answer within {timeout:?}"));
    receiver.recv_timeout(timeout).map_err(no_answer)?
}

/// The file while its successor is written.
pub(crate) fn successor(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

impl FileWriter {
    /// Starts a writer, which ends when it is dropped.
    pub(crate) fn start(storage: &dyn Storage) -> Self {
        let queue = WriteQueue::default();
        if let Err(error) = storage.serve(queue.clone()) {
            queue.finished(Err(error));
        }
        Self::new(queue)
    }
}

impl Storage for LocalFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let path = self.path.clone();
        async move { tokio::task::spawn_blocking(move || read(&path, READ_TIMEOUT)).await? }.boxed()
    }

    /// In a thread of its own.
    fn serve(&self, queue: WriteQueue) -> io::Result<()> {
        let Self { path, on_error } = self.clone();
        let run = move || {
            let mut file = None;
            while let Some(write) = queue.wait() {
                let result = write.steps().into_iter().try_for_each(|step| execute(&path, &mut file, step));
                if result.is_err() {
                    file = None;
                    if on_error == OnWriteError::Remove {
                        remove(&path);
                    }
                }
                queue.finished(result);
            }
        };
        thread::Builder::new().name("write file".to_owned()).spawn(run)?;
        Ok(())
    }

    fn wait(&self, queue: WriteQueue, timeout: Duration) -> BoxFuture<'static, bool> {
        // Bounded, because the async runtime waits for its blocking tasks when it ends.
        let wait = tokio::task::spawn_blocking(move || queue.wait_idle(timeout));
        async move { wait.await.unwrap_or(false) }.boxed()
    }
}

impl FileWrite {
    /// What is to be done, in this order, until a step fails.
    #[must_use]
    pub fn steps(self) -> Vec<FileStep> {
        match self {
            Self::Reopen(length, bytes) => vec![FileStep::Open, FileStep::Truncate(length), FileStep::Write(bytes)],
            Self::Append(bytes) => vec![FileStep::Write(bytes)],
            // Without the sync, a power loss after the rename could leave an empty file.
            Self::Replace(bytes) => {
                vec![FileStep::CreateSuccessor, FileStep::Write(bytes), FileStep::Sync, FileStep::RenameSuccessor]
            }
        }
    }
}

/// `file` is the one that was opened last.
fn execute(path: &Path, file: &mut Option<File>, step: FileStep) -> io::Result<()> {
    let opened = file.as_mut().ok_or_else(|| io::Error::other("there is no file to append to"));
    match step {
        FileStep::Open => *file = Some(OpenOptions::new().append(true).open(path)?),
        FileStep::Truncate(length) => opened?.set_len(length)?,
        FileStep::CreateSuccessor => {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            *file = Some(File::create(successor(path))?);
        }
        FileStep::Write(bytes) => opened?.write_all(&bytes)?,
        FileStep::Sync => opened?.sync_data()?,
        FileStep::RenameSuccessor => fs::rename(successor(path), path)?,
    }
    Ok(())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        warn!(path = %path.display(), %error, "cannot remove an outdated file");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{queue::MAX_QUEUED_BYTES, *};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn start(path: &Path, on_error: OnWriteError) -> FileWriter {
        FileWriter::start(&LocalFile { path: path.to_owned(), on_error })
    }

    /// Opening it blocks until there is a peer, like a file on a disk that hangs.
    fn mk_fifo(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn hung_disk_delays_a_read_by_the_timeout_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        mk_fifo(&path);
        let error = read(&path, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.to_string(), "the disk did not answer within 10ms");
    }

    #[test]
    fn writes_to_a_hung_disk_are_bounded_and_the_file_ends_with_an_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        mk_fifo(&successor(&path));
        let writer = start(&path, OnWriteError::Remove);
        assert!(writer.submit(FileWrite::Replace(b"first ".to_vec())));
        while writer.queue().has_waiting_write() {
            thread::yield_now();
        }
        let part = vec![b'x'; MAX_QUEUED_BYTES / 8];
        let accepted = (0..100).take_while(|_| writer.submit(FileWrite::Append(part.clone()))).count();
        assert_eq!(accepted, 8);
        assert!(!writer.queue().has_waiting_write(), "the waiting writes are discarded");
        assert!(writer.submit(FileWrite::Append(b"later".to_vec())));
        assert!(!writer.queue().wait_idle(Duration::from_millis(10)));
        assert!(writer.progress().is_busy);

        // The disk answers again. A FIFO cannot be synced, so the write fails.
        let reader = thread::spawn(move || fs::read(successor(&path)));
        assert!(writer.queue().wait_idle(PATIENCE));
        assert_eq!(reader.join().unwrap().unwrap(), b"first ");
        let WriterProgress { is_busy, succeeded, error } = writer.progress();
        assert_eq!((is_busy, succeeded, error.is_some()), (false, 0, true));
    }

    #[test]
    fn appends_follow_a_replacement_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new directory/file");
        let writer = start(&path, OnWriteError::Keep);
        writer.submit(FileWrite::Replace(b"0".to_vec()));
        let expected: String = (0..100).map(|number| (number % 10).to_string()).collect();
        for number in expected.bytes().skip(1) {
            writer.submit(FileWrite::Append(vec![number]));
        }
        assert!(writer.queue().wait_idle(PATIENCE));
        assert_eq!(fs::read_to_string(path).unwrap(), expected);
        assert!(writer.progress().error.is_none());
    }
}
