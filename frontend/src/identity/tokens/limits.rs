//! Limits of TokenReviews: how often and how many at a time.
//!
//! | client | tokens | rate |
//! |---|---|---|
//! | holder | those with a valid signature | of each node or administrator that they were issued to |
//! | node | those whose signature could not be verified, from the address of a node | of each source |
//! | unknown | those whose signature could not be verified, from other addresses | of each source, and in total |
//!
//! The reviews of unknown clients have permits of their own, so that others do not wait for them.

use std::{net::IpAddr, sync::Mutex, time::Duration};

use runtime::{ClientSource, Rate, TokenBucket, lock};
use tokio::{
    sync::{AcquireError, Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::per_client::PerClient;

/// Concurrent reviews of tokens from holders and nodes.
pub(super) const NODE_REVIEWS: usize = 20;
/// Concurrent reviews of tokens from unknown clients.
pub(super) const UNKNOWN_REVIEWS: usize = 8;
/// Reviews for one client, or for one source (IPv6: /64): a frontend that starts asks once for each node, and without
/// the keys of the API server the nodes behind one address share these.
pub(super) const CLIENT_RATE: Rate = Rate { burst: 32, every: Duration::from_millis(200) };
/// Reviews for all unknown clients.
pub(super) const UNKNOWN_RATE: Rate = Rate { burst: 32, every: Duration::from_millis(100) };

/// The source of a request with a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenSource {
    /// `None`: unknown.
    pub(crate) address: Option<IpAddr>,
    /// Whether nodes connect from it.
    pub(crate) is_node: bool,
}

/// The client that a review is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReviewClient {
    /// The node or ServiceAccount in a token that the API server has signed.
    Holder(String),
    Node(Option<ClientSource>),
    Unknown(Option<ClientSource>),
}

/// Applies the limits.
#[derive(Debug)]
pub(super) struct ReviewLimiter {
    buckets: Mutex<Buckets>,
    node_permits: Semaphore,
    unknown_permits: Semaphore,
}

#[derive(Debug)]
struct Buckets {
    unknown: TokenBucket,
    clients: PerClient<ReviewClient, TokenBucket>,
}

impl TokenSource {
    /// The client with a token whose signature could not be verified.
    pub(super) fn client(self) -> ReviewClient {
        let source = self.address.map(ClientSource::from);
        if self.is_node { ReviewClient::Node(source) } else { ReviewClient::Unknown(source) }
    }
}

impl Default for ReviewLimiter {
    fn default() -> Self {
        let buckets = Buckets { unknown: TokenBucket::full(Instant::now()), clients: PerClient::default() };
        Self {
            buckets: Mutex::new(buckets),
            node_permits: Semaphore::new(NODE_REVIEWS),
            unknown_permits: Semaphore::new(UNKNOWN_REVIEWS),
        }
    }
}

impl ReviewLimiter {
    /// Counts a review. The error is the time until the next one may start.
    pub(super) fn count(&self, client: &ReviewClient) -> Result<(), Duration> {
        let now = Instant::now();
        let mut buckets = lock(&self.buckets);
        let Buckets { unknown, clients } = &mut *buckets;
        let in_table = clients.bucket(client.clone(), now);

        // Changed in the table only when all buckets have a token.
        let mut of_client = *in_table;
        of_client.take(CLIENT_RATE, now).map_err(|available_at| available_at - now)?;
        if matches!(client, ReviewClient::Unknown(_)) {
            unknown.take(UNKNOWN_RATE, now).map_err(|available_at| available_at - now)?;
        }

        *in_table = of_client;
        Ok(())
    }

    /// Waits until a review may run.
    pub(super) async fn start(&self, client: &ReviewClient) -> Result<SemaphorePermit<'_>, AcquireError> {
        let permits = match client {
            ReviewClient::Holder(_) | ReviewClient::Node(_) => &self.node_permits,
            ReviewClient::Unknown(_) => &self.unknown_permits,
        };
        permits.acquire().await
    }

    #[cfg(test)]
    pub(super) fn clients(&self) -> usize {
        self.buckets.lock().unwrap().clients.len()
    }
}
