//! Requests beside a watch, which show whether its silence means that nothing has changed. They never delay the watch.
//!
//! - Has the API server gone back, after a restore from a backup? A list of one object shows its version, each time a
//!   new watch begins.
//! - Did the watch miss changes? The names and versions of all objects (`PartialObjectMetadata`) show it: when no event
//!   or bookmark has arrived for [`Deadlines::silence`](super::Deadlines), and when a watch is resumed after a failure.
//!
//! An API server that was restored from a backup accepts a watch after a version that it has not reached. It sends
//! nothing until it reaches it, and never reports what the restore reverted. In a busy cluster it reaches that version
//! before it can be asked for its own.

use std::sync::Mutex;

use runtime::lock;
use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{
    WatchContext,
    decode::Watchable,
    request::{RequestError, Requests},
    retry::{Operation, Retry},
    versions::{DifferingVersions, ObjectVersions, check_order},
};

/// What a watch and its verification share.
#[derive(Debug, Default)]
pub(super) struct Watched {
    state: Mutex<WatchedState>,
    resumed: Notify,
}

#[derive(Debug, Default)]
struct WatchedState {
    /// What was delivered.
    objects: ObjectVersions,
    /// The version after which a watch was started, until the API server is known to have reached it.
    unchecked: Option<String>,
    /// When a watch was resumed after a failure, if the objects have not been compared since.
    uncompared: Option<Instant>,
}

/// What to verify next.
enum Check {
    /// Whether the API server has reached this version, after which a watch was started.
    Version(String),
    /// Whether the watch has missed changes of objects.
    Objects,
}

/// Verifies the watches of one kind.
pub(super) struct Verifier<'a, K> {
    pub(super) context: &'a WatchContext,
    pub(super) requests: &'a Requests<K>,
    pub(super) watched: &'a Watched,
    pub(super) retry: Retry<'a>,
    /// The last comparison.
    pub(super) compared: Option<Instant>,
}

impl Watched {
    /// All objects were listed.
    pub(super) fn replaced(&self, objects: ObjectVersions) {
        *lock(&self.state) = WatchedState { objects, ..WatchedState::default() };
    }

    /// The API server has accepted a watch after a version that an earlier watch or list had reached, perhaps after a
    /// failure.
    pub(super) fn resumed(&self, version: &str, after_failure: bool) {
        let mut state = lock(&self.state);
        state.unchecked = Some(version.to_owned());
        if after_failure {
            state.uncompared.get_or_insert_with(Instant::now);
        }
        drop(state);
        self.resumed.notify_one();
    }

    /// An event has arrived, which changes the versions of the objects.
    pub(super) fn event(&self, change: impl FnOnce(&mut ObjectVersions)) {
        change(&mut lock(&self.state).objects);
    }
}

impl<K: Watchable> Verifier<'_, K> {
    /// Verifies the watches until a new list is needed, and returns why.
    pub(super) async fn run(&mut self) -> RequestError {
        loop {
            let verified = match self.next_check().await {
                Check::Version(last) => self.check_version(&last).await,
                Check::Objects => self.compare().await,
            };
            match verified {
                Ok(()) => self.retry.succeeded(),
                Err(error @ (RequestError::Backwards { .. } | RequestError::Missed(_))) => return error,
                // The next list decides whether to continue without this kind.
                Err(error) if K::OPTIONAL && error.is_not_offered() => return error,
                Err(error) => {
                    let advice = self.requests.advice(&error);
                    self.retry.wait(Operation::Verify, &error, &self.context.freshness, advice).await;
                }
            }
        }
    }

    /// Waits until a check is due.
    async fn next_check(&self) -> Check {
        loop {
            let unchecked = lock(&self.watched.state).unchecked.clone();
            if let Some(last) = unchecked {
                return Check::Version(last);
            }

            let due = self.comparison_due();
            if due <= Instant::now() {
                return Check::Objects;
            }
            select! {
                () = self.watched.resumed.notified() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// Requests the version of the API server. Fails if it is lower than `last`, which it had reached before.
    async fn check_version(&self, last: &str) -> Result<(), RequestError> {
        match self.requests.version().await {
            Ok(found) => check_order(last, &found)?,
            // Perhaps only the verb `list` is not allowed.
            Err(error) if error.is_not_offered() => {}
            Err(error) => return Err(error),
        }

        let mut state = lock(&self.watched.state);
        if state.unchecked.as_deref() == Some(last) {
            state.unchecked = None;
        }
        Ok(())
    }

    /// When to compare all versions next: when no event or bookmark has arrived for a time; and after a failed watch
    /// was resumed, but not at once, because all clients of an API server that restarts come back then, and not more
    /// often than for silent watches, because each watch may fail.
    fn comparison_due(&self) -> Instant {
        let deadlines = &self.context.deadlines;
        let confirmed = self.context.freshness.with(K::KIND, |row| row.confirmed).unwrap_or_else(Instant::now);
        let after_silence = confirmed + deadlines.silence;
        let Some(resumed) = lock(&self.watched.state).uncompared else { return after_silence };

        let mut after_failure = resumed + deadlines.after_failure;
        if let Some(compared) = self.compared {
            after_failure = after_failure.max(compared + deadlines.silence);
        }
        after_silence.min(after_failure)
    }

    /// Compares all versions. Fails if the watch has missed changes, those of objects that differ alike in two
    /// comparisons: an event that is on its way arrives between the comparisons.
    async fn compare(&mut self) -> Result<(), RequestError> {
        self.compared = Some(Instant::now());
        let first = self.differing().await?;
        if !first.is_empty() {
            sleep(self.context.deadlines.grace).await;
            let missed = self.differing().await?.intersection(&first).count();
            if missed > 0 {
                return Err(RequestError::Missed(missed));
            }
        }

        lock(&self.watched.state).uncompared = None;
        self.context.freshness.confirmed(K::KIND);
        Ok(())
    }

    /// The objects whose versions at the API server are not those that were delivered.
    async fn differing(&self) -> Result<DifferingVersions, RequestError> {
        let found = self.requests.object_versions().await?;
        Ok(lock(&self.watched.state).objects.differing(&found))
    }
}
