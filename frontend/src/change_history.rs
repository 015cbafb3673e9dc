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
    /// Records a change.
    pub(crate) fn push(&mut self, change: ChangeRecord) {
        if self.0.len() == MAX_CHANGES {
            self.0.pop_front();
        }
        self.0.push_back(change);
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
        let change = |revision, number: usize, kind| {
            let key = ServicePortKey::new("ns", format!("s{number}"), "", Protocol::Tcp);
            ChangeRecord { at: SystemTime::UNIX_EPOCH, revision: Revision(revision), key, kind }
        };
        let mut history = ChangeHistory::default();
        (0..MAX_CHANGES + 50).for_each(|number| history.push(change(2, number, ChangeKind::Added)));
        history.push(change(3, 0, ChangeKind::Removed));
        let changes: Vec<_> = history.iter().collect();
        assert_eq!(changes.len(), MAX_CHANGES);
        assert_eq!(*changes[0], change(3, 0, ChangeKind::Removed));
        assert_eq!(*changes[MAX_CHANGES - 1], change(2, 51, ChangeKind::Added));
    }
}
