//! Limits what one node may request: how many streams at a time, and how often it starts one or is sent a snapshot or a
//! repair, however many streams and connections it uses.
//!
//! ```text
//!   Hello ─▶ open_stream: one more stream, or an error ─▶ acquire_sync: waits for a token ─▶ Welcome, snapshot, repair
//! ```
//!
//! The entry of a node without streams is removed once its token bucket is full.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use proto::model::{Hello, Role};
use runtime::TokenBucket;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::config::NodeLimits;

/// Entries are not cleaned up below this number.
const MIN_CLEANUP: usize = 64;

/// The limits of all nodes. Clones share the same state.
#[derive(Clone, Debug)]
pub(crate) struct RateLimiter {
    limits: NodeLimits,
    usage: Arc<Mutex<UsageTable>>,
}

/// An open stream, until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    rate_limiter: RateLimiter,
    key: UsageKey,
}

type UsageKey = (Arc<str>, Role);

#[derive(Debug, Default)]
struct UsageTable {
    nodes: BTreeMap<UsageKey, NodeUsage>,
    /// The number of entries at which unused ones are removed.
    cleanup_at: usize,
}

#[derive(Debug)]
struct NodeUsage {
    streams: usize,
    syncs: TokenBucket,
}

impl RateLimiter {
    pub(crate) fn new(limits: NodeLimits) -> Self {
        Self { limits, usage: Arc::default() }
    }

    /// Counts another stream; `None` if the node may not have it.
    pub(crate) fn open_stream(&self, hello: &Hello) -> Option<StreamPermit> {
        let key = (hello.node.clone(), hello.role);
        let now = Instant::now();
        let is_permitted = self.with(|usage| {
            usage.clean_up(now);
            let node = usage.nodes.entry(key.clone());
            let node = node.or_insert_with(|| NodeUsage { streams: 0, syncs: TokenBucket::full(now) });
            let is_permitted = node.streams < self.limits.streams;
            node.streams += usize::from(is_permitted);
            is_permitted
        });
        is_permitted.then(|| StreamPermit { rate_limiter: self.clone(), key })
    }

    fn with<T>(&self, act: impl FnOnce(&mut UsageTable) -> T) -> T {
        act(&mut self.usage.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    fn entries(&self) -> usize {
        self.with(|usage| usage.nodes.len())
    }
}

impl StreamPermit {
    /// Waits until the node may be sent its state again, and takes the token. Cancelling it takes none.
    pub(crate) async fn acquire_sync(&self) {
        let RateLimiter { limits, .. } = self.rate_limiter;
        loop {
            let taken = self.rate_limiter.with(|usage| match usage.nodes.get_mut(&self.key) {
                Some(node) => node.syncs.take(limits.syncs, Instant::now()),
                None => Ok(()),
            });
            match taken {
                Ok(()) => return,
                Err(available_at) => {
                    debug!("node exceeds its rate of stream starts, snapshots and repairs, delaying this one");
                    sleep_until(available_at).await;
                }
            }
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.rate_limiter.with(|usage| {
            if let Some(node) = usage.nodes.get_mut(&self.key) {
                node.streams -= 1;
            }
        });
    }
}

impl UsageTable {
    /// Removes unused entries when there may be many.
    fn clean_up(&mut self, now: Instant) {
        if self.nodes.len() < self.cleanup_at.max(MIN_CLEANUP) {
            return;
        }
        self.nodes.retain(|_, node| node.streams > 0 || !node.syncs.is_full(now));
        self.cleanup_at = 2 * self.nodes.len();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::Rate;

    use super::*;
    use crate::testing::hello;

    const LIMITS: NodeLimits = NodeLimits { streams: 2, syncs: Rate { burst: 1, every: Duration::from_secs(1) } };

    #[test]
    fn streams_are_limited_per_node_and_role() {
        let rate_limiter = RateLimiter::new(LIMITS);
        let observer = Hello { role: Role::Observer, ..hello("node-0") };
        let first = rate_limiter.open_stream(&hello("node-0")).unwrap();
        let _second = rate_limiter.open_stream(&hello("node-0")).unwrap();
        assert!(rate_limiter.open_stream(&hello("node-0")).is_none());
        let _others =
            [rate_limiter.open_stream(&observer).unwrap(), rate_limiter.open_stream(&hello("node-1")).unwrap()];
        drop(first);
        rate_limiter.open_stream(&hello("node-0")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn reconnecting_gains_no_token_and_cancelling_takes_none() {
        let rate_limiter = RateLimiter::new(LIMITS);
        let start = Instant::now();
        rate_limiter.open_stream(&hello("node-0")).unwrap().acquire_sync().await;
        for _ in 0..100 {
            let permit = rate_limiter.open_stream(&hello("node-0")).unwrap();
            let cancelled = tokio::time::timeout(Duration::from_millis(1), permit.acquire_sync()).await;
            assert!(cancelled.is_err());
        }
        rate_limiter.open_stream(&hello("node-1")).unwrap().acquire_sync().await;
        assert_eq!(start.elapsed(), Duration::from_millis(100));
        rate_limiter.open_stream(&hello("node-0")).unwrap().acquire_sync().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn entries_of_gone_nodes_are_removed() {
        let rate_limiter = RateLimiter::new(LIMITS);
        let stays = rate_limiter.open_stream(&hello("stays")).unwrap();
        for number in 0..10_000 {
            rate_limiter.open_stream(&hello(&format!("node-{number}"))).unwrap().acquire_sync().await;
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        // 20 nodes connect in the time for which an entry is kept.
        assert!(rate_limiter.entries() <= 2 * MIN_CLEANUP, "{}", rate_limiter.entries());
        drop(stays);
    }
}
