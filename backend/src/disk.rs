//! Reads and writes files in threads of their own: a disk that hangs blocks neither the caller nor the end of the
//! process.
//!
//! ```text
//!   FileWriter::submit ──▶ queue: at most one write, of at most MAX_QUEUED_BYTES ──▶ thread ──▶ file
//!   FileWriter::progress ◀── finished writes, the last error ◀──────────────────────────┘
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use tracing::warn;

/// The time that reading a file at the start may take. A healthy disk reads the state of a large cluster in less.
pub(crate) const READ_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(10) };

/// The most bytes that wait while a write runs. Only a rewrite of the whole file may be larger, and it never waits for
/// another write.
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// A write.
#[derive(Debug)]
pub(crate) enum FileWrite {
    /// Opens the existing file to append after its first bytes. The rest is truncated.
    Reopen(u64, Vec<u8>),
    /// Appends to the file that was reopened or replaced last.
    Append(Vec<u8>),
    /// Writes a new file and renames it over the old one.
    Replace(Vec<u8>),
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
pub(crate) struct FileWriter(Arc<Shared>);

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
    /// Starts the thread, which ends when the writer is dropped.
    pub(crate) fn start(path: PathBuf, on_error: OnWriteError) -> Self {
        let shared = Arc::<Shared>::default();
        let run = {
            let shared = shared.clone();
            move || shared.run(&path, on_error)
        };
        if let Err(error) = thread::Builder::new().name("write file".to_owned()).spawn(run) {
            shared.queue().error = Some(error);
        }
        Self(shared)
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
        self.0.changed.notify_all();
        true
    }

    /// How far it is. Takes the error.
    pub(crate) fn progress(&self) -> WriterProgress {
        let mut queue = self.0.queue();
        WriterProgress { is_busy: queue.is_busy(), succeeded: queue.succeeded, error: queue.error.take() }
    }

    /// Waits until nothing is left to write, for at most `timeout`. Returns whether that is so.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut queue = self.0.queue();
        while queue.is_busy() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            queue = self.0.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.0.queue().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next write; `None` when the writer was dropped.
    fn next(&self) -> Option<FileWrite> {
        let mut queue = self.queue();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(write) = queue.next.take() {
                queue.is_writing = true;
                return Some(write);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run(&self, path: &Path, on_error: OnWriteError) {
        let mut file = None;
        while let Some(write) = self.next() {
            let result = execute(path, &mut file, write);
            if result.is_err() {
                file = None;
                if on_error == OnWriteError::Remove {
                    remove(path);
                }
            }
            let mut queue = self.queue();
            queue.is_writing = false;
            match result {
                Ok(()) => queue.succeeded += 1,
                // What was to follow has no file to follow in.
                Err(error) => (queue.error, queue.next) = (Some(error), None),
            }
            drop(queue);
            self.changed.notify_all();
        }
    }
}

impl Queue {
    fn is_busy(&self) -> bool {
        self.is_writing || self.next.is_some()
    }
}

impl FileWrite {
    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Reopen(_, bytes) | Self::Append(bytes) | Self::Replace(bytes) => bytes,
        }
    }
}

fn execute(path: &Path, file: &mut Option<File>, write: FileWrite) -> io::Result<()> {
    match write {
        FileWrite::Reopen(length, bytes) => {
            let mut opened = OpenOptions::new().append(true).open(path)?;
            opened.set_len(length)?;
            opened.write_all(&bytes)?;
            *file = Some(opened);
        }
        FileWrite::Append(bytes) => {
            let file = file.as_mut().ok_or_else(|| io::Error::other("there is no file to append to"))?;
            file.write_all(&bytes)?;
        }
        FileWrite::Replace(bytes) => {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            let successor = successor(path);
            let mut new = File::create(&successor)?;
            new.write_all(&bytes)?;
            // Without it, a power loss after the rename could leave an empty file.
            new.sync_data()?;
            fs::rename(&successor, path)?;
            *file = Some(new);
        }
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
        let writer = FileWriter::start(path.clone(), OnWriteError::Remove);
        assert!(writer.submit(FileWrite::Replace(b"first ".to_vec())));
        while writer.0.queue().next.is_some() {
            thread::yield_now();
        }
        let part = vec![b'x'; MAX_QUEUED_BYTES / 8];
        let accepted = (0..100).take_while(|_| writer.submit(FileWrite::Append(part.clone()))).count();
        assert_eq!(accepted, 8);
        assert!(writer.0.queue().next.is_none(), "the waiting writes are discarded");
        assert!(writer.submit(FileWrite::Append(b"later".to_vec())));
        assert!(!writer.wait(Duration::from_millis(10)));
        assert!(writer.progress().is_busy);

        // The disk answers again. A FIFO cannot be synced, so the write fails.
        let reader = thread::spawn(move || fs::read(successor(&path)));
        assert!(writer.wait(PATIENCE));
        assert_eq!(reader.join().unwrap().unwrap(), b"first ");
        let WriterProgress { is_busy, succeeded, error } = writer.progress();
        assert_eq!((is_busy, succeeded, error.is_some()), (false, 0, true));
    }

    #[test]
    fn appends_follow_a_replacement_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new directory/file");
        let writer = FileWriter::start(path.clone(), OnWriteError::Keep);
        writer.submit(FileWrite::Replace(b"0".to_vec()));
        let expected: String = (0..100).map(|number| (number % 10).to_string()).collect();
        for number in expected.bytes().skip(1) {
            writer.submit(FileWrite::Append(vec![number]));
        }
        assert!(writer.wait(PATIENCE));
        assert_eq!(fs::read_to_string(path).unwrap(), expected);
        assert!(writer.progress().error.is_none());
    }
}
