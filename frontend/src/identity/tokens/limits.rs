//! Limits of TokenReviews: how often and how many at a time, for each source and for three shares, so that the reviews
//! for nodes do not wait for those of unknown clients.
//!
//! | share | tokens | rate |
//! |---|---|---|
//! | node | those with acceptable claims from sources of nodes, and those that were accepted before | of each source |
//! | unknown | those with acceptable claims from other sources | of each source, and in total |
//! | opaque | those that are no JSON Web Tokens | of each source, and in total |
//!
//! Each share has permits of its own for concurrent reviews.

use std::{net::IpAddr, sync::Mutex, time::Duration};

use runtime::{ClientSource, Rate, TokenBucket, lock};
use tokio::{
    sync::{AcquireError, Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::per_client::PerClient;

/// Concurrent reviews of tokens from sources of nodes.
pub(super) const NODE_REVIEWS: usize = 20;
/// Concurrent reviews of tokens with acceptable claims from other sources.
pub(super) const UNKNOWN_REVIEWS: usize = 8;
/// Concurrent reviews of tokens that are no JSON Web Tokens.
pub(super) const OPAQUE_REVIEWS: usize = 4;

/// How many tokens the API server is asked to review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Reviews of tokens from one source (IPv6: /64).
    pub source: Rate,
    /// Reviews of tokens with acceptable claims from all sources that are not those of nodes.
    pub unknown: Rate,
    /// Reviews of tokens that are no JSON Web Tokens, from all sources.
    pub opaque: Rate,
}

/// The source of a request with a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenSource {
    /// `None`: unknown.
    pub(crate) address: Option<IpAddr>,
    /// Whether nodes connect from it.
    pub(crate) is_node: bool,
}

/// The share of the reviews that one belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewShare {
    Node,
    Unknown,
    Opaque,
}

/// Applies the limits.
#[derive(Debug)]
pub(super) struct ReviewLimiter {
    limits: TokenLimits,
    buckets: Mutex<Buckets>,
    /// For concurrent reviews, by [`ReviewShare`].
    permits: [Semaphore; 3],
}

#[derive(Debug)]
struct Buckets {
    unknown: TokenBucket,
    opaque: TokenBucket,
    sources: PerClient<Option<ClientSource>, TokenBucket>,
}

impl Default for TokenLimits {
    fn default() -> Self {
        Self {
            // A frontend that starts asks once for each node; nodes behind one address share these.
            source: Rate { burst: 32, every: Duration::from_millis(200) },
            unknown: Rate { burst: 32, every: Duration::from_millis(100) },
            opaque: Rate { burst: 8, every: Duration::from_millis(500) },
        }
    }
}

impl ReviewLimiter {
    pub(super) fn new(limits: TokenLimits) -> Self {
        let full = TokenBucket::full(Instant::now());
        let buckets = Buckets { unknown: full, opaque: full, sources: PerClient::default() };
        let permits = [NODE_REVIEWS, UNKNOWN_REVIEWS, OPAQUE_REVIEWS].map(Semaphore::new);
        Self { limits, buckets: Mutex::new(buckets), permits }
    }

    /// Counts a review. The error is the time until the next one may start.
    pub(super) fn count(&self, share: ReviewShare, source: TokenSource) -> Result<(), Duration> {
        let now = Instant::now();
        let mut buckets = lock(&self.buckets);
        let Buckets { unknown, opaque, sources } = &mut *buckets;
        let in_table = sources.bucket(source.address.map(ClientSource::from), now);
        // Changed in the table only when all buckets have a token.
        let mut of_source = *in_table;
        let counted = of_source.take(self.limits.source, now).and_then(|()| match share {
            ReviewShare::Node => Ok(()),
            ReviewShare::Unknown => unknown.take(self.limits.unknown, now),
            ReviewShare::Opaque => opaque.take(self.limits.opaque, now),
        });
        counted.map_err(|available_at| available_at - now)?;
        *in_table = of_source;
        Ok(())
    }

    /// Waits until a review may run.
    pub(super) async fn start(&self, share: ReviewShare) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.permits[share as usize].acquire().await
    }

    #[cfg(test)]
    pub(super) fn sources(&self) -> usize {
        self.buckets.lock().unwrap().sources.len()
    }
}
