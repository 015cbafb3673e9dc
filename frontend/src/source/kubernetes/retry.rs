//! Failures in a row: how long to wait after each, and when they are over.

use std::fmt::Display;
use std::time::Duration;

use runtime::Backoff;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::object::ObjectKind;
use crate::source::freshness::FreshnessRecorder;

/// Failures in a row at one kind.
pub(super) struct Retry {
    kind: ObjectKind,
    backoff: Backoff,
    max_delay: Duration,
    /// When the last one was.
    last: Option<Instant>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fine,
    Failing,
}

// === impl Retry ===

impl Retry {
    /// Delays go from one to the other.
    pub(super) fn new(kind: ObjectKind, (min, max): (Duration, Duration)) -> Self {
        Self { kind, backoff: Backoff::new(min, max), max_delay: max, last: None, state: State::Fine }
    }

    /// Tells of a failure and waits, longer after each one.
    pub(super) async fn wait(&mut self, error: impl Display, recorder: &FreshnessRecorder) {
        recorder.failed(&error);
        let delay = self.next_delay();
        warn!(kind = %self.kind, %error, ?delay, "the API failed, what is known stays in force");
        sleep(delay).await;
        self.last = Some(Instant::now());
    }

    /// The API has confirmed something.
    ///
    /// This does not make the next delay short again, only time does: of a server that lists, but whose watches all fail, a list
    /// would be asked many times a second.
    pub(super) fn over(&mut self) {
        if self.state == State::Failing {
            self.state = State::Fine;
            info!(kind = %self.kind, "the API works again");
        }
    }

    fn next_delay(&mut self) -> Duration {
        self.state = State::Failing;
        if self.last.is_some_and(|last| last.elapsed() > self.max_delay) {
            self.backoff.reset();
        }
        self.backoff.next_delay()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Freshness;

    const MIN_DELAY: Duration = Duration::from_millis(100);
    const MAX_DELAY: Duration = Duration::from_secs(10);

    /// How long the next failure is waited after.
    async fn waited(retry: &mut Retry) -> Duration {
        let recorder = Freshness::default().recorder(ObjectKind::Node);
        let begun = Instant::now();
        retry.wait("refused", &recorder).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn lists_between_failures_do_not_shorten_the_wait() {
        let mut retry = Retry::new(ObjectKind::Node, (MIN_DELAY, MAX_DELAY));
        let mut total = Duration::ZERO;
        for _ in 0..30 {
            total += waited(&mut retry).await;
            retry.over();
        }
        assert!(total > Duration::from_secs(60), "{total:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_time_shortens_the_wait() {
        let mut retry = Retry::new(ObjectKind::Node, (MIN_DELAY, MAX_DELAY));
        for _ in 0..30 {
            waited(&mut retry).await;
        }
        tokio::time::advance(MAX_DELAY + Duration::from_secs(1)).await;
        let first = waited(&mut retry).await;
        assert!(first <= 2 * MIN_DELAY, "{first:?}");
    }
}
