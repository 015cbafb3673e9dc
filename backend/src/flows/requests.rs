//! What others have recorded for the thread that deletes flows, and when that is due. Compiled again in
//! `tests/simulation/concurrency/`, where the primitives of `sync` are those of a scheduler that tries many
//! interleavings.

use std::{mem, time::Duration};

use super::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The pause after a cleanup, as a multiple of its duration: half of a core at most.
const PAUSE_FACTOR: u32 = 1;

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Shared by those who record, whose calls never block, and the thread.
#[derive(Debug)]
pub(crate) struct CleanupRequests<U>(Arc<Shared<U>>);

#[derive(Debug)]
struct Shared<U> {
    state: Mutex<RequestState<U>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RequestState<U> {
    /// What was recorded since the thread last took it.
    updates: U,
    /// A cleanup is due.
    is_due: bool,
    is_cleaning: bool,
    is_failing: bool,
    is_closed: bool,
}

/// Why a cleanup does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The time has passed.
    Elapsed,
    /// Another cleanup is due.
    Due,
    /// There will be no more.
    Closed,
}

impl<U> Clone for CleanupRequests<U> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<U: Default> Default for CleanupRequests<U> {
    fn default() -> Self {
        Self(Arc::new(Shared { state: Mutex::new(RequestState::default()), changed: Condvar::new() }))
    }
}

impl<U: Default> CleanupRequests<U> {
    /// Records a change, or reads what was recorded.
    pub(crate) fn record<R>(&self, record: impl FnOnce(&mut U) -> R) -> R {
        record(&mut self.state().updates)
    }

    /// Records a change, and requests a cleanup if it `needs` one, or if the last one has failed.
    pub(crate) fn request(&self, record: impl FnOnce(&mut U), needs: bool) {
        let mut state = self.state();
        record(&mut state.updates);
        state.is_due |= needs || state.is_failing;
        drop(state);
        self.0.changed.notify_all();
    }

    /// Ends the thread after the current cleanup.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.0.changed.notify_all();
    }

    /// Takes what was recorded.
    pub(crate) fn take(&self) -> U {
        mem::take(&mut self.state().updates)
    }

    /// Waits until a cleanup is due. Returns false when there will be none.
    pub(crate) fn wait(&self) -> bool {
        let is_idle = |state: &mut RequestState<U>| !state.is_due && !state.is_closed;
        let waited = self.0.changed.wait_while(self.state(), is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_due = false;
        state.is_cleaning = true;
        !state.is_closed
    }

    /// Records the end of a cleanup.
    pub(crate) fn finish(&self, is_failing: bool) {
        let mut state = self.state();
        state.is_cleaning = false;
        state.is_failing = is_failing;
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits within a cleanup, at most for this time.
    pub(crate) fn wait_at_most(&self, time: Duration) -> Wake {
        let is_idle = |state: &mut RequestState<U>| !state.is_due && !state.is_closed;
        let waited = self.0.changed.wait_timeout_while(self.state(), time, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match mem::take(&mut state.is_due) {
            _ if state.is_closed => Wake::Closed,
            true => Wake::Due,
            false => Wake::Elapsed,
        }
    }

    /// Pauses after a cleanup that `took` this long, unless there will be none.
    pub(crate) fn pause(&self, took: Duration) {
        self.rest((took * PAUSE_FACTOR).min(MAX_PAUSE));
    }

    /// Waits for this time. Returns false as soon as there will be no more cleanups.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        let waited = self.0.changed.wait_timeout_while(self.state(), time, |state| !state.is_closed);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    fn state(&self) -> MutexGuard<'_, RequestState<U>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<U: Default> CleanupRequests<U> {
    /// Waits until no cleanup runs or is due.
    #[cfg_attr(not(test), allow(dead_code, reason = "for tests and models"))]
    pub(crate) fn wait_idle(&self) {
        let is_busy = |state: &mut RequestState<U>| state.is_due || state.is_cleaning;
        drop(self.0.changed.wait_while(self.state(), is_busy).unwrap_or_else(PoisonError::into_inner));
    }
}
