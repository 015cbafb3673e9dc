//! Failures of the requests for one kind: how long to wait after each, and which of them to log.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use runtime::{
    Backoff,
    failure::{Occurrence, Repeated, chain},
    lock,
};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Deadlines, request::RequestError};
use crate::{object::ObjectKind, source::Freshness};

/// The longest delay before a request that costs the API server little: a watch that is resumed, or any request that it
/// has not received. Changes arrive so soon after an outage, plus the time of a list.
const MAX_SHORT_DELAY: Duration = Duration::from_secs(1);

/// Waits after failed requests for one kind, longer each time, and logs when a failure begins, changes its cause and
/// ends.
pub(super) struct Retry<'a> {
    kind: ObjectKind,
    /// Before requests that cost the API server little.
    short: Delays,
    /// Before lists.
    long: Delays,
    repeated: Repeated,
    /// What failed last.
    operation: Operation,
    causes: &'a SharedCauses,
}

/// Growing delays, which only time makes short again: of a server that lists, but whose watches all fail, a list would
/// be requested many times a second.
#[derive(Debug)]
struct Delays {
    backoff: Backoff,
    max: Duration,
    /// When the last delay ends.
    end: Option<Instant>,
}

/// What has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The first list of a kind: nothing can be served before.
    FirstList,
    /// Another list.
    List,
    /// A watch, which is resumed.
    Watch,
    /// A watch that cannot be resumed: a list is next.
    ExpiredWatch,
    /// A request beside a watch, which shows whether that is complete.
    Verify,
}

/// Why each kind fails now. One server fails for all kinds alike, so a cause is logged for the first kind only.
#[derive(Debug, Default)]
pub(super) struct SharedCauses(Mutex<BTreeMap<ObjectKind, String>>);

impl SharedCauses {
    /// Sets the cause for a kind. Returns whether no other kind fails for this cause.
    fn set(&self, kind: ObjectKind, cause: &str) -> bool {
        // Ports and attempts differ between kinds.
        let cause: String = cause.chars().filter(|c| !c.is_ascii_digit()).collect();

        let mut kinds = lock(&self.0);
        let is_only = !kinds.iter().any(|(other, its)| *other != kind && *its == cause);
        kinds.insert(kind, cause);
        is_only
    }

    /// A kind does not fail any more. Returns whether no other kind fails for its cause.
    fn clear(&self, kind: ObjectKind) -> bool {
        let mut kinds = lock(&self.0);
        let cause = kinds.remove(&kind);
        !kinds.values().any(|other| Some(other) == cause.as_ref())
    }
}

impl Delays {
    fn new(min: Duration, max: Duration) -> Self {
        Self { backoff: Backoff::new(min, max), max, end: None }
    }

    /// The next delay, which starts now. With `at_once`, the first one is zero.
    fn next(&mut self, at_once: bool) -> Duration {
        let first = self.end.is_none_or(|end| end.elapsed() > self.max);
        if first {
            self.backoff.reset();
        }

        let delay = if first && at_once { Duration::ZERO } else { self.backoff.next_delay() };
        self.end = Some(Instant::now() + delay);
        delay
    }
}

impl<'a> Retry<'a> {
    pub(super) fn new(kind: ObjectKind, deadlines: &Deadlines, causes: &'a SharedCauses) -> Self {
        let Deadlines { min_retry, max_retry, .. } = *deadlines;
        Self {
            kind,
            short: Delays::new(min_retry, max_retry.min(MAX_SHORT_DELAY)),
            long: Delays::new(min_retry, max_retry),
            repeated: Repeated::default(),
            operation: Operation::FirstList,
            causes,
        }
    }

    /// Records and logs a failure and waits, longer after each one, and at least as long as the server asks for.
    pub(super) async fn wait(
        &mut self,
        operation: Operation,
        error: &RequestError,
        freshness: &Freshness,
        advice: Option<String>,
    ) {
        let cause = chain(error);
        freshness.failed(self.kind, &cause);
        self.operation = operation;

        let is_cheap = operation == Operation::Watch || matches!(error, RequestError::NoResponse(_));
        let delays = if is_cheap { &mut self.short } else { &mut self.long };
        // All watches expire when an API server restarts, and each was delayed until it had.
        let delay = delays.next(operation == Operation::ExpiredWatch).max(error.retry_after());

        self.log(&cause, advice, delay);
        sleep(delay).await;
    }

    fn log(&mut self, error: &str, advice: Option<String>, delay: Duration) {
        let kind = self.kind;
        let retry_in_ms = delay.as_millis();
        let Occurrence { count: failures, is_news } = self.repeated.failed(error);
        if !(is_news && self.causes.set(kind, error)) {
            debug!(%kind, error, failures, retry_in_ms, "request failed again, or for another kind as well");
            return;
        }

        let text = match self.operation {
            Operation::FirstList => "list failed, no state to serve yet",
            Operation::List => "list failed, serving the last known state",
            Operation::Watch | Operation::ExpiredWatch => "watch failed, serving the last known state",
            Operation::Verify => "cannot verify the watch, which goes on",
        };
        warn!(%kind, error, advice, retry_in_ms, "{text}");
    }

    /// A list has succeeded. This ends a failure of lists only: watches may all fail on a server whose lists succeed.
    pub(super) fn list_succeeded(&mut self) {
        if matches!(self.operation, Operation::FirstList | Operation::List) {
            self.succeeded();
        }
    }

    /// A watch has delivered something, or a list has succeeded after a failed one. Logs the end of the failure.
    pub(super) fn succeeded(&mut self) {
        let Some(recovery) = self.repeated.recovered() else { return };
        let kind = self.kind;
        let failures = recovery.count;
        let duration_ms = recovery.duration.as_millis();
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

    fn retry(causes: &SharedCauses) -> Retry<'_> {
        let deadlines = Deadlines { min_retry: MIN_DELAY, max_retry: MAX_DELAY, ..Deadlines::default() };
        Retry::new(ObjectKind::Node, &deadlines, causes)
    }

    /// The delay after a failure.
    async fn delay(retry: &mut Retry<'_>, operation: Operation) -> Duration {
        let start = Instant::now();
        retry.wait(operation, &RequestError::Cut, &Freshness::default(), None).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn successes_between_failures_do_not_shorten_the_delay() {
        let causes = SharedCauses::default();
        let mut retry = retry(&causes);
        let mut total = Duration::ZERO;
        for _ in 0..30 {
            total += delay(&mut retry, Operation::Watch).await;
            retry.succeeded();
        }
        assert!(total > Duration::from_secs(8), "{total:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn delays_of_watches_do_not_lengthen_those_of_lists() {
        for _ in 0..100 {
            let causes = SharedCauses::default();
            let mut retry = retry(&causes);
            for _ in 0..30 {
                let delay = delay(&mut retry, Operation::Watch).await;
                assert!(delay <= MAX_SHORT_DELAY, "{delay:?}");
            }
            assert_eq!(delay(&mut retry, Operation::ExpiredWatch).await, Duration::ZERO);
            let list = delay(&mut retry, Operation::List).await;
            assert!(MIN_DELAY <= list && list <= 2 * MIN_DELAY, "{list:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watches_that_expire_again_and_again_cause_lists_at_growing_intervals() {
        let causes = SharedCauses::default();
        let mut retry = retry(&causes);
        let mut total = Duration::ZERO;
        for _ in 0..30 {
            total += delay(&mut retry, Operation::ExpiredWatch).await;
            retry.list_succeeded();
        }
        assert!(total > Duration::from_secs(80), "{total:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_failures_shortens_the_delay() {
        let causes = SharedCauses::default();
        let mut retry = retry(&causes);
        for _ in 0..30 {
            delay(&mut retry, Operation::List).await;
        }
        tokio::time::advance(MAX_DELAY + Duration::from_secs(1)).await;
        let first = delay(&mut retry, Operation::List).await;
        assert!(first <= 2 * MIN_DELAY, "{first:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn list_ends_a_failure_of_lists_only() {
        let causes = SharedCauses::default();
        let mut retry = retry(&causes);
        delay(&mut retry, Operation::Watch).await;
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
