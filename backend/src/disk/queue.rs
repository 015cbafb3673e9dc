//! The writes of one file that wait: one at a time, bounded, in order. Compiled again in
//! `tests/simulation/concurrency/`, where the primitives of `sync` are those of a scheduler that tries many
//! interleavings.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The most bytes that wait while a write runs. Only a rewrite of the whole file may be larger, and it never waits for
/// another write.
pub(crate) const MAX_QUEUED_BYTES: usize = 4 << 20;

/// The writes that a `Storage` performs.
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

impl FileWriter {
    /// Submits to a queue, and closes it when it is dropped.
    pub(crate) fn new(queue: WriteQueue) -> Self {
        Self(queue)
    }

    /// Queues a write. Returns whether it fits: if not, the waiting write is discarded too, and the file ends with an
    /// earlier one.
    pub(crate) fn submit(&self, write: FileWrite) -> bool {
        let mut queue = self.0.queue();
        queue.next = match (queue.next.take(), write) {
            (Some(mut queued), FileWrite::Append(more)) => {
                let bytes = queued.bytes_mut();
                let fits = bytes.len() + more.len() <= MAX_QUEUED_BYTES;
                if fits {
                    bytes.extend(more);
                }
                fits.then_some(queued)
            }
            (_, write) => Some(write),
        };
        let fits = queue.next.is_some();
        drop(queue);
        // Also when the waiting write was discarded: then nothing is left to wait for.
        self.0.changed();
        fits
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
            Err(error) => {
                queue.error = Some(error);
                queue.next = None;
            }
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

    /// Whether a write waits for the running one.
    #[cfg(test)]
    pub(crate) fn has_waiting_write(&self) -> bool {
        self.queue().next.is_some()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.0.changed.notify_all();
        self.0.notify.notify_waiters();
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
    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Reopen(_, bytes) | Self::Append(bytes) | Self::Replace(bytes) => bytes,
        }
    }
}
