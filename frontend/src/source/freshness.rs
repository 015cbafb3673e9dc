//! How well a source hears from its API, kind by kind: what tells "nothing has changed" from "nothing has been heard".
//!
//! ```text
//!   source ──FreshnessRecorder──▶ Freshness ──snapshot──▶ Status, metrics
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::object::ObjectKind;

/// What a source has heard from its API. Clones are the same one; the source writes, everybody may read.
#[derive(Clone, Debug, Default)]
pub struct Freshness {
    kinds: Arc<Mutex<BTreeMap<ObjectKind, KindRecord>>>,
}

/// What has been heard about one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindFreshness {
    /// Which kind.
    pub kind: ObjectKind,
    /// What is being done about it.
    pub phase: WatchPhase,
    /// How long ago the API last confirmed what is known: by a complete list, an event or a bookmark. Neither an accepted
    /// request nor an error does. `None` before the first time.
    pub age: Option<Duration>,
    /// How often everything has been listed. Beyond the first time, something was lost or had not been confirmed for too long.
    pub lists: u64,
    /// How many requests in a row have failed since the last confirmation.
    pub failures: u32,
    /// The last failure, also when it is over.
    pub last_error: Option<String>,
}

/// What a source does about a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchPhase {
    /// It is listed, for the first time or anew.
    Listing,
    /// It is watched from the last list on.
    Watching,
    /// The API does not offer it, and there is doing without. It is looked for again. Its age means nothing.
    NotOffered,
}

/// Writes down what is heard about one kind.
#[derive(Debug)]
pub(super) struct FreshnessRecorder {
    freshness: Freshness,
    kind: ObjectKind,
}

#[derive(Debug)]
struct KindRecord {
    phase: WatchPhase,
    confirmed: Option<Instant>,
    lists: u64,
    failures: u32,
    last_error: Option<String>,
}

// === impl Freshness ===

impl Freshness {
    /// What has been heard by now, a row for each kind that is followed. Nothing for a source that is no API.
    #[must_use]
    pub fn snapshot(&self) -> Vec<KindFreshness> {
        let row = |(kind, record): (&ObjectKind, &KindRecord)| KindFreshness {
            kind: *kind,
            phase: record.phase,
            age: record.confirmed.map(|confirmed| confirmed.elapsed()),
            lists: record.lists,
            failures: record.failures,
            last_error: record.last_error.clone(),
        };
        self.lock().iter().map(row).collect()
    }

    /// Begins to follow a kind.
    pub(super) fn recorder(&self, kind: ObjectKind) -> FreshnessRecorder {
        let record =
            KindRecord { phase: WatchPhase::Listing, confirmed: None, lists: 0, failures: 0, last_error: None };
        self.lock().insert(kind, record);
        FreshnessRecorder { freshness: self.clone(), kind }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKind, KindRecord>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl FreshnessRecorder ===

impl FreshnessRecorder {
    /// What is done from now on.
    pub(super) fn phase(&self, phase: WatchPhase) {
        self.update(|record| record.phase = phase);
    }

    /// A complete list: a confirmation as well.
    pub(super) fn listed(&self) {
        self.update(|record| record.lists += 1);
        self.confirmed();
    }

    /// A list, an event or a bookmark has come.
    pub(super) fn confirmed(&self) {
        self.update(|record| {
            record.confirmed = Some(Instant::now());
            record.failures = 0;
        });
    }

    /// A request has failed.
    pub(super) fn failed(&self, error: impl ToString) {
        let error = error.to_string();
        self.update(|record| {
            record.failures = record.failures.saturating_add(1);
            record.last_error = Some(error);
        });
    }

    /// How long ago the last confirmation was.
    pub(super) fn age(&self) -> Option<Duration> {
        self.freshness.lock().get(&self.kind)?.confirmed.map(|confirmed| confirmed.elapsed())
    }

    fn update(&self, change: impl FnOnce(&mut KindRecord)) {
        if let Some(record) = self.freshness.lock().get_mut(&self.kind) {
            change(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_confirms_makes_fresh() {
        let freshness = Freshness::default();
        assert_eq!(freshness.snapshot(), []);
        let recorder = freshness.recorder(ObjectKind::Node);
        recorder.failed("refused");
        let row = freshness.snapshot().remove(0);
        assert_eq!((row.age, row.lists, row.failures), (None, 0, 1));
        recorder.listed();
        tokio::time::advance(Duration::from_secs(5)).await;
        recorder.phase(WatchPhase::Watching);
        recorder.failed("cut");
        assert_eq!(
            freshness.snapshot(),
            [KindFreshness {
                kind: ObjectKind::Node,
                phase: WatchPhase::Watching,
                age: Some(Duration::from_secs(5)),
                lists: 1,
                failures: 1,
                last_error: Some("cut".to_owned()),
            }]
        );
        recorder.confirmed();
        let row = freshness.snapshot().remove(0);
        assert_eq!((row.age, row.failures, row.last_error.as_deref()), (Some(Duration::ZERO), 0, Some("cut")));
    }
}
