//! Log lines that a thread writes: threads that log do not wait for a disk or a reader that hangs.

use std::{
    io, mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, ThreadId},
    time::Duration,
};

use tracing::warn;

use crate::lock;

/// How many bytes of lines may wait for a stderr that is full or hangs. Further lines are dropped.
const MAX_BYTES: usize = 4 << 20;

/// The lines that wait. Each `write` is a line, and its clones are the same queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: Vec<u8>,
    /// A line has been dropped since the writer took the waiting lines.
    is_full: bool,
    /// How many lines are lost, since that was last logged.
    lost: u64,
    /// The thread that writes. Its own line, about the number of lost lines, is never dropped.
    writer: Option<ThreadId>,
    is_writing: bool,
}

impl Queue {
    /// Writes the lines, forever.
    pub(super) fn write_to(&self, mut to: impl io::Write) {
        lock(&self.0.lines).writer = Some(thread::current().id());
        loop {
            let batch = self.next_batch();
            let mut failed = 0;
            let mut is_written = true;
            for line in batch.split_inclusive(|byte| *byte == b'\n') {
                is_written = to.write_all(line).is_ok();
                failed += u64::from(!is_written);
            }

            let mut lines = lock(&self.0.lines);
            lines.lost += failed;
            let lost = if is_written { mem::take(&mut lines.lost) } else { 0 };
            drop(lines);
            if lost > 0 {
                // A log filter that excludes warnings also excludes this number.
                warn!(lines = lost, "dropped log lines: writing to stderr failed or was too slow");
            }

            lock(&self.0.lines).is_writing = false;
            self.0.changed.notify_all();
        }
    }

    fn next_batch(&self) -> Vec<u8> {
        let lines = lock(&self.0.lines);
        let is_idle = |lines: &mut Lines| lines.waiting.is_empty() && !lines.is_full;
        let mut lines = self.0.changed.wait_while(lines, is_idle).unwrap_or_else(PoisonError::into_inner);
        lines.is_writing = true;
        lines.is_full = false;
        mem::take(&mut lines.waiting)
    }

    /// Adds a line even if too many wait.
    pub(super) fn push(&self, line: &[u8]) {
        lock(&self.0.lines).waiting.extend_from_slice(line);
        self.0.changed.notify_all();
    }

    /// Waits until all lines are written, for at most this time. Returns whether they are.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let lines = lock(&self.0.lines);
        let is_busy = |lines: &mut Lines| lines.is_writing || lines.is_full || !lines.waiting.is_empty();
        let waited = self.0.changed.wait_timeout_while(lines, timeout, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl io::Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = lock(&self.0.lines);
        lines.is_full |= lines.waiting.len() + line.len() > MAX_BYTES;
        if lines.is_full && lines.writer != Some(thread::current().id()) {
            lines.lost += 1;
        } else {
            lines.waiting.extend_from_slice(line);
        }
        drop(lines);
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tracing::{Dispatch, dispatcher::with_default, info};

    use super::*;
    use crate::log::{LogFormat, subscriber};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A writer that hangs until the sender is dropped.
    struct Hanging {
        ends: mpsc::Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl io::Write for Hanging {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.ends.recv();
            lock(&self.written).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn dispatch(queue: &Queue) -> Dispatch {
        let queue = queue.clone();
        Dispatch::new(subscriber(LogFormat::Text, "info", false, move || queue.clone()).unwrap())
    }

    #[test]
    fn threads_that_log_do_not_wait_for_a_writer_that_hangs() {
        const LINES: u64 = 10_000;
        let queue = Queue::default();
        let dispatch = dispatch(&queue);
        let (hang, ends) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        thread::spawn({
            let (queue, dispatch, written) = (queue.clone(), dispatch.clone(), written.clone());
            move || with_default(&dispatch, || queue.write_to(Hanging { ends, written }))
        });
        with_default(&dispatch, || {
            for number in 0..LINES {
                info!(number, "{}", "x".repeat(1000));
            }
        });
        assert!(!queue.flush(Duration::from_millis(10)));
        assert!(lock(&written).is_empty());
        assert!(lock(&queue.0.lines).waiting.len() <= MAX_BYTES);

        drop(hang);
        assert!(queue.flush(PATIENCE));
        let text = String::from_utf8(lock(&written).clone()).unwrap();
        let kept = text.lines().filter(|line| line.contains("number=")).count() as u64;
        assert!(kept > 500, "{kept}");
        let last = text.lines().last().unwrap();
        let lost = format!("lines={}", LINES - kept);
        assert!(last.contains("dropped log lines") && last.ends_with(&lost), "{last}, expected {lost}");
    }

    #[test]
    fn pushed_line_is_not_lost_when_the_queue_is_full() {
        let mut queue = Queue::default();
        let long = vec![b'x'; MAX_BYTES + 1];
        assert_eq!(io::Write::write(&mut queue, &long).unwrap(), long.len());
        queue.push(b"the last line\n");
        let lines = lock(&queue.0.lines);
        assert_eq!((lines.lost, &*lines.waiting), (1, &b"the last line\n"[..]));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        struct FailingOnce(bool, Arc<Mutex<Vec<u8>>>);
        impl io::Write for FailingOnce {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if !mem::replace(&mut self.0, true) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                lock(&self.1).extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let queue = Queue::default();
        let dispatch = dispatch(&queue);
        let written = Arc::new(Mutex::new(Vec::new()));
        thread::spawn({
            let (queue, dispatch, written) = (queue.clone(), dispatch.clone(), written.clone());
            move || with_default(&dispatch, || queue.write_to(FailingOnce(false, written)))
        });
        for message in ["first", "second"] {
            with_default(&dispatch, || info!("{message}"));
            assert!(queue.flush(PATIENCE));
        }
        let text = String::from_utf8(lock(&written).clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].ends_with("second") && lines[1].ends_with("lines=1"), "{text}");
    }
}
