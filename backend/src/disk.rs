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

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::Notify;
use tracing::warn;

/// The time that reading a file at the start may take. A healthy disk reads the state of a large cluster in less.
pub(crate) const READ_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(10) };

/// The most bytes that wait while a write runs. Only a rewrite of the whole file may be larger, and it never waits for
/// another write.
const MAX_QUEUED_BYTES: usize = 4 << 20;

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

/// The writes that a [`Storage`] performs.
#[derive(Clone, Debug, Default)]
pub struct WriteQueue(Arc<Shared>);

/// A write.
#[derive(Debug)]
pub enum FileWrite {
    /// Opens the existing file to append after its first bytes. The rest is truncated.
    Reopen(u64, Vec<u8>),
    /// Appends to the file that was reopened or replaced last.
    Append(Vec<u8>),
    /// Writes a new file and renames it over the old one.
    Replace(Vec<u8>),
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

/// Writes one file, one write at a time, in the order of [`Self::submit`]. Dropping it discards the waiting write.
#[derive(Debug)]
pub(crate) struct FileWriter(WriteQueue);

/// How far a [`FileWriter`] is.
#[derive(Debug)]
pub(crate) struct WriterProgress {
    /// A write runs or waits.
    pub(crate) is_busy: bool,
    /// The writes that succeeded since the start.
    pub(crate) succeeded: u64,
    /// The error of the last write, once.
    pub(crate) error: Option<io::Error>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Notified of the same changes.
    notify: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    next: Option<FileWrite>,
    is_writing: bool,
    is_closed: bool,
    succeeded: u64,
    error: Option<io::Error>,
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
            queue.queue().error = Some(error);
        }
        Self(queue)
    }

    /// Queues a write. Returns whether it fits: if not, the waiting write is discarded too, and the file ends with an
    /// earlier one.
    pub(crate) fn submit(&self, write: FileWrite) -> bool {
        let mut queue = self.0.queue();
        let write = match (queue.next.take(), write) {
            (Some(mut queued), FileWrite::Append(more)) => {
                let bytes = queued.bytes_mut();
                if bytes.len() + more.len() > MAX_QUEUED_BYTES {
                    return false;
                }
                bytes.extend(more);
                queued
            }
            (_, write) => write,
        };
        queue.next = Some(write);
        drop(queue);
        self.0.changed();
        true
    }

    /// How far it is. Takes the error.
    pub(crate) fn progress(&self) -> WriterProgress {
        let mut queue = self.0.queue();
        WriterProgress { is_busy: queue.is_busy(), succeeded: queue.succeeded, error: queue.error.take() }
    }

    /// Its queue.
    pub(crate) fn queue(&self) -> WriteQueue {
        self.0.clone()
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.0.queue().is_closed = true;
        self.0.changed();
    }
}

impl WriteQueue {
    /// Waits for the next write; `None` when the queue was closed. Blocks.
    pub fn wait(&self) -> Option<FileWrite> {
        let mut queue = self.queue();
        loop {
            if let Some(next) = queue.begin_next() {
                return next;
            }
            queue = self.0.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next write, as [`Self::wait`] does, without blocking.
    pub async fn next(&self) -> Option<FileWrite> {
        loop {
            let changed = self.0.notify.notified();
            if let Some(next) = self.queue().begin_next() {
                return next;
            }
            changed.await;
        }
    }

    /// The last write has ended like this.
    pub fn finished(&self, result: io::Result<()>) {
        let mut queue = self.queue();
        queue.is_writing = false;
        match result {
            Ok(()) => queue.succeeded += 1,
            // What was to follow has no file to follow in.
            Err(error) => (queue.error, queue.next) = (Some(error), None),
        }
        drop(queue);
        self.changed();
    }

    /// Waits until nothing is left to write, without blocking.
    pub async fn idle(&self) {
        loop {
            let changed = self.0.notify.notified();
            if !self.queue().is_busy() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until nothing is left to write, for at most `timeout`. Returns whether that is so. Blocks.
    pub(crate) fn wait_idle(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut queue = self.queue();
        while queue.is_busy() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            queue = self.0.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.0.changed.notify_all();
        self.0.notify.notify_waiters();
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

impl Queue {
    /// The next write, which begins; `Some(None)` when the queue was closed.
    #[expect(clippy::option_option, reason = "waiting, and the end")]
    fn begin_next(&mut self) -> Option<Option<FileWrite>> {
        if self.is_closed {
            return Some(None);
        }
        let next = self.next.take()?;
        self.is_writing = true;
        Some(Some(next))
    }

    fn is_busy(&self) -> bool {
        self.is_writing || self.next.is_some()
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

    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Reopen(_, bytes) | Self::Append(bytes) | Self::Replace(bytes) => bytes,
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

    use super::*;

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
        while writer.0.queue().next.is_some() {
            thread::yield_now();
        }
        let part = vec![b'x'; MAX_QUEUED_BYTES / 8];
        let accepted = (0..100).take_while(|_| writer.submit(FileWrite::Append(part.clone()))).count();
        assert_eq!(accepted, 8);
        assert!(writer.0.queue().next.is_none(), "the waiting writes are discarded");
        assert!(writer.submit(FileWrite::Append(b"later".to_vec())));
        assert!(!writer.0.wait_idle(Duration::from_millis(10)));
        assert!(writer.progress().is_busy);

        // The disk answers again. A FIFO cannot be synced, so the write fails.
        let reader = thread::spawn(move || fs::read(successor(&path)));
        assert!(writer.0.wait_idle(PATIENCE));
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
        assert!(writer.0.wait_idle(PATIENCE));
        assert_eq!(fs::read_to_string(path).unwrap(), expected);
        assert!(writer.progress().error.is_none());
    }
}
