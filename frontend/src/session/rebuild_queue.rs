//! Who is sent everything now, and who waits: a snapshot is the one thing that costs more than what has changed.
//!
//! ```text
//!   everything is missing ──▶ waiting (a place in a line, nothing else) ──▶ RebuildPermit ──all handed over, or too slow──▶ free again
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// The line. The first to wait is the first to be admitted.
#[derive(Debug)]
pub(crate) struct RebuildQueue {
    slots: Arc<Semaphore>,
    at_once: usize,
    patience: Duration,
    waiting: AtomicUsize,
}

/// The right to be sent everything, until it is dropped.
#[derive(Debug)]
pub(super) struct RebuildPermit {
    /// When it is given to somebody else although its client has not taken everything.
    pub(super) until: Instant,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Counts a client that waits, for as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl RebuildQueue {
    pub(crate) fn new(at_once: usize, patience: Duration) -> Self {
        // Without any slot nobody would ever be served.
        let at_once = at_once.clamp(1, Semaphore::MAX_PERMITS);
        Self { slots: Arc::new(Semaphore::new(at_once)), at_once, patience, waiting: AtomicUsize::new(0) }
    }

    /// How many clients are being sent everything.
    pub(crate) fn admitted(&self) -> usize {
        self.at_once - self.slots.available_permits()
    }

    /// How many clients wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits in line. Dropping this leaves the line.
    pub(super) async fn admit(&self) -> RebuildPermit {
        let _waiting = Waiting::new(&self.waiting);
        // Fails only when the semaphore is closed, which it never is.
        let permit = self.slots.clone().acquire_owned().await.ok();
        RebuildPermit { until: Instant::now() + self.patience, _permit: permit }
    }
}

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
