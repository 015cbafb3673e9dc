//! The most recent changes of service ports: when, because of which object, and for which nodes. For the status page
//! and `fairlead log`.
//!
//! They have a limit in memory. Beyond it the history forgets the oldest change of the namespace that takes most of it:
//! a namespace that changes much loses its own history, not that of others.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use proto::model::{Revision, ServicePortKey};

use super::operations::Recipients;
use crate::object::Cause;

/// How many changes are kept.
const MAX_CHANGES: usize = 8192;
/// About how much memory they take, in bytes.
const MAX_BYTES: usize = 8 << 20;
/// Of how many nodes the time of the last change of their zone is kept.
const MAX_MOVES: usize = 4096;
/// Of how many namespaces whose changes are all forgotten the time of the last one is kept.
const MAX_EMPTIED: usize = 4096;
/// The entries of maps for a change, and its names.
const OVERHEAD: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct ChangeHistory {
    /// By number: the newest last.
    changes: BTreeMap<u64, Arc<LoggedChange>>,
    namespaces: BTreeMap<Arc<str>, NamespaceHistory>,
    /// The namespaces by the memory that their changes take.
    by_size: BTreeSet<(usize, Arc<str>)>,
    size: usize,
    next: u64,
    /// The time of the last commit.
    newest: Option<SystemTime>,
    /// When the zone of each node last changed: earlier changes concerned the node in the zone that it had then.
    moves: LastTimes,
    /// The time of the last change of namespaces whose changes are all forgotten.
    emptied: LastTimes,
}

/// The last time at which something happened to each name. Beyond a limit, the name with the oldest one goes.
#[derive(Debug, Default)]
struct LastTimes {
    times: BTreeMap<Arc<str>, SystemTime>,
    by_time: BTreeSet<(SystemTime, Arc<str>)>,
    /// The newest time that was forgotten: it happened to other names then or earlier.
    forgotten_until: Option<SystemTime>,
}

#[derive(Debug, Default)]
struct NamespaceHistory {
    numbers: VecDeque<u64>,
    size: usize,
    /// Time of the newest change that was forgotten; what is later is complete.
    forgotten_until: Option<SystemTime>,
}

/// What a commit changed in one service port, and why.
#[derive(Debug)]
pub(crate) struct LoggedChange {
    pub(crate) at: SystemTime,
    pub(crate) revision: Revision,
    pub(crate) key: ServicePortKey,
    /// For people.
    pub(crate) summary: String,
    pub(crate) cause: Option<Cause>,
    pub(crate) recipients: Recipients,
}

impl LoggedChange {
    fn size(&self) -> usize {
        size_of::<Self>() + self.summary.len() + self.recipients.size() + OVERHEAD
    }
}

impl LastTimes {
    fn record(&mut self, at: SystemTime, name: Arc<str>, max: usize) {
        self.remove(&name);
        self.times.insert(name.clone(), at);
        self.by_time.insert((at, name));
        if self.times.len() > max
            && let Some((at, oldest)) = self.by_time.pop_first()
        {
            self.times.remove(&oldest);
            self.forgotten_until = self.forgotten_until.max(Some(at));
        }
    }

    fn remove(&mut self, name: &Arc<str>) {
        if let Some(at) = self.times.remove(name) {
            self.by_time.remove(&(at, name.clone()));
        }
    }

    /// The last time at which it can have happened to a name, which may be forgotten.
    fn latest(&self, name: &str) -> Option<SystemTime> {
        self.times.get(name).copied().max(self.forgotten_until)
    }

    /// The last time at which it happened to any name.
    fn latest_of_all(&self) -> Option<SystemTime> {
        self.by_time.last().map(|(at, _)| *at).max(self.forgotten_until)
    }
}

impl ChangeHistory {
    /// Without changes, of which there may have been some before.
    pub(crate) fn since(start: SystemTime) -> Self {
        let emptied = LastTimes { forgotten_until: Some(start), ..LastTimes::default() };
        Self { emptied, newest: Some(start), ..Self::default() }
    }

    /// The time of a commit. It is never before an earlier one, even if the clock is set back: the last changes since a
    /// time are those before the first earlier one.
    pub(crate) fn commit_time(&mut self, now: SystemTime) -> SystemTime {
        *self.newest.insert(self.newest.map_or(now, |newest| newest.max(now)))
    }

    pub(crate) fn push(&mut self, change: LoggedChange) {
        let number = self.next;
        let size = change.size();
        let namespace = change.key.namespace.clone();

        let mut history = self.take(&namespace);
        history.numbers.push_back(number);
        history.size += size;
        self.put(namespace, history);

        self.next += 1;
        self.size += size;
        self.changes.insert(number, Arc::new(change));

        while self.size > MAX_BYTES || self.changes.len() > MAX_CHANGES {
            let Some((_, largest)) = self.by_size.last().cloned() else { return };
            self.forget_oldest(largest);
        }
    }

    /// Records that the zone of a node has changed.
    pub(crate) fn record_move(&mut self, at: SystemTime, node: Arc<str>) {
        self.moves.record(at, node, MAX_MOVES);
    }

    /// Newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<LoggedChange>> {
        self.changes.values().rev()
    }

    /// Since when all changes of a namespace are here, and the zone of a node is what it is now. An empty name stands
    /// for all namespaces.
    pub(crate) fn complete_since(&self, namespace: &str, node: &str) -> SystemTime {
        let of_namespaces = || self.namespaces.values().map(|history| history.forgotten_until).max().flatten();
        let forgotten_until = match self.namespaces.get(namespace) {
            Some(history) => history.forgotten_until,
            None if namespace.is_empty() => self.emptied.latest_of_all().max(of_namespaces()),
            None => self.emptied.latest(namespace),
        };
        let moved = if node.is_empty() { None } else { self.moves.latest(node) };
        forgotten_until.max(moved).unwrap_or(UNIX_EPOCH)
    }

    fn forget_oldest(&mut self, namespace: Arc<str>) {
        let mut history = self.take(&namespace);
        let oldest = history.numbers.pop_front().and_then(|number| self.changes.remove(&number));
        if let Some(oldest) = oldest {
            history.size -= oldest.size();
            history.forgotten_until = history.forgotten_until.max(Some(oldest.at));
            self.size -= oldest.size();
        }
        self.put(namespace, history);
    }

    fn take(&mut self, namespace: &Arc<str>) -> NamespaceHistory {
        let history = self.namespaces.remove(namespace).unwrap_or_else(|| {
            let forgotten_until = self.emptied.latest(namespace);
            self.emptied.remove(namespace);
            NamespaceHistory { forgotten_until, ..NamespaceHistory::default() }
        });
        self.by_size.remove(&(history.size, namespace.clone()));
        history
    }

    fn put(&mut self, namespace: Arc<str>, history: NamespaceHistory) {
        if history.numbers.is_empty() {
            if let Some(forgotten_until) = history.forgotten_until {
                self.emptied.record(forgotten_until, namespace, MAX_EMPTIED);
            }
        } else {
            self.by_size.insert((history.size, namespace.clone()));
            self.namespaces.insert(namespace, history);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto::model::Protocol;

    use super::*;

    fn time(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn change(namespace: &str, seconds: u64, summary: usize) -> LoggedChange {
        let key = ServicePortKey::new(namespace, "s", "", Protocol::Tcp);
        let (at, revision) = (time(seconds), Revision(seconds));
        LoggedChange { at, revision, key, summary: "x".repeat(summary), cause: None, recipients: Recipients::default() }
    }

    #[test]
    fn noisy_namespace_loses_only_its_own_changes() {
        let mut history = ChangeHistory::since(time(1));
        history.push(change("quiet", 2, 1000));
        (0..3 * MAX_CHANGES as u64).for_each(|n| history.push(change("noisy", 3 + n, 10)));
        assert!(history.changes.len() <= MAX_CHANGES && history.size <= MAX_BYTES);
        assert_eq!(history.iter().last().unwrap().at, time(2));
        assert_eq!(history.complete_since("quiet", ""), time(1));
        let oldest = history.iter().filter(|change| &*change.key.namespace == "noisy").last().unwrap();
        assert_eq!(history.complete_since("noisy", "") + Duration::from_secs(1), oldest.at);
        assert_eq!(history.complete_since("", ""), history.complete_since("noisy", ""));
    }

    #[test]
    fn times_never_go_back() {
        let mut history = ChangeHistory::since(time(3));
        let times = [2, 5, 4, 6].map(|seconds| history.commit_time(time(seconds)));
        assert_eq!(times, [3, 5, 5, 6].map(time));
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = ChangeHistory::since(time(1));
        for n in 0..100 {
            history.push(change(&format!("ns-{}", n % 3), 2 + n, MAX_BYTES / 20));
            assert!(history.size <= MAX_BYTES);
        }
        let newest: Vec<_> = history.iter().map(|change| change.revision.0).collect();
        assert!(newest.len() > 15 && newest.is_sorted_by(|newer, older| newer > older), "{newest:?}");
        history.push(change("huge", 200, 2 * MAX_BYTES));
        assert_eq!(
            (history.changes.len(), history.size),
            (newest.len(), history.by_size.iter().map(|(size, _)| size).sum())
        );
        assert_eq!(history.complete_since("huge", ""), time(200));
        assert_eq!((history.complete_since("other", ""), history.complete_since("", "")), (time(1), time(200)));
        history.push(change("huge", 201, 10));
        assert_eq!(history.complete_since("huge", ""), time(200));
    }

    #[test]
    fn emptied_namespaces_are_bounded() {
        let mut history = ChangeHistory::since(time(1));
        for n in 0..=MAX_EMPTIED as u64 {
            history.push(change(&format!("ns-{n}"), 2 + n, 0));
            history.forget_oldest(format!("ns-{n}").into());
        }
        assert_eq!((history.emptied.times.len(), history.emptied.by_time.len()), (MAX_EMPTIED, MAX_EMPTIED));
        assert_eq!((history.complete_since("ns-0", ""), history.complete_since("ns-9", "")), (time(2), time(11)));
        assert_eq!(history.complete_since("other", ""), time(2));
    }

    #[test]
    fn moved_nodes_are_known_since_then() {
        let mut history = ChangeHistory::since(time(1));
        history.record_move(time(5), "node-a".into());
        assert_eq!((history.complete_since("", "node-a"), history.complete_since("", "node-b")), (time(5), time(1)));
        (0..MAX_MOVES).for_each(|n| history.record_move(time(6), format!("node-{n}").into()));
        assert_eq!(history.complete_since("", "other"), time(5), "who moved then is not known any more");
        (0..2 * MAX_MOVES as u64).for_each(|n| history.record_move(time(7 + n), "node-0".into()));
        assert_eq!(history.complete_since("", "node-1"), time(6), "a node cannot displace others");
        assert_eq!(history.complete_since("", "other"), time(5));
    }
}
