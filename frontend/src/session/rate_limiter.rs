//! How much one node may ask for: so many streams at a time, and a view so often, whatever its streams and connections do.
//!
//! ```text
//!   Hello ──▶ enter: one stream more, or refused ──▶ turn: waits until the node may ask again ──▶ Welcome, snapshot, repair
//! ```
//!
//! What is remembered of a node that has gone is forgotten when it may ask for everything again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use proto::model::{Hello, Role};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::{
    SessionError,
    token_bucket::{Rate, TokenBucket},
};

/// What may be remembered in vain before it is looked through.
const FORGETTABLE: usize = 64;

/// What one node may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Streams at a time. Observers of a node are counted apart from its agents, and so are its shadows.
    pub streams: usize,
    /// How often a stream may start, and be sent a snapshot or a repair later.
    pub syncs: Rate,
}

/// All nodes that have streams, or had some just now. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct RateLimiter {
    limits: NodeLimits,
    known: Arc<Mutex<Known>>,
}

/// One stream. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    rate_limiter: RateLimiter,
    key: Key,
}

/// Whose view, and for whom.
type Key = (Arc<str>, Place);

/// [`Role`], in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Agent,
    Observer,
    Shadow,
}

#[derive(Debug, Default)]
struct Known {
    rate_limiter: BTreeMap<Key, Visitor>,
    /// With so many it is time to forget some.
    sweep_at: usize,
}

#[derive(Debug)]
struct Visitor {
    streams: usize,
    turns: TokenBucket,
}

impl RateLimiter {
    pub(crate) fn new(limits: NodeLimits) -> Self {
        Self { limits, known: Arc::default() }
    }

    /// One stream more, if the node may have it.
    pub(super) fn enter(&self, hello: &Hello) -> Result<StreamPermit, SessionError> {
        let place = match hello.role {
            Role::Backend => Place::Agent,
            Role::Observer => Place::Observer,
            Role::Shadow => Place::Shadow,
        };
        let key = (hello.node.clone(), place);
        let now = Instant::now();
        let entered = self.with(|known| {
            known.sweep(now);
            let visitor = known
                .rate_limiter
                .entry(key.clone())
                .or_insert_with(|| Visitor { streams: 0, turns: TokenBucket::full(now) });
            let free = visitor.streams < self.limits.streams;
            visitor.streams += usize::from(free);
            free
        });
        if entered {
            Ok(StreamPermit { rate_limiter: self.clone(), key })
        } else {
            Err(SessionError::TooManyStreams(self.limits.streams))
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    fn remembered(&self) -> usize {
        self.with(|known| known.rate_limiter.len())
    }
}

impl StreamPermit {
    /// Waits until the node may ask for its view again, and takes that turn. Whoever stops waiting has taken nothing.
    pub(super) async fn turn(&self) {
        let RateLimiter { limits, .. } = self.rate_limiter;
        loop {
            let taken = self.rate_limiter.with(|known| match known.rate_limiter.get_mut(&self.key) {
                Some(visitor) => visitor.turns.take(limits.syncs, Instant::now()),
                None => Ok(()),
            });
            match taken {
                Ok(()) => return,
                Err(next) => {
                    debug!("this node asks often, it waits");
                    sleep_until(next).await;
                }
            }
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.rate_limiter.with(|known| {
            if let Some(visitor) = known.rate_limiter.get_mut(&self.key) {
                visitor.streams -= 1;
            }
        });
    }
}

impl Known {
    /// Forgets those of whom there is nothing to know, if there may be many.
    fn sweep(&mut self, now: Instant) {
        if self.rate_limiter.len() < self.sweep_at.max(FORGETTABLE) {
            return;
        }
        self.rate_limiter.retain(|_, visitor| visitor.streams > 0 || !visitor.turns.is_full(now));
        self.sweep_at = 2 * self.rate_limiter.len();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::tests::hello;

    const LIMITS: NodeLimits = NodeLimits { streams: 2, syncs: Rate { burst: 1, every: Duration::from_secs(1) } };

    #[test]
    fn so_many_streams_for_a_node_and_role() {
        let rate_limiter = RateLimiter::new(LIMITS);
        let observer = Hello { role: Role::Observer, ..hello("node-0") };
        let first = rate_limiter.enter(&hello("node-0")).unwrap();
        let _second = rate_limiter.enter(&hello("node-0")).unwrap();
        let refused = rate_limiter.enter(&hello("node-0")).unwrap_err();
        assert!(matches!(refused, SessionError::TooManyStreams(2)), "{refused}");
        let _others = [rate_limiter.enter(&observer).unwrap(), rate_limiter.enter(&hello("node-1")).unwrap()];
        drop(first);
        rate_limiter.enter(&hello("node-0")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn coming_back_is_no_way_to_a_turn_and_leaving_takes_none() {
        let rate_limiter = RateLimiter::new(LIMITS);
        let start = Instant::now();
        rate_limiter.enter(&hello("node-0")).unwrap().turn().await;
        for _ in 0..100 {
            let permit = rate_limiter.enter(&hello("node-0")).unwrap();
            let left = tokio::time::timeout(Duration::from_millis(1), permit.turn()).await;
            assert!(left.is_err());
        }
        rate_limiter.enter(&hello("node-1")).unwrap().turn().await;
        assert_eq!(start.elapsed(), Duration::from_millis(100));
        rate_limiter.enter(&hello("node-0")).unwrap().turn().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_have_gone_are_forgotten() {
        let rate_limiter = RateLimiter::new(LIMITS);
        let stays = rate_limiter.enter(&hello("stays")).unwrap();
        for number in 0..10_000 {
            rate_limiter.enter(&hello(&format!("node-{number}"))).unwrap().turn().await;
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        // 20 come in the time for which one is remembered.
        assert!(rate_limiter.remembered() <= 2 * FORGETTABLE, "{}", rate_limiter.remembered());
        drop(stays);
    }
}
