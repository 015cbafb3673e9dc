//! Limits how many streams are sent a snapshot or a repair at the same time: only these cost more than what has
//! changed.
//!
//! ```text
//!   rebuild needed ──▶ waits in the queue, nothing is built ──▶ RebuildPermit ──acknowledged, or too slow──▶ released
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

/// The queue, first in, first out.
#[derive(Debug)]
pub(crate) struct RebuildQueue {
    permits: Arc<Semaphore>,
    max_concurrent: usize,
    timeout: Duration,
    waiting: AtomicUsize,
}

/// The right to be sent a snapshot or a repair, until it is dropped.
#[derive(Debug)]
pub(super) struct RebuildPermit {
    /// When it is released although the client has not received everything.
    pub(super) expires_at: Instant,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Counts a waiting client until it is dropped.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl RebuildQueue {
    pub(crate) fn new(max_concurrent: usize, timeout: Duration) -> Self {
        let max_concurrent = max_concurrent.clamp(1, Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(max_concurrent));
        Self { permits, max_concurrent, timeout, waiting: AtomicUsize::new(0) }
    }

    /// How many streams hold a permit.
    pub(crate) fn running(&self) -> usize {
        self.max_concurrent - self.permits.available_permits()
    }

    /// How many streams wait for a permit.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub(super) async fn acquire(&self) -> RebuildPermit {
        let _waiting = WaitingGuard::new(&self.waiting);
        // Fails only when the semaphore is closed, which it never is.
        let permit = self.permits.clone().acquire_owned().await.ok();
        RebuildPermit { expires_at: Instant::now() + self.timeout, _permit: permit }
    }
}

impl<'a> WaitingGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
