//! Requests beside a watch, which show whether its silence means that nothing has changed. They never delay the watch.
//!
//! - Has the API server gone back, after a restore from a backup? A list of one object shows its version, each time a
//!   watch is resumed.
//! - Did the watch miss changes? The names and versions of all objects (`PartialObjectMetadata`) show it: when no event
//!   or bookmark has arrived for [`Deadlines::silence`], and when a watch is resumed after a failure.
//!
//! An API server that was restored from a backup accepts a watch after a version that it has not reached. It sends
//! nothing until it reaches it, and never reports what the restore reverted. In a busy cluster it reaches that version
//! before it can be asked for its own.
//!
//! An API server without progress notifications from etcd sends no bookmarks for a kind without changes. The interval
//! between comparisons therefore doubles while they find nothing, up to a limit. A bookmark, a failed watch and a
//! missed change each end that.

use std::{
    cmp::max,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use runtime::{
    Backoff,
    failure::{Repeated, chain},
    lock,
};
use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    Deadlines,
    decode::Watchable,
    request::{RequestError, Requests},
    versions::{ObjectVersions, check_order},
};
use crate::source::freshness::FreshnessRecorder;

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
    /// The version after which a watch was resumed, until the API server is known to have reached it.
    unchecked: Option<String>,
    /// When a watch was resumed after a failure, if the objects have not been compared since.
    uncompared: Option<Instant>,
    /// A bookmark has arrived since this was last looked at.
    bookmarked: bool,
}

/// Verifies the watches of one kind.
pub(super) struct Verifier<K> {
    requests: Arc<Requests<K>>,
    recorder: FreshnessRecorder,
    watched: Arc<Watched>,
    deadlines: Deadlines,
    /// The last comparison.
    compared: Option<Instant>,
    /// How long a watch may be silent before the next comparison.
    silence: Duration,
    /// The number of comparisons since the last bookmark.
    silent: Repeated,
    /// Requests of the verification that failed.
    failing: Repeated,
    backoff: Backoff,
}

// === impl Watched ===

impl Watched {
    /// All objects were listed.
    pub(super) fn replaced(&self, objects: ObjectVersions) {
        let mut state = lock(&self.state);
        state.objects = objects;
        state.unchecked = None;
        state.uncompared = None;
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

    /// A bookmark has arrived.
    pub(super) fn bookmark(&self) {
        lock(&self.state).bookmarked = true;
    }

    /// An event has arrived, which changes the versions of the objects.
    pub(super) fn event(&self, change: impl FnOnce(&mut ObjectVersions)) {
        change(&mut lock(&self.state).objects);
    }
}

// === impl Verifier ===

impl<K: Watchable> Verifier<K> {
    pub(super) fn new(
        requests: Arc<Requests<K>>,
        recorder: FreshnessRecorder,
        watched: Arc<Watched>,
        deadlines: Deadlines,
    ) -> Self {
        let (min, max) = deadlines.retry;
        Self {
            requests,
            recorder,
            watched,
            deadlines,
            compared: None,
            silence: deadlines.silence.0,
            silent: Repeated::default(),
            failing: Repeated::default(),
            backoff: Backoff::new(min, max),
        }
    }

    /// Verifies the watches until a new list is needed, and returns why.
    pub(super) async fn run(&mut self) -> RequestError {
        loop {
            let unchecked = lock(&self.watched.state).unchecked.clone();
            let verified = match unchecked {
                Some(last) => self.check_version(&last).await,
                None => self.compare_when_due().await,
            };
            if let Err(error) = verified {
                return error;
            }
        }
    }

    /// Requests the version of the API server. Fails if it is lower than `last`, which it had reached before.
    async fn check_version(&mut self, last: &str) -> Result<(), RequestError> {
        let found = match self.requests.version().await {
            Ok(found) => found,
            // Perhaps only the verb `list` is not allowed.
            Err(error) if error.is_not_offered() => last.to_owned(),
            Err(error) => {
                self.wait("check the version of the API server", &error).await;
                return Ok(());
            }
        };
        self.succeeded();
        check_order(last, &found)?;
        let mut state = lock(&self.watched.state);
        if state.unchecked.as_deref() == Some(last) {
            state.unchecked = None;
        }
        Ok(())
    }

    /// Waits until a comparison is due, or the watch was resumed. Fails if the watch has missed changes.
    async fn compare_when_due(&mut self) -> Result<(), RequestError> {
        let (silent, resumed) = (self.due_when_silent(), self.due_after_failure());
        let due = resumed.map_or(silent, |resumed| resumed.min(silent));
        if due > Instant::now() {
            select! {
                () = self.watched.resumed.notified() => {}
                () = sleep_until(due) => {}
            }
            return Ok(());
        }
        let is_silent = silent <= Instant::now();
        if is_silent && self.silent.failed("silent").is_news() {
            let age_ms = self.recorder.with(|record| record.age()).unwrap_or_default().as_millis();
            let max_interval_s = self.deadlines.silence.1.as_secs();
            let message = "no event or bookmark for too long, comparing all object versions with the API server, and \
                           again at growing intervals";
            warn!(kind = %K::KIND, age_ms, max_interval_s, "{message}");
        }
        match self.compare().await {
            Ok(0) => {}
            Ok(missed) => {
                self.silence = self.deadlines.silence.0;
                return Err(RequestError::Missed(missed));
            }
            // The next list decides whether to continue without this kind.
            Err(error) if K::OPTIONAL && error.is_not_offered() => return Err(error),
            Err(error) => {
                self.wait("compare object versions with the API server", &error).await;
                return Ok(());
            }
        }
        lock(&self.watched.state).uncompared = None;
        if is_silent {
            self.silence = (2 * self.silence).min(self.deadlines.silence.1);
        }
        self.recorder.confirmed();
        let next_in_s = self.silence.as_secs();
        debug!(kind = %K::KIND, next_in_s, "compared all object versions, none was missed");
        Ok(())
    }

    /// When the next comparison is due because a watch was resumed after a failure: not at once, as all clients of an
    /// API server that restarts come back then, and not more often than for silent watches: perhaps each watch fails.
    fn due_after_failure(&self) -> Option<Instant> {
        let due = lock(&self.watched.state).uncompared? + self.deadlines.after_failure;
        Some(self.compared.map_or(due, |compared| due.max(compared + self.deadlines.silence.0)))
    }

    /// When the next comparison is due if no event or bookmark arrives.
    fn due_when_silent(&mut self) -> Instant {
        if mem::take(&mut lock(&self.watched.state).bookmarked) {
            self.silence = self.deadlines.silence.0;
            if let Some(recovery) = self.silent.recovered() {
                let duration_ms = recovery.duration.as_millis();
                info!(kind = %K::KIND, comparisons = recovery.count, duration_ms, "bookmarks arrive again");
            }
        }
        let (failures, confirmed) = self.recorder.with(|record| (record.failures, record.confirmed));
        if failures > 0 {
            self.silence = self.deadlines.silence.0;
        }
        confirmed.unwrap_or_else(Instant::now) + self.silence
    }

    /// Compares all versions, and returns how many objects the watch has missed: those that differ alike in two
    /// comparisons. Between them an event on its way arrives.
    async fn compare(&mut self) -> Result<usize, RequestError> {
        self.compared = Some(Instant::now());
        let found = self.requests.object_versions().await?;
        self.succeeded();
        let differing = lock(&self.watched.state).objects.differing(&found);
        if differing.is_empty() {
            return Ok(0);
        }
        sleep(self.deadlines.grace).await;
        let found = self.requests.object_versions().await?;
        Ok(differing.intersection(&lock(&self.watched.state).objects.differing(&found)).count())
    }

    /// Logs a failure and waits, longer after each one.
    async fn wait(&mut self, operation: &str, error: &RequestError) {
        let (kind, cause) = (K::KIND, chain(error));
        self.recorder.failed(&cause);
        let delay = max(self.backoff.next_delay(), error.retry_after());
        let retry_in_ms = delay.as_millis();
        if self.failing.failed(&cause).is_news() {
            let advice = self.requests.advice(error);
            warn!(%kind, error = cause, advice, retry_in_ms, "cannot {operation}; watching meanwhile");
        } else {
            debug!(%kind, error = cause, retry_in_ms, "still cannot {operation}");
        }
        sleep(delay).await;
    }

    fn succeeded(&mut self) {
        self.backoff.reset();
        if let Some(recovery) = self.failing.recovered() {
            let (failures, duration_ms) = (recovery.count, recovery.duration.as_millis());
            info!(kind = %K::KIND, failures, duration_ms, "the API server answers lists again");
        }
    }
}
