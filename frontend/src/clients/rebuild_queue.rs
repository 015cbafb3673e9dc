//! Limits how many streams are sent a snapshot or a repair at the same time: only these cost more than what has
//! changed.
//!
//! ```text
//!   rebuild needed ──▶ waits in the queue, nothing is built ──▶ RebuildPermit ──acknowledged, or too slow──▶ released
//! ```
//!
//! A client holds one permit and has one place in the queue, however many streams it opens. When it asks again, the
//! permit passes from its older stream to the new one, so that a node whose connection broke during its snapshot does
//! not wait for itself.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use runtime::lock;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{identity::Identity, per_client::PerClient};

/// The queue, first in, first out.
#[derive(Debug)]
pub(crate) struct RebuildQueue {
    permits: Arc<Semaphore>,
    max_concurrent: usize,
    timeout: Duration,
    /// Each stream that waits has a reference.
    waiting: Arc<()>,
    /// The clients that wait or hold a permit.
    clients: Mutex<PerClient<Identity, Arc<ClientShare>>>,
}

/// What a client takes of the queue: the permit of its newest stream. Locked by the stream that waits in the queue, or
/// takes the permit of an older one.
type ClientShare = AsyncMutex<Weak<PermitCell>>;

/// A permit that can be passed to another stream.
type PermitCell = Mutex<Option<OwnedSemaphorePermit>>;

/// The right to be sent a snapshot or a repair, until it is dropped.
#[derive(Debug)]
pub(crate) struct RebuildPermit {
    /// When it is released although the client has not received everything.
    pub(crate) expires_at: Instant,
    _permit: Arc<PermitCell>,
    _share: Arc<ClientShare>,
}

impl RebuildQueue {
    pub(crate) fn new(max_concurrent: usize, timeout: Duration) -> Self {
        let max_concurrent = max_concurrent.clamp(1, Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(max_concurrent));
        Self { permits, max_concurrent, timeout, waiting: Arc::default(), clients: Mutex::default() }
    }

    /// How many clients hold a permit.
    pub(crate) fn running(&self) -> usize {
        self.max_concurrent - self.permits.available_permits()
    }

    /// How many streams wait for a permit.
    pub(crate) fn waiting(&self) -> usize {
        Arc::strong_count(&self.waiting) - 1
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub(crate) async fn acquire(&self, client: &Identity) -> RebuildPermit {
        let _waiting = self.waiting.clone();
        let share = self.share(client);
        let mut current = share.lock().await;
        let of_older = current.upgrade().and_then(|older| lock(&older).take());
        let permit = match of_older {
            Some(permit) => Some(permit),
            // Fails only when the semaphore is closed, which it never is.
            None => self.permits.clone().acquire_owned().await.ok(),
        };
        let permit = Arc::new(Mutex::new(permit));
        *current = Arc::downgrade(&permit);
        drop(current);
        RebuildPermit { expires_at: Instant::now() + self.timeout, _permit: permit, _share: share }
    }

    fn share(&self, client: &Identity) -> Arc<ClientShare> {
        let is_used = |share: &Arc<ClientShare>| Arc::strong_count(share) > 1;
        lock(&self.clients).entry(client.clone(), is_used, Arc::default).clone()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn node(name: &str) -> Identity {
        Identity::Node(name.into())
    }

    #[test]
    fn client_holds_one_permit_and_has_one_place_in_the_queue() {
        let queue = RebuildQueue::new(2, Duration::from_secs(10));
        let [a, b, c, d] = ["a", "b", "c", "d"].map(node);
        let mut held: Vec<_> = (0..48).map(|_| queue.acquire(&a).now_or_never().unwrap()).collect();
        assert_eq!(queue.running(), 1);
        let of_b = queue.acquire(&b).now_or_never().unwrap();
        let mut waiting: Vec<_> = (0..48).map(|_| Box::pin(queue.acquire(&c))).collect();
        assert!(waiting.iter_mut().all(|waiting| waiting.now_or_never().is_none()));
        let mut last = Box::pin(queue.acquire(&d));
        assert!((&mut last).now_or_never().is_none());
        assert_eq!((queue.running(), queue.waiting()), (2, 49));
        // Only the newest stream of a client has its permit.
        held.drain(..47);
        assert_eq!(queue.running(), 2);
        drop(held);
        let first_of_c = waiting[0].as_mut().now_or_never().unwrap();
        assert!((&mut last).now_or_never().is_none());
        drop((of_b, first_of_c));
        let _d = last.now_or_never().unwrap();
        drop(waiting);
        assert_eq!((queue.running(), queue.waiting()), (1, 0));
    }
}
