//! How often a client may ask.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use runtime::{Rate, TokenBucket};
use tokio::time::Instant;

use crate::identity::Identity;

/// A node on which 96 pods end asks for each of them at once, and again each second.
const QUESTIONS: Rate = Rate { burst: 512, every: Duration::from_millis(5) };
/// Full buckets are removed at this number of clients.
const MIN_CLEANUP: usize = 64;

/// The clients that have asked.
#[derive(Debug)]
pub(crate) struct QuestionRates(Mutex<Buckets>);

#[derive(Debug)]
struct Buckets {
    /// Those that are not full. Clients are authenticated, so there are not more than nodes and administrators.
    clients: BTreeMap<Identity, TokenBucket>,
    cleanup_at: usize,
}

impl Default for QuestionRates {
    fn default() -> Self {
        Self(Mutex::new(Buckets { clients: BTreeMap::new(), cleanup_at: MIN_CLEANUP }))
    }
}

impl QuestionRates {
    /// Counts a question. Returns whether the client may ask it.
    pub(crate) fn count(&self, client: &Identity) -> bool {
        if *client == Identity::Trusted {
            return true;
        }
        let now = Instant::now();
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { clients, cleanup_at } = &mut *buckets;
        if clients.len() >= *cleanup_at {
            clients.retain(|_, bucket| !bucket.is_full(now));
            *cleanup_at = MIN_CLEANUP.max(2 * clients.len());
        }
        clients.entry(client.clone()).or_insert_with(|| TokenBucket::full(now)).take(QUESTIONS, now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_in_a_loop_is_refused_and_others_are_not() {
        let rates = QuestionRates::default();
        let asked = |client: &Identity| (0..2000).filter(|_| rates.count(client)).count();
        let [one, other] = ["one", "other"].map(|name| Identity::Node(name.into()));
        assert_eq!((asked(&one), asked(&other), asked(&Identity::Trusted)), (512, 512, 2000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(asked(&one), 200);
    }
}
