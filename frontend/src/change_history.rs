//! The most recent changes of service ports with their times, for the status page.

use std::{collections::VecDeque, time::SystemTime};

use proto::model::{Revision, ServicePortKey};

use crate::view::ServicePortView;

/// How many changes are kept.
const MAX_CHANGES: usize = 200;

/// The most recent changes.
#[derive(Debug, Default)]
pub(crate) struct ChangeHistory(VecDeque<ChangeRecord>);

/// What a commit changed in one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeRecord {
    pub(crate) at: SystemTime,
    pub(crate) revision: Revision,
    pub(crate) key: ServicePortKey,
    pub(crate) kind: ChangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Added,
    Removed,
    /// The service port itself changed, and perhaps its endpoints.
    Changed,
    /// Only endpoints changed.
    Endpoints,
}

impl ChangeKind {
    /// Of the change from one view to another.
    pub(crate) fn between(before: Option<&ServicePortView>, after: Option<&ServicePortView>) -> Self {
        match (before, after) {
            (_, None) => Self::Removed,
            (None, Some(_)) => Self::Added,
            (Some(before), Some(after)) if before.port == after.port => Self::Endpoints,
            _ => Self::Changed,
        }
    }
}

impl ChangeHistory {
    /// Records one commit, up to [`MAX_CHANGES`] of its changes.
    pub(crate) fn record(&mut self, revision: Revision, changes: &[(ServicePortKey, ChangeKind)]) {
        let at = SystemTime::now();
        for (key, kind) in changes.iter().take(MAX_CHANGES) {
            if self.0.len() == MAX_CHANGES {
                self.0.pop_front();
            }
            self.0.push_back(ChangeRecord { at, revision, key: key.clone(), kind: *kind });
        }
    }

    /// Newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ChangeRecord> {
        self.0.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use proto::model::Protocol;

    use super::*;

    #[test]
    fn new_changes_replace_the_oldest() {
        let changes: Vec<_> = (0..MAX_CHANGES + 50)
            .map(|number| (ServicePortKey::new("ns", format!("s{number}"), "", Protocol::Tcp), ChangeKind::Added))
            .collect();
        let first = &changes[0].0;
        let mut history = ChangeHistory::default();
        history.record(Revision(2), &changes);
        assert_eq!(history.iter().count(), MAX_CHANGES);
        history.record(Revision(3), &[(first.clone(), ChangeKind::Removed)]);
        let newest = history.iter().next().unwrap();
        assert_eq!((newest.revision, newest.kind), (Revision(3), ChangeKind::Removed));
        assert_eq!(history.iter().count(), MAX_CHANGES);
        assert!(history.iter().all(|change| change.key != *first || change.kind == ChangeKind::Removed));
    }
}
