//! How often a client may ask.

use std::{sync::Mutex, time::Duration};

use runtime::{Rate, TokenBucket, lock};
use tokio::time::Instant;

use crate::{clients::PerClient, identity::Identity};

/// A node on which 96 pods end asks for each of them at once, and again each second.
const QUESTIONS: Rate = Rate { burst: 512, every: Duration::from_millis(5) };

/// The clients that have asked. They are authenticated, so there are not more than nodes and administrators.
#[derive(Debug, Default)]
pub(crate) struct QuestionRates(Mutex<PerClient<Identity, TokenBucket>>);

impl QuestionRates {
    /// Counts a question. Returns whether the client may ask it.
    pub(crate) fn count(&self, client: &Identity) -> bool {
        if *client == Identity::Trusted {
            return true;
        }
        let now = Instant::now();
        lock(&self.0).bucket(client.clone(), now).take(QUESTIONS, now).is_ok()
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
