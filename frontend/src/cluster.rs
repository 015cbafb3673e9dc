//! The state of the cluster: written by the engine, read by sessions, status requests, the page and metrics.

mod uses;

use std::{
    sync::{Mutex, MutexGuard},
    time::SystemTime,
};

use proto::model::{Epoch, KindVersions, Revision};
use runtime::lock;
use tokio::sync::watch;
use tracing::info;

use self::uses::AddressUses;
pub(crate) use self::uses::UseQuestion;
use crate::{
    index::{Index, IndexChanges},
    log::{ChangeLog, PreparedChanges},
};

/// The index, the change log, and the current revision.
///
/// Neither mutex is held across an await, and the log is for microseconds: every session locks it for every commit;
/// only the engine and requests of operators and drains lock the index. The change log may be locked while the index
/// is, never the other way round.
#[derive(Debug)]
pub(crate) struct ClusterState {
    /// The epoch that the revisions belong to.
    pub(crate) epoch: Epoch,
    index: Mutex<Index>,
    log: Mutex<ChangeLog>,
    /// Changes with every commit, whether there is a new revision or not.
    commits: watch::Sender<u64>,
    /// `None` until every kind of object has been listed.
    revision: watch::Sender<Option<Revision>>,
    /// The version of each kind up to which the source has reported every change.
    kind_versions: watch::Sender<KindVersions>,
    /// How addresses that drains have asked about are used.
    uses: Mutex<AddressUses>,
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

impl ClusterState {
    pub(crate) fn new(epoch: Epoch, index: Index, log: ChangeLog) -> Self {
        Self {
            epoch,
            index: Mutex::new(index),
            log: Mutex::new(log),
            commits: watch::Sender::default(),
            revision: watch::Sender::new(None),
            kind_versions: watch::Sender::default(),
            uses: Mutex::default(),
        }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
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

    /// Changes with every commit.
    pub(crate) fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
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
        before(&changes);
        let (trigger, kind_versions) = (changes.oldest_trigger, changes.confirmed);
        // Who sees the commit in the log sees what it means for the addresses that drains ask about.
        let mut uses;
        let is_new = if self.is_ready() {
            // Only this changes the log, and the index is locked.
            let views = self.log().views_of(&changes);
            let zone_of = |node: &str| index.node(node).map_or("", |node| &*node.zone);
            let prepared = PreparedChanges::new(changes, &views, zone_of);
            uses = lock(&self.uses);
            self.log().commit(prepared).is_some()
        } else {
            uses = lock(&self.uses);
            self.log().start(changes);
            true
        };
        self.decide_uses(&index, &mut uses);
        Some(Commit { revision: self.log().revision(), is_new, trigger, kind_versions })
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
        self.commits.send_modify(|commits| *commits += 1);
    }
}
