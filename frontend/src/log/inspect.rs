//! Read access for the status page: service ports by digest bucket, and the changes of the last commit.

use proto::{digest::BUCKETS, model::ServicePortKey};

use crate::{change_history::ChangeKind, view::ServicePortView};

use super::{ChangeLog, history::CommitRecord, port_change::PortChange};

impl ChangeLog {
    /// The number of digest buckets.
    pub(crate) const BUCKETS: usize = BUCKETS;

    /// The service ports of one digest bucket, so that the log does not have to be locked for all of them at once.
    pub(crate) fn bucket_views(&self, bucket: usize) -> impl Iterator<Item = (&ServicePortKey, &ServicePortView)> {
        self.buckets.get(bucket).into_iter().flat_map(super::Bucket::iter)
    }

    /// What the last commit changed.
    pub(crate) fn last_changes(&self) -> impl Iterator<Item = (&ServicePortKey, ChangeKind)> {
        let changes = self.history.last().map(CommitRecord::changes);
        changes.into_iter().flatten().map(|(key, change)| {
            let kind = match change {
                PortChange::Created => ChangeKind::Added,
                PortChange::Removed => ChangeKind::Removed,
                PortChange::Changed(changed) if changed.is_port_changed() => ChangeKind::Changed,
                PortChange::Changed(_) => ChangeKind::Endpoints,
            };
            (key, kind)
        })
    }
}
