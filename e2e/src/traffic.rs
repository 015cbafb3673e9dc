//! Live traffic in the background: what a change to the services must not disturb.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod churn;
mod stream;

pub use churn::{Churn, ChurnReport};
pub use stream::{Stream, StreamReport};

/// What a traffic thread has seen so far, shared with the test that waits for it and in the end stops it.
#[derive(Debug, Default)]
struct Progress<R> {
    state: Mutex<ProgressState<R>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ProgressState<R> {
    report: R,
    stopping: bool,
    ended: bool,
}

// === impl Progress ===

impl<R: Clone> Progress<R> {
    fn update(&self, change: impl FnOnce(&mut R)) {
        change(&mut self.lock().report);
        self.changed.notify_all();
    }

    fn report(&self) -> R {
        self.lock().report.clone()
    }

    fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// The thread has finished.
    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `time`, in the traffic thread; `false` as soon as it is to stop.
    fn pause_until(&self, time: Instant) -> bool {
        let left = time.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !state.stopping);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    /// Waits until the report satisfies `enough`; `false` if it does not within `deadline`, or never will.
    fn wait_until(&self, deadline: Duration, mut enough: impl FnMut(&R) -> bool) -> bool {
        let waited =
            self.changed.wait_timeout_while(self.lock(), deadline, |state| !state.ended && !enough(&state.report));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        enough(&state.report)
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
