//! The state of the cluster: written by the engine, read by sessions, status requests, the page and metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::model::{KindVersions, Revision, SourceVersion};
use tokio::sync::watch;
use tracing::info;

use crate::{
    change_history::ChangeHistory,
    index::{Index, IndexChanges},
    log::ChangeLog,
};

/// The index, the change log, and the current revision.
///
/// Each mutex is held for microseconds and never across an await. Every session locks the change log for every commit;
/// only the engine and requests of operators lock the index. The change history may be locked while the change log is,
/// never the other way round.
#[derive(Debug)]
pub(crate) struct ClusterState {
    index: Mutex<Index>,
    log: Mutex<ChangeLog>,
    change_history: Mutex<ChangeHistory>,
    /// `None` until every kind of object has been listed.
    revision: watch::Sender<Option<Revision>>,
    /// The version up to which the source has reported every change.
    source_version: watch::Sender<(SourceVersion, KindVersions)>,
}

impl ClusterState {
    pub(crate) fn new(index: Index, log: ChangeLog) -> Self {
        Self {
            index: Mutex::new(index),
            log: Mutex::new(log),
            change_history: Mutex::default(),
            revision: watch::Sender::new(None),
            source_version: watch::Sender::default(),
        }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, ChangeLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change_history(&self) -> MutexGuard<'_, ChangeHistory> {
        self.change_history.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(crate) fn source_versions(&self) -> watch::Receiver<(SourceVersion, KindVersions)> {
        self.source_version.subscribe()
    }

    /// What has changed since the last call; `None` until every kind of object has been listed.
    pub(crate) fn take_changes(&self) -> Option<IndexChanges> {
        let mut index = self.index();
        index.is_complete().then(|| index.take_changes())
    }

    /// Commits changes to the log. Returns the current revision, and whether it is new.
    pub(crate) fn commit(&self, changes: IndexChanges) -> (Revision, bool) {
        let mut log = self.log();
        let is_new = log.commit(changes).is_some();
        if !self.is_ready() {
            log.forget_past();
        } else if is_new {
            self.change_history().record(log.revision(), log.last_changes());
        }
        (log.revision(), is_new)
    }

    /// Notifies the receivers of [`Self::source_versions`] and [`Self::revisions`].
    pub(crate) fn publish(&self, revision: Revision, source_version: (SourceVersion, KindVersions)) {
        self.source_version.send_if_modified(|current| std::mem::replace(current, source_version) != source_version);
        self.revision.send_if_modified(|current| {
            if current.is_none() {
                info!(%revision, "every kind of object has been listed, serving");
            }
            current.replace(revision) != Some(revision)
        });
    }
}
