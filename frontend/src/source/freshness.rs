//! How up to date a source is, by kind. It tells "nothing has changed" from "the API server does not deliver". Of a
//! directory of manifests: which files are not used.
//!
//! ```text
//!   API server ──listed, confirmed, failed──▶ Freshness ──snapshot──▶ Status, metrics
//!   manifests ───────────file problems──────▶           ──problems──▶ Status, page
//! ```

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use proto::v1::{Problem, WatchPhase};
use runtime::lock;
use tokio::time::Instant;

use crate::object::ObjectKind;

/// When an API server last confirmed the objects of each kind, or which manifests are not used. Clones share their
/// content: the source writes, others read.
#[derive(Clone, Debug, Default)]
pub struct Freshness {
    kinds: Arc<Mutex<BTreeMap<ObjectKind, KindFreshness>>>,
    file_problems: Arc<Mutex<Vec<Problem>>>,
}

/// How up to date one kind is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindFreshness {
    /// The kind.
    pub kind: ObjectKind,
    /// What the source does. The age of a kind that is not offered has no meaning.
    pub phase: WatchPhase,
    /// When the API server last confirmed the objects, by a complete list (of objects or of their versions), an event
    /// or a bookmark. Neither an accepted request nor an error does. `None` before the first list.
    pub confirmed: Option<Instant>,
    /// The number of complete lists. More than one: a watch expired or has missed changes.
    pub lists: u64,
    /// The number of failed requests since the last confirmation.
    pub failures: u32,
    /// The last failure with all its causes, even if requests succeed again.
    pub last_error: Option<String>,
}

/// How long an API server may not have confirmed the objects of a kind while requests fail. Longer than a comparison of
/// the objects takes that follows a silence: without bookmarks each watch of a kind that does not change fails.
pub(crate) const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(180);

impl Freshness {
    /// One row for each kind that is watched. Empty for a directory of manifests.
    #[must_use]
    pub fn snapshot(&self) -> Vec<KindFreshness> {
        lock(&self.kinds).values().cloned().collect()
    }

    /// Whether the objects of a kind may have changed long ago: requests fail, and nothing else confirms them.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let kinds = lock(&self.kinds);
        kinds.values().any(|row| row.phase != WatchPhase::NotOffered && is_unconfirmed(row.failures, row.age()))
    }

    /// What is not used in a directory of manifests, by file. Empty for an API server.
    pub(crate) fn file_problems(&self) -> Vec<Problem> {
        lock(&self.file_problems).clone()
    }

    pub(super) fn set_file_problems(&self, problems: Vec<Problem>) {
        *lock(&self.file_problems) = problems;
    }

    pub(super) fn phase(&self, kind: ObjectKind, phase: WatchPhase) {
        self.with(kind, |row| row.phase = phase);
    }

    /// Records a complete list, which is a confirmation as well.
    pub(crate) fn listed(&self, kind: ObjectKind) {
        self.with(kind, |row| row.lists += 1);
        self.confirmed(kind);
    }

    pub(super) fn confirmed(&self, kind: ObjectKind) {
        self.with(kind, |row| {
            row.confirmed = Some(Instant::now());
            row.failures = 0;
        });
    }

    pub(crate) fn failed(&self, kind: ObjectKind, error: &str) {
        self.with(kind, |row| {
            row.failures = row.failures.saturating_add(1);
            row.last_error = Some(error.to_owned());
        });
    }

    /// Reads or changes the row of a kind, which is added with the first call.
    pub(super) fn with<T>(&self, kind: ObjectKind, act: impl FnOnce(&mut KindFreshness) -> T) -> T {
        let phase = WatchPhase::Listing;
        let new = || KindFreshness { kind, phase, confirmed: None, lists: 0, failures: 0, last_error: None };
        act(lock(&self.kinds).entry(kind).or_insert_with(new))
    }
}

/// Whether the objects of a kind may have changed long ago: so many requests have failed since an API server confirmed
/// them, so long ago. It has no meaning for a kind that is not offered.
#[must_use]
pub fn is_unconfirmed(failures: u32, age: Option<Duration>) -> bool {
    failures > 0 && age.is_some_and(|age| age > CONFIRMATION_TIMEOUT)
}

impl KindFreshness {
    /// The time since the last confirmation.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.confirmed.map(|confirmed| confirmed.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_confirmations_reset_the_age() {
        let freshness = Freshness::default();
        assert_eq!(freshness.snapshot(), []);
        freshness.failed(ObjectKind::Node, "refused");
        let row = freshness.snapshot().remove(0);
        assert_eq!((row.age(), row.lists, row.failures), (None, 0, 1));
        freshness.listed(ObjectKind::Node);
        let listed = Instant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        freshness.phase(ObjectKind::Node, WatchPhase::Watching);
        freshness.failed(ObjectKind::Node, "cut");
        assert_eq!(
            freshness.snapshot(),
            [KindFreshness {
                kind: ObjectKind::Node,
                phase: WatchPhase::Watching,
                confirmed: Some(listed),
                lists: 1,
                failures: 1,
                last_error: Some("cut".to_owned()),
            }]
        );
        freshness.confirmed(ObjectKind::Node);
        let row = freshness.snapshot().remove(0);
        assert_eq!((row.age(), row.failures, row.last_error.as_deref()), (Some(Duration::ZERO), 0, Some("cut")));
    }
}
