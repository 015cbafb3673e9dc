//! The state of the cluster: written by the engine, read by sessions, status requests, the page and metrics.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::SystemTime,
};

use proto::model::{KindVersions, Revision};
use runtime::lock;
use tokio::sync::watch;
use tracing::info;

use crate::{
    index::{Index, IndexChanges},
    log::{ChangeLog, PreparedChanges},
    object::{ObjectName, PodId, SliceEndpoint},
    view::ServicePortView,
};

/// The index, the change log, and the current revision.
///
/// Neither mutex is held across an await, and the log is for microseconds: every session locks it for every commit;
/// only the engine and requests of operators and drains lock the index. The change log may be locked while the index
/// is, never the other way round.
#[derive(Debug)]
pub(crate) struct ClusterState {
    index: Mutex<Index>,
    log: Mutex<ChangeLog>,
    /// Changes with every commit, whether there is a new revision or not.
    commits: watch::Sender<u64>,
    /// `None` until every kind of object has been listed.
    revision: watch::Sender<Option<Revision>>,
    /// The version of each kind up to which the source has reported every change.
    kind_versions: watch::Sender<KindVersions>,
}

/// The result of [`ClusterState::commit`].
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

/// How addresses of a pod are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressUse {
    /// The Services that have the first one in an EndpointSlice, or another one of the same pod.
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
            commits: watch::Sender::default(),
            revision: watch::Sender::new(None),
            kind_versions: watch::Sender::default(),
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

    /// The number of commits so far, with those that changed nothing.
    pub(crate) fn commit_count(&self) -> u64 {
        *self.commits.borrow()
    }

    /// Whether every object has been committed.
    pub(crate) fn has_committed_all(&self) -> bool {
        self.is_current(&self.index())
    }

    /// Changes with every commit.
    pub(crate) fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    /// How addresses of a pod are used now.
    pub(crate) fn use_of(&self, addresses: &[IpAddr]) -> AddressUse {
        let (mut used, of_pod, keys) = {
            let index = self.index();
            let PodEntries { entries, is_ambiguous } = entries_of_pod(&index, addresses);
            let services: BTreeSet<_> = entries.iter().map(|(service, _)| service.clone()).collect();
            let is_used = is_ambiguous || entries.iter().any(|(_, endpoint)| !endpoint.terminating);
            let of_pod: BTreeSet<_> = entries.iter().map(|(_, endpoint)| endpoint.address).collect();
            if !self.is_current(&index) {
                return AddressUse { services, is_used, revision: None };
            }
            let keys: Vec<_> = services.iter().flat_map(|service| index.keys_of(service)).collect();
            (AddressUse { services, is_used, revision: None }, of_pod, keys)
        };
        let may_use = |view: &Arc<ServicePortView>| of_pod.iter().any(|address| view.may_use(*address));
        // Sessions need the log for each commit: it is not locked for all service ports together.
        used.is_used = used.is_used || keys.iter().any(|key| self.log().view(key).is_some_and(may_use));
        used.revision = Some(self.log().revision());
        used
    }

    /// Whether the log has everything that the index has.
    fn is_current(&self, index: &Index) -> bool {
        self.is_ready() && !index.is_dirty()
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
        let is_new = if self.is_ready() {
            // Only this changes the log, and the index is locked.
            let views = self.log().views_of(&changes);
            let zone_of = |node: &str| index.node(node).map_or("", |node| &*node.zone);
            let prepared = PreparedChanges::new(changes, &views, zone_of);
            self.log().commit(prepared).is_some()
        } else {
            self.log().start(changes);
            true
        };
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

/// An entry of an EndpointSlice, with its Service.
type PodEntry<'a> = (ObjectName, &'a SliceEndpoint);

/// The entries that use a pod.
struct PodEntries<'a> {
    entries: Vec<PodEntry<'a>>,
    /// Whether they name so many pods that their other addresses are not looked for.
    is_ambiguous: bool,
}

/// How many pods the slices may name at one address: that which has it, and one that had it before. Every tenant can
/// name others.
const MAX_PODS: usize = 4;

/// The entries with the first address, and, of each pod that they name, those with its other address, if they name no
/// other pod. A kubelet asks for the first address only; the other one is that in the slices of the same Services.
fn entries_of_pod<'a>(index: &'a Index, addresses: &[IpAddr]) -> PodEntries<'a> {
    let Some(first) = addresses.first() else { return PodEntries { entries: Vec::new(), is_ambiguous: false } };
    let mut entries = entries_at(index, *first);
    let pods: HashSet<PodId> = entries.iter().filter_map(|(_, endpoint)| endpoint.pod).collect();
    if pods.len() > MAX_PODS {
        return PodEntries { entries, is_ambiguous: true };
    }
    // A slice may list an address many times.
    let services: BTreeSet<_> = entries.iter().map(|(service, _)| service.clone()).collect();
    for pod in pods {
        let in_slices = || services.iter().find_map(|service| index.address_of_other_family(service, pod, *first));
        let other = addresses.get(1).copied().or_else(in_slices);
        let others = other.map(|address| entries_at(index, address)).unwrap_or_default();
        if pod_of(&others) == Some(pod) {
            entries.extend(others);
        }
    }
    PodEntries { entries, is_ambiguous: false }
}

/// The entries with an address. Those without a pod do not count if others name one: every tenant can write them.
fn entries_at(index: &Index, address: IpAddr) -> Vec<PodEntry<'_>> {
    let mut entries: Vec<_> = index.endpoints_at(address).collect();
    if entries.iter().any(|(_, endpoint)| endpoint.pod.is_some()) {
        entries.retain(|(_, endpoint)| endpoint.pod.is_some());
    }
    entries
}

/// The pod that all entries name.
fn pod_of(entries: &[PodEntry<'_>]) -> Option<PodId> {
    let pod = entries.first()?.1.pod;
    entries.iter().all(|(_, endpoint)| endpoint.pod == pod).then_some(pod).flatten()
}
