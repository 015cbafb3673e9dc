//! Traffic in the background, which a change of Services must not interrupt.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{netns::Netns, pace::patience, uml};

mod background;
mod churn;
mod stream;

pub use background::BackgroundTraffic;
pub use churn::{Churn, ChurnReport};
pub use stream::{Stream, StreamReport};

/// How much longer the pauses of traffic are in a guest. It has a share of one CPU, which a few hundred packets per
/// second fill.
const IN_GUEST: u32 = 5;

/// The pause between two messages or connections.
fn pause(on_host: Duration) -> Duration {
    if uml::is_guest() { on_host * IN_GUEST } else { on_host }
}

/// Traffic from a thread of its own, with a report of type `R`. Dropping it stops it.
#[derive(Debug)]
pub struct Traffic<R> {
    progress: Arc<Progress<R>>,
    thread: Option<JoinHandle<()>>,
}

/// The report so far, shared between the traffic thread and the test.
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

// === impl Traffic ===

impl<R: Clone + Default + Send + 'static> Traffic<R> {
    /// Calls `run` on a new thread in `netns`.
    fn spawn(netns: &Netns, name: &str, run: impl FnOnce(&Progress<R>) + Send + 'static) -> Self {
        let progress = Arc::new(Progress::default());
        let thread = netns.spawn(name, {
            let progress = Arc::clone(&progress);
            move || {
                run(&progress);
                progress.end();
            }
        });
        Self { progress, thread: Some(thread) }
    }

    /// Waits until the report satisfies `condition`; `false` if it does not before the deadline or the end of the
    /// traffic.
    #[must_use]
    pub fn wait_until(&self, deadline: Duration, condition: impl FnMut(&R) -> bool) -> bool {
        self.progress.wait_until(deadline, condition)
    }

    /// The report so far.
    pub fn report(&self) -> R {
        self.progress.report()
    }

    /// Stops the traffic.
    pub fn finish(mut self) -> R {
        self.join();
        self.progress.report()
    }
}

impl<R> Traffic<R> {
    fn join(&mut self) {
        self.progress.stop();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and drop must not.
            let _ = thread.join();
        }
    }
}

impl<R> Drop for Traffic<R> {
    fn drop(&mut self) {
        self.join();
    }
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

    /// Waits until `time`, in the traffic thread; `false` as soon as [`Self::stop`] was called.
    fn pause_until(&self, time: Instant) -> bool {
        let left = time.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !state.stopping);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    fn wait_until(&self, deadline: Duration, mut condition: impl FnMut(&R) -> bool) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience(deadline), |state| !state.ended && !condition(&state.report));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        condition(&state.report)
    }
}

impl<R> Progress<R> {
    fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// The thread has finished.
    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
