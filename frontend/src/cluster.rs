//! The state of the cluster: written by the engine, read by sessions, status requests, the page and metrics.

use std::{
    sync::{Mutex, MutexGuard},
    time::SystemTime,
};

use proto::model::{Epoch, KindVersions, Revision, ServicePortKey, SourceVersion};
use runtime::lock;
use tokio::sync::watch;
use tracing::info;

use crate::{
    drains::{EndingPods, PodCommit},
    index::{Index, IndexChanges},
    log::{ChangeLog, PreparedChanges},
};

/// The index, the change log, the pods that end, and the current revision.
///
/// No mutex is held across an await, and the log is for microseconds: every session locks it for every commit; only the
/// engine, requests of operators, and nodes that begin to follow their pods lock the index. They are locked in this
/// order: the index, the pods that end, the log, the streams.
#[derive(Debug)]
pub(crate) struct ClusterState {
    /// The epoch that the revisions belong to.
    pub(crate) epoch: Epoch,
    index: Mutex<Index>,
    log: Mutex<ChangeLog>,
    /// `None` until every kind of object has been listed.
    revision: watch::Sender<Option<Revision>>,
    /// The version of each kind up to which the source has reported every change.
    kind_versions: watch::Sender<KindVersions>,
    ending_pods: Mutex<EndingPods>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit {
    pub(crate) revision: Revision,
    /// Whether it is new; otherwise nothing is different.
    pub(crate) is_new: bool,
    /// When the oldest change was made, according to the API.
    pub(crate) trigger: Option<SystemTime>,
    /// The version of each kind up to which the source has reported every change.
    pub(crate) kind_versions: KindVersions,
}

/// The changes of a commit, ready for the log.
enum LogChanges {
    /// Everything, once every kind of object has been listed.
    First(IndexChanges),
    /// The changes since the commit before.
    Next(PreparedChanges),
}

impl ClusterState {
    pub(crate) fn new(epoch: Epoch, index: Index, log: ChangeLog) -> Self {
        Self {
            epoch,
            index: Mutex::new(index),
            log: Mutex::new(log),
            revision: watch::Sender::new(None),
            kind_versions: watch::Sender::default(),
            ending_pods: Mutex::default(),
        }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    pub(crate) fn ending_pods(&self) -> MutexGuard<'_, EndingPods> {
        lock(&self.ending_pods)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, ChangeLog> {
        lock(&self.log)
    }

    /// Whether every kind of object has been listed.
    pub(crate) fn is_ready(&self) -> bool {
        self.revision.borrow().is_some()
    }

    /// The current revision, as it changes. `None` until every kind of object has been listed.
    pub(crate) fn revisions(&self) -> watch::Receiver<Option<Revision>> {
        self.revision.subscribe()
    }

    /// The version up to which the source has reported every change, as it changes.
    pub(crate) fn kind_versions(&self) -> watch::Receiver<KindVersions> {
        self.kind_versions.subscribe()
    }

    /// Commits what has changed in the index since the last call to the log. `before` is called with it. The index
    /// stays locked, so that what it has is in the log when it is not dirty. `None` until every kind of object has been
    /// listed.
    pub(crate) fn commit(&self, before: impl FnOnce(&IndexChanges)) -> Option<Commit> {
        let mut index = self.index();
        if !index.is_complete() {
            return None;
        }

        let changes = index.take_changes();
        let changed = index.take_changed_entries();
        before(&changes);

        let trigger = changes.oldest_trigger;
        let kind_versions = changes.confirmed;
        let slices_version = SourceVersion(changes.reflected.endpoint_slices);
        let ports = changes.ports.iter().map(|(key, _)| key.clone()).collect();
        let prepared = self.prepare(&index, changes);

        // Locked before the log has the commit, because a node that sees the commit there must see what it means for
        // its pods, too.
        let mut ending_pods = self.ending_pods();
        let is_new = self.add_to_log(prepared);
        let revision = self.log().revision();

        // Sessions need the log for each commit: it is not locked for all service ports together.
        let view_of = |key: &ServicePortKey| self.log().view(key).cloned();
        ending_pods.commit(PodCommit { index: &index, changed, ports, revision, slices_version, view_of: &view_of });
        Some(Commit { revision, is_new, trigger, kind_versions })
    }

    /// Computes what follows from changes without locking the log for long. The result stays true while the index is
    /// locked, because only [`Self::commit`] changes the log.
    fn prepare(&self, index: &Index, changes: IndexChanges) -> LogChanges {
        if !self.is_ready() {
            return LogChanges::First(changes);
        }

        let views = self.log().views_of(&changes);
        let zone_of = |node: &str| index.node(node).map_or("", |node| &*node.zone);
        LogChanges::Next(PreparedChanges::new(changes, &views, zone_of))
    }

    /// Returns whether anything is different.
    fn add_to_log(&self, changes: LogChanges) -> bool {
        match changes {
            LogChanges::First(changes) => {
                self.log().start(changes);
                true
            }
            LogChanges::Next(prepared) => self.log().commit(prepared).is_some(),
        }
    }

    /// Notifies the receivers of [`Self::kind_versions`] and [`Self::revisions`].
    pub(crate) fn publish(&self, revision: Revision, kind_versions: KindVersions) {
        self.kind_versions.send_if_modified(|current| std::mem::replace(current, kind_versions) != kind_versions);
        self.revision.send_if_modified(|current| {
            if current.is_none() {
                info!(%revision, "every kind of object has been listed, serving");
            }
            current.replace(revision) != Some(revision)
        });
    }
}
