//! The records of changes for the thread that handles flows, and the wake-up of that thread. Compiled again in
//! `tests/simulation/concurrency/`, where the `primitives` are those of a scheduler that tries many interleavings.

use std::{mem, time::Duration};

use super::primitives::{Condvar, Mutex, MutexGuard, PoisonError};

/// The records, shared by the thread and its callers. No call waits for the work of the thread, except for `close` and
/// `wait_idle`.
#[derive(Debug)]
pub(crate) struct Requests<U> {
    state: Mutex<RequestState<U>>,
    changed: Condvar,
}

#[derive(Debug)]
struct RequestState<U> {
    recorded: U,
    is_due: bool,
    /// Whether the thread has work, or was told to end and has not ended.
    is_busy: bool,
    is_closed: bool,
}

/// Whether a record gives the thread something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Due,
    NotDue,
}

/// Why the thread does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Elapsed,
    /// Something was recorded that is due.
    Due,
    /// Nothing will be recorded any more.
    Closed,
}

impl<U> Requests<U> {
    pub(crate) fn new(recorded: U) -> Self {
        let state = RequestState { recorded, is_due: false, is_busy: false, is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Records something. Wakes the thread if that is due.
    pub(crate) fn record(&self, record: impl FnOnce(&mut U) -> Recorded) {
        let mut state = self.lock();
        state.is_due |= record(&mut state.recorded) == Recorded::Due;
        let is_due = state.is_due;
        drop(state);
        if is_due {
            self.changed.notify_all();
        }
    }

    /// Reads or takes the records.
    pub(crate) fn with<R>(&self, read: impl FnOnce(&mut U) -> R) -> R {
        read(&mut self.lock().recorded)
    }

    /// Waits until something is due, at most for this time. From then on the thread is busy, until it calls `finish`.
    pub(crate) fn wait(&self, at_most: Duration) -> Wake {
        let is_idle = |state: &mut RequestState<U>| !state.is_due && !state.is_closed;
        let waited = self.changed.wait_timeout_while(self.lock(), at_most, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);

        state.is_busy = true;
        let was_due = mem::take(&mut state.is_due);
        if state.is_closed {
            Wake::Closed
        } else if was_due {
            Wake::Due
        } else {
            Wake::Elapsed
        }
    }

    /// The thread has done what was due. A thread that was told to end is busy until it has ended.
    pub(crate) fn finish(&self) {
        let mut state = self.lock();
        state.is_busy &= state.is_closed;
        drop(state);
        self.changed.notify_all();
    }

    /// The thread has nothing more to do, and ends.
    pub(crate) fn ended(&self) {
        self.lock().is_busy = false;
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for this time. Returns false as soon as the thread is to end.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), time, |state| !state.is_closed);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// Ends the thread, and waits for its end, at most for this time.
    pub(crate) fn close(&self, at_most: Duration) {
        let mut state = self.lock();
        state.is_closed = true;
        state.is_busy = true;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, at_most, |state| state.is_busy));
    }

    fn lock(&self) -> MutexGuard<'_, RequestState<U>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread has nothing to do.
    #[cfg_attr(not(test), allow(dead_code, reason = "for tests and models"))]
    pub(crate) fn wait_idle(&self) {
        let is_busy = |state: &mut RequestState<U>| state.is_due || state.is_busy;
        drop(self.changed.wait_while(self.lock(), is_busy).unwrap_or_else(PoisonError::into_inner));
    }
}
