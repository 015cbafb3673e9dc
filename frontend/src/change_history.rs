//! What has changed lately, for people: the last few hundred changes of service ports, with their times.

use std::{collections::VecDeque, time::SystemTime};

use proto::model::{Revision, ServicePortKey};

/// How many changes are remembered.
const REMEMBERED: usize = 200;

/// The last changes. What is beyond that is forgotten.
#[derive(Debug, Default)]
pub(crate) struct ChangeHistory(VecDeque<ChangeRecord>);

/// What a commit did to one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeRecord {
    pub(crate) at: SystemTime,
    pub(crate) revision: Revision,
    pub(crate) key: ServicePortKey,
    pub(crate) what: ChangeKind,
}

/// In which way it is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// It was not there.
    Added,
    /// It is not there any more.
    Removed,
    /// The service port itself.
    Changed,
    /// Its endpoints only.
    Endpoints,
}

impl ChangeHistory {
    /// Takes in what one commit did. Of a large one only some is remembered.
    pub(crate) fn record<'a>(
        &mut self,
        revision: Revision,
        changes: impl Iterator<Item = (&'a ServicePortKey, ChangeKind)>,
    ) {
        let at = SystemTime::now();
        for (key, what) in changes.take(REMEMBERED) {
            if self.0.len() == REMEMBERED {
                self.0.pop_front();
            }
            self.0.push_back(ChangeRecord { at, revision, key: key.clone(), what });
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
    fn old_changes_give_way_to_new_ones() {
        let keys: Vec<_> = (0..REMEMBERED + 50)
            .map(|number| ServicePortKey::new("ns", format!("s{number}"), "", Protocol::Tcp))
            .collect();
        let mut recent = ChangeHistory::default();
        recent.record(Revision(2), keys.iter().map(|key| (key, ChangeKind::Added)));
        assert_eq!(recent.iter().count(), REMEMBERED);
        recent.record(Revision(3), [(&keys[0], ChangeKind::Removed)].into_iter());
        let newest = recent.iter().next().unwrap();
        assert_eq!((newest.revision, newest.what), (Revision(3), ChangeKind::Removed));
        assert_eq!(recent.iter().count(), REMEMBERED);
        assert!(recent.iter().all(|change| change.key != keys[0] || change.what == ChangeKind::Removed));
    }
}
