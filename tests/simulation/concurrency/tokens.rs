//! The cache of token reviews: `frontend/src/identity/tokens/cache.rs`.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use shuttle::{check_random, future, thread};
use tokio::time::Instant;

use crate::INTERLEAVINGS;

mod primitives {
    pub(super) use std::sync::PoisonError;

    pub(super) use shuttle::sync::{Arc, Mutex, MutexGuard};
}

#[path = "../../../frontend/src/identity/tokens/cache.rs"]
mod cache;

use cache::{CachedResult, TokenCache};
use primitives::Arc;

const TOKEN: [u8; 32] = [7; 32];

/// A cache, and what its reviews do.
#[derive(Default)]
struct Reviews {
    cache: TokenCache<&'static str, ()>,
    running: AtomicUsize,
    done: AtomicUsize,
}

impl Reviews {
    /// Identifies a client as `Tokens::identify` does; the review has this result, or fails.
    async fn identify(&self, review: Option<Result<&'static str, ()>>) -> Option<Result<&'static str, ()>> {
        let entry = self.cache.entry(TOKEN);
        let result = entry.get_or_try_init(|| async {
            assert_eq!(self.running.fetch_add(1, SeqCst), 0, "two reviews of one token at the same time");
            future::yield_now().await;
            self.running.fetch_sub(1, SeqCst);
            self.done.fetch_add(1, SeqCst);
            let expires_at = Instant::now() + Duration::from_secs(3600);
            review.map(|identity| CachedResult { identity, expires_at }).ok_or(())
        });
        match result.await {
            Ok(result) => Some(result.identity),
            Err(()) => {
                self.cache.forget(&TOKEN, entry);
                None
            }
        }
    }
}

fn model(review: Option<Result<&'static str, ()>>, check: fn(&Reviews)) {
    let model = move || {
        let reviews = Arc::new(Reviews::default());
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let reviews = reviews.clone();
                thread::spawn(move || assert_eq!(future::block_on(reviews.identify(review)), review))
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        check(&reviews);
    };
    check_random(model, INTERLEAVINGS);
}

/// Concurrent clients share one review.
#[test]
fn concurrent_clients_share_one_review() {
    model(Some(Ok("node-a")), |reviews| assert_eq!((reviews.done.load(SeqCst), reviews.cache.lock().len()), (1, 1)));
}

/// Rejection is shared too.
#[test]
fn rejection_is_shared_too() {
    model(Some(Err(())), |reviews| assert_eq!((reviews.done.load(SeqCst), reviews.cache.lock().len()), (1, 1)));
}

/// Clients with random tokens must not fill the cache while the API server is down.
#[test]
fn failed_reviews_leave_no_entry() {
    model(None, |reviews| assert_eq!(reviews.cache.lock().len(), 0));
}
