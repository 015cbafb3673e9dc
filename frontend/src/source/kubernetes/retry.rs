//! Failures of the requests for one kind: how long to wait after each, and which of them to log.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use runtime::{
    Backoff,
    failure::{Occurrence, Repeated},
};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::object::ObjectKind;

/// The longest delay before a watch is resumed, which costs little. Lists have a longer one.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(3);

/// Waits after failed requests for one kind, longer each time, and logs when a failure begins, changes its cause and
/// ends.
pub(super) struct Retry<'a> {
    kind: ObjectKind,
    backoff: Backoff,
    max_delay: Duration,
    /// When the last wait ended.
    last: Option<Instant>,
    repeated: Repeated,
    /// What failed last.
    operation: Operation,
    causes: &'a SharedCauses,
}

/// What is requested for a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Its first list: nothing can be served before.
    FirstList,
    /// Another list.
    List,
    /// A watch.
    Watch,
}

/// Why each kind fails now. One server fails for all kinds alike, so a cause is logged for the first kind only.
#[derive(Debug, Default)]
pub(super) struct SharedCauses(Mutex<BTreeMap<ObjectKind, String>>);

// === impl SharedCauses ===

impl SharedCauses {
    /// Sets the cause for a kind. Whether it is the only kind that fails for this cause.
    fn set(&self, kind: ObjectKind, cause: &str) -> bool {
        // Ports and attempts differ between kinds.
        let cause: String = cause.chars().filter(|c| !c.is_ascii_digit()).collect();
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_only = !kinds.iter().any(|(other, its)| *other != kind && *its == cause);
        kinds.insert(kind, cause);
        is_only
    }

    /// A kind does not fail any more. Whether it was the last one that failed for its cause.
    fn clear(&self, kind: ObjectKind) -> bool {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = kinds.remove(&kind);
        !kinds.values().any(|other| Some(other) == cause.as_ref())
    }
}

// === impl Retry ===

impl<'a> Retry<'a> {
    /// Delays grow from the first to the second.
    pub(super) fn new(kind: ObjectKind, (min, max): (Duration, Duration), causes: &'a SharedCauses) -> Self {
        Self {
            kind,
            backoff: Backoff::new(min, max),
            max_delay: max,
            last: None,
            repeated: Repeated::default(),
            operation: Operation::FirstList,
            causes,
        }
    }

    /// Logs a failure and waits, longer after each one, and at least as long as the server asks for.
    pub(super) async fn wait(
        &mut self,
        operation: Operation,
        cause: &str,
        advice: Option<String>,
        retry_after: Duration,
    ) {
        self.operation = operation;
        // Only time makes the delay short again: of a server that lists, but whose watches all fail, a list would be
        // requested many times a second.
        if self.last.is_some_and(|last| last.elapsed() > self.max_delay) {
            self.backoff.reset();
        }
        let max = if operation == Operation::Watch { MAX_WATCH_DELAY } else { self.max_delay };
        let delay = self.backoff.next_delay().min(max).max(retry_after);
        self.log(cause, advice, delay);
        sleep(delay).await;
        self.last = Some(Instant::now());
    }

    fn log(&mut self, error: &str, advice: Option<String>, delay: Duration) {
        let (kind, retry_in_ms) = (self.kind, delay.as_millis());
        let occurrence = self.repeated.failed(error);
        if !(occurrence.is_news() && self.causes.set(kind, error)) {
            let failures = match occurrence {
                Occurrence::First => 1,
                Occurrence::CauseChanged(count) | Occurrence::Again(count) => count,
            };
            debug!(%kind, error, failures, retry_in_ms, "request failed again, or for another kind as well");
            return;
        }
        match self.operation {
            Operation::FirstList => warn!(%kind, error, advice, retry_in_ms, "list failed, no state to serve yet"),
            Operation::List => warn!(%kind, error, advice, retry_in_ms, "list failed, serving the last known state"),
            Operation::Watch => warn!(%kind, error, advice, retry_in_ms, "watch failed, serving the last known state"),
        }
    }

    /// A list has succeeded. This ends a failure of lists only: watches may all fail on a server whose lists succeed.
    pub(super) fn list_succeeded(&mut self) {
        if self.operation != Operation::Watch {
            self.succeeded();
        }
    }

    /// A watch has delivered something, or a list has succeeded after a failed one. Logs the end of the failure.
    pub(super) fn succeeded(&mut self) {
        let Some(recovery) = self.repeated.recovered() else { return };
        let (kind, failures, duration_ms) = (self.kind, recovery.count, recovery.duration.as_millis());
        if self.causes.clear(kind) {
            info!(%kind, failures, duration_ms, "requests to the API server succeed again");
        } else {
            debug!(%kind, failures, duration_ms, "requests for this kind succeed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_DELAY: Duration = Duration::from_millis(100);
    const MAX_DELAY: Duration = Duration::from_secs(10);

    /// How long a failure is waited after.
    async fn delay(retry: &mut Retry<'_>) -> Duration {
        let start = Instant::now();
        retry.wait(Operation::Watch, "refused", None, Duration::ZERO).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn successes_between_failures_do_not_shorten_the_delay() {
        let causes = SharedCauses::default();
        let mut retry = Retry::new(ObjectKind::Node, (MIN_DELAY, MAX_DELAY), &causes);
        let mut total = Duration::ZERO;
        for _ in 0..30 {
            total += delay(&mut retry).await;
            retry.succeeded();
        }
        assert!(total > Duration::from_secs(45), "{total:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn watch_is_resumed_within_seconds_of_an_outage() {
        for _ in 0..100 {
            let causes = SharedCauses::default();
            let mut retry = Retry::new(ObjectKind::Node, (MIN_DELAY, MAX_DELAY), &causes);
            for _ in 0..30 {
                let delay = delay(&mut retry).await;
                assert!(delay <= Duration::from_secs(3), "{delay:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_failures_shortens_the_delay() {
        let causes = SharedCauses::default();
        let mut retry = Retry::new(ObjectKind::Node, (MIN_DELAY, MAX_DELAY), &causes);
        for _ in 0..30 {
            delay(&mut retry).await;
        }
        tokio::time::advance(MAX_DELAY + Duration::from_secs(1)).await;
        let first = delay(&mut retry).await;
        assert!(first <= 2 * MIN_DELAY, "{first:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn list_ends_a_failure_of_lists_only() {
        let causes = SharedCauses::default();
        let mut retry = Retry::new(ObjectKind::Node, (MIN_DELAY, MAX_DELAY), &causes);
        delay(&mut retry).await;
        retry.list_succeeded();
        assert!(retry.repeated.is_failing());
        retry.succeeded();
        assert!(!retry.repeated.is_failing());
    }

    #[test]
    fn cause_is_logged_for_the_first_kind_and_its_end_for_the_last() {
        let causes = SharedCauses::default();
        assert!(causes.set(ObjectKind::Node, "connect 10.0.0.1:6443: refused"));
        assert!(!causes.set(ObjectKind::Service, "connect 10.0.0.1:6443: refused"));
        assert!(causes.set(ObjectKind::EndpointSlice, "endpointslices is forbidden"));
        assert!(!causes.clear(ObjectKind::Node));
        assert!(causes.clear(ObjectKind::Service));
        assert!(causes.clear(ObjectKind::EndpointSlice));
    }
}
