//! Limits what one node may request: how many streams at a time, and how often it starts one or is sent a snapshot or a
//! repair, however many streams and connections it uses.
//!
//! ```text
//!   Hello ─▶ open_stream: one more stream, or an error ─▶ acquire_sync: waits for a token ─▶ Welcome, snapshot, repair
//! ```
//!
//! The entry of a node without streams is removed once its token bucket is full. Streams of `Drains` have a rate of
//! their own.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use proto::model::{Hello, Role};
use runtime::{Rate, TokenBucket, lock};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use crate::{identity::Identity, per_client::PerClient};

/// How often a client may open a stream of `Drains`, which reads the slices of the node: a node needs one for as long
/// as something waits.
const DRAINS_RATE: Rate = Rate { burst: 8, every: Duration::from_secs(1) };

#[derive(Debug)]
pub(crate) struct RateLimiter {
    /// How many streams a node may have at a time, for each role.
    streams: usize,
    /// How often it may be sent its state.
    syncs: Rate,
    nodes: Mutex<PerClient<(Arc<str>, Role), NodeUsage>>,
    /// Of authenticated clients: not more than nodes and administrators.
    drains: Mutex<PerClient<Identity, TokenBucket>>,
}

/// An open stream, until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    syncs: Rate,
    usage: NodeUsage,
}

/// How often a node may still be sent its state. Each of its streams has a reference, besides that of the table.
type NodeUsage = Arc<Mutex<TokenBucket>>;

impl RateLimiter {
    pub(crate) fn new(streams: usize, syncs: Rate) -> Self {
        Self { streams, syncs, nodes: Mutex::default(), drains: Mutex::default() }
    }

    /// Counts another stream; `None` if the node may not have it.
    pub(crate) fn open_stream(&self, hello: &Hello) -> Option<StreamPermit> {
        let now = Instant::now();
        let open = |usage: &NodeUsage| Arc::strong_count(usage) - 1;
        let is_used = |usage: &NodeUsage| open(usage) > 0 || !lock(usage).is_full(now);
        let new = || Arc::new(Mutex::new(TokenBucket::full(now)));
        let mut nodes = lock(&self.nodes);
        let usage = nodes.entry((hello.node.clone(), hello.role), is_used, new);
        (open(usage) < self.streams).then(|| StreamPermit { syncs: self.syncs, usage: usage.clone() })
    }

    /// Counts a stream of `Drains`. Returns whether the client may open it.
    pub(crate) fn open_drains(&self, client: &Identity) -> bool {
        let now = Instant::now();
        *client == Identity::Trusted || lock(&self.drains).bucket(client.clone(), now).take(DRAINS_RATE, now).is_ok()
    }
}

impl StreamPermit {
    /// Waits until the node may be sent its state again, and takes the token. Cancelling it takes none.
    pub(crate) async fn acquire_sync(&self) {
        loop {
            let taken = lock(&self.usage).take(self.syncs, Instant::now());
            let Err(available_at) = taken else { return };
            debug!("node exceeds its rate of stream starts, snapshots and repairs, delaying this one");
            sleep_until(available_at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{per_client::MIN_CLEANUP, testing::hello};

    const SYNCS: Rate = Rate { burst: 1, every: Duration::from_secs(1) };

    #[test]
    fn streams_are_limited_per_node_and_role() {
        let rate_limiter = RateLimiter::new(2, SYNCS);
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
        let rate_limiter = RateLimiter::new(2, SYNCS);
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
    async fn node_in_a_loop_is_refused_and_others_are_not() {
        let rate_limiter = RateLimiter::new(2, SYNCS);
        let asked = |client: &Identity| (0..2000).filter(|_| rate_limiter.open_drains(client)).count();
        let [one, other] = ["one", "other"].map(|name| Identity::Node(name.into()));
        assert_eq!((asked(&one), asked(&other), asked(&Identity::Trusted)), (8, 8, 2000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(asked(&one), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn entries_of_gone_nodes_are_removed() {
        let rate_limiter = RateLimiter::new(2, SYNCS);
        let stays = rate_limiter.open_stream(&hello("stays")).unwrap();
        for number in 0..10_000 {
            rate_limiter.open_stream(&hello(&format!("node-{number}"))).unwrap().acquire_sync().await;
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        // 20 nodes connect in the time for which an entry is kept.
        let entries = lock(&rate_limiter.nodes).len();
        assert!(entries <= 2 * MIN_CLEANUP, "{entries}");
        drop(stays);
    }
}
