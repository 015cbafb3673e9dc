//! What people are shown of the log: its service ports, a part at a time, and what the last commit did.

use proto::{digest::BUCKETS, model::ServicePortKey};

use crate::{change_history::ChangeKind, view::ServicePortView};

use super::{ChangeLog, history::CommitRecord, port_change::PortChange};

impl ChangeLog {
    /// How many parts [`Self::part`] has.
    pub(crate) const PARTS: usize = BUCKETS;

    /// The service ports of one part, so that nobody has to hold the log for all of them.
    pub(crate) fn part(&self, part: usize) -> impl Iterator<Item = (&ServicePortKey, &ServicePortView)> {
        self.buckets.get(part).into_iter().flat_map(super::Bucket::iter)
    }

    /// What the last commit did to service ports, if it did anything.
    pub(crate) fn last(&self) -> impl Iterator<Item = (&ServicePortKey, ChangeKind)> {
        let changes = self.history.last().map(CommitRecord::changes);
        changes.into_iter().flatten().map(|(key, change)| {
            let what = match change {
                PortChange::Created => ChangeKind::Added,
                PortChange::Removed => ChangeKind::Removed,
                PortChange::Changed(changed) if changed.is_port_changed() => ChangeKind::Changed,
                PortChange::Changed(_) => ChangeKind::Endpoints,
            };
            (key, what)
        })
    }
}
