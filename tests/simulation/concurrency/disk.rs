//! The queue of writes to the disk: `backend/src/disk/queue.rs`.

use std::{io, time::Duration};

use shuttle::{check_random, future::block_on, thread};

use crate::INTERLEAVINGS;

mod sync {
    pub(super) use std::sync::PoisonError;

    pub(super) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
}

#[path = "../../../backend/src/disk/queue.rs"]
mod queue;

use queue::{FileWrite, FileWriter, WriteQueue};

/// More than a queue holds.
const TOO_MUCH: usize = 5 << 20;
const FOREVER: Duration = Duration::from_secs(3600);

/// Performs all writes of a queue, and returns the appended bytes.
fn serve(queue: WriteQueue) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut written = Vec::new();
        while let Some(write) = queue.wait() {
            if let FileWrite::Append(bytes) = write {
                written.extend(bytes);
            }
            queue.finished(Ok(()));
        }
        written
    })
}

/// Appended bytes are written in order and once.
#[test]
fn appended_bytes_are_written_in_order_and_once() {
    let model = || {
        let queue = WriteQueue::default();
        let server = serve(queue.clone());
        let writer = FileWriter::new(queue.clone());
        (1..=4).for_each(|byte| assert!(writer.submit(FileWrite::Append(vec![byte]))));
        assert!(queue.wait_idle(FOREVER));
        assert!(!writer.progress().is_busy);
        drop(writer);
        assert_eq!(server.join().unwrap(), [1, 2, 3, 4]);
    };
    check_random(model, INTERLEAVINGS);
}

/// A waiter that blocks and one that does not both see the end of the last write, also when a write that does not fit
/// discards the waiting one.
#[test]
fn waiters_return_when_nothing_is_left_to_write() {
    let model = || {
        let queue = WriteQueue::default();
        let server = serve(queue.clone());
        let (blocking, asynchronous) = (queue.clone(), queue.clone());
        let waiters = [
            thread::spawn(move || assert!(blocking.wait_idle(FOREVER))),
            thread::spawn(move || block_on(asynchronous.idle())),
        ];
        let writer = FileWriter::new(queue);
        assert!(writer.submit(FileWrite::Append(vec![1])));
        let _ = writer.submit(FileWrite::Append(vec![0; TOO_MUCH]));
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        drop(writer);
        server.join().unwrap();
    };
    check_random(model, INTERLEAVINGS / 10);
}

/// Queue that is closed ends its server.
#[test]
fn queue_that_is_closed_ends_its_server() {
    let model = || {
        let queue = WriteQueue::default();
        let server = serve(queue.clone());
        let task = thread::spawn({
            let queue = queue.clone();
            move || {
                block_on(async {
                    while queue.next().await.is_some() {
                        queue.finished(Err(io::Error::other("full")))
                    }
                })
            }
        });
        let writer = FileWriter::new(queue);
        let _ = writer.submit(FileWrite::Replace(vec![1]));
        drop(writer);
        server.join().unwrap();
        task.join().unwrap();
    };
    check_random(model, INTERLEAVINGS);
}
