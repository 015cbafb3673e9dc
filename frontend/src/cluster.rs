//! The state of the cluster: written by the engine, read by sessions, status requests, the page and metrics.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use proto::model::{KindVersions, Revision, SourceVersion};
use tokio::sync::watch;
use tracing::info;

use crate::{
    change_history::ChangeHistory,
    index::{Index, IndexChanges},
    log::ChangeLog,
    object::ObjectName,
    view::ServicePortView,
};

/// The index, the change log, and the current revision.
///
/// Each mutex is held for microseconds and never across an await. Every session locks the change log for every commit;
/// only the engine and requests of operators and drains lock the index. The change log may be locked while the index
/// is, and the change history while the change log is, never the other way round.
#[derive(Debug)]
pub(crate) struct ClusterState {
    index: Mutex<Index>,
    log: Mutex<ChangeLog>,
    change_history: Mutex<ChangeHistory>,
    /// Whether changes have been taken from the index that are not in the log yet.
    is_committing: AtomicBool,
    /// Changes with every commit, whether there is a new revision or not.
    commits: watch::Sender<u64>,
    /// `None` until every kind of object has been listed.
    revision: watch::Sender<Option<Revision>>,
    /// The version up to which the source has reported every change.
    source_version: watch::Sender<(SourceVersion, KindVersions)>,
}

/// How addresses of a pod are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressUse {
    /// The Services that have one of them in an EndpointSlice.
    pub(crate) services: BTreeSet<ObjectName>,
    /// Whether an entry is not terminating, or an address is in a pool.
    pub(crate) is_used: bool,
    /// The revision in which that is so; `None`: there are changes without a revision yet.
    pub(crate) revision: Option<Revision>,
}

impl ClusterState {
    pub(crate) fn new(index: Index, log: ChangeLog) -> Self {
        Self {
            index: Mutex::new(index),
            log: Mutex::new(log),
            change_history: Mutex::default(),
            is_committing: AtomicBool::new(false),
            commits: watch::Sender::default(),
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

    /// Changes with every commit.
    pub(crate) fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// How addresses of a pod are used now.
    pub(crate) fn use_of(&self, addresses: &[IpAddr]) -> AddressUse {
        let index = self.index();
        let (mut services, mut is_used) = (BTreeSet::new(), false);
        for (service, endpoint) in addresses.iter().flat_map(|address| index.endpoints_at(*address)) {
            is_used |= !endpoint.terminating;
            services.insert(service);
        }
        let log = self.log();
        let keys: Vec<_> = services.iter().flat_map(|service| index.keys_of(service)).collect();
        let may_use = |view: &ServicePortView| addresses.iter().any(|address| view.may_use(*address));
        is_used = is_used || keys.iter().filter_map(|key| log.view(key)).any(may_use);
        let is_current = self.is_ready() && !index.is_dirty() && !self.is_committing.load(Ordering::SeqCst);
        AddressUse { services, is_used, revision: is_current.then(|| log.revision()) }
    }

    /// What has changed since the last call; `None` until every kind of object has been listed.
    pub(crate) fn take_changes(&self) -> Option<IndexChanges> {
        let mut index = self.index();
        index.is_complete().then(|| {
            self.is_committing.store(true, Ordering::SeqCst);
            index.take_changes()
        })
    }

    /// Commits changes to the log. Returns the current revision, and whether it is new.
    pub(crate) fn commit(&self, changes: IndexChanges) -> (Revision, bool) {
        let mut log = self.log();
        let is_new = log.commit(changes).is_some();
        self.is_committing.store(false, Ordering::SeqCst);
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
        self.commits.send_modify(|commits| *commits += 1);
    }
}
