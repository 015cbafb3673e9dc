//! The pods that end: for each, since which revision no node is told to send it new connections.
//!
//! ```text
//!   EndpointSlices ──▶ in use until all entries at its addresses end, and no pool has one of them
//!                          │ revision R
//!   Acks ─────────────────▶└─▶ behind until all nodes have programmed R ──▶ drained
//! ```
//!
//! The first line is decided here, once for each commit, for the pods that the commit concerns: those with an entry
//! that has changed, and those of a Service with a port that has changed. The second line is in [`levels`]. All pods
//! that end have a level, whether a node follows them or not, so nothing here depends on who asks.
//!
//! The slices of a pod are written by one controller and watched in the order of their versions: after an entry that
//! ends, none that is ready can follow for the same pod. An address may be used again, by another pod.

pub(crate) mod levels;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use proto::model::{Revision, ServicePortKey, SourceVersion};
use tokio::{sync::watch, time::Instant};

use crate::{
    index::{ChangedEntries, Index, PodEntry},
    object::{ObjectName, PodId},
    view::ServicePortView,
};

/// How long a pod that no slice lists any more is kept, for those that have waited for it before.
const GONE_RETENTION: Duration = Duration::from_secs(60);

/// The pods that end, and the nodes that follow them.
#[derive(Debug, Default)]
pub(crate) struct EndingPods {
    pods: BTreeMap<PodKey, EndingPod>,
    by_address: BTreeSet<(IpAddr, PodKey)>,
    by_service: BTreeMap<ObjectName, BTreeSet<PodKey>>,
    /// By the node of its entries, and by namespace: a tenant can write the name of any node.
    by_node: BTreeMap<Arc<str>, BTreeMap<Arc<str>, BTreeSet<PodKey>>>,
    /// Pods that no slice lists any more, in the order in which that happened.
    gone: VecDeque<(Instant, PodKey)>,
    /// Nodes with an open stream, which is notified of what concerns it.
    followers: BTreeMap<Arc<str>, watch::Sender<NodeChange>>,
    /// Whether the first commit was made.
    is_started: bool,
}

/// What makes a pod that of an entry: the pod that it names, or its address if it names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodKey {
    Pod(PodId),
    Address(IpAddr),
}

/// A pod of which an entry ends, or that was removed from its slices a short time ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndingPod {
    /// One of each family.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The Services that list an address, or have listed one since the pod ends.
    pub(crate) services: BTreeSet<ObjectName>,
    /// The nodes of its entries.
    nodes: BTreeSet<Arc<str>>,
    /// Whether an entry at one of its addresses does not end.
    is_listed_in_use: bool,
    /// The service ports with a pool that may use one of its addresses.
    used_in: BTreeSet<ServicePortKey>,
    /// The first revision since which neither is so.
    pub(crate) unused_since: Option<Revision>,
    /// That of the newest EndpointSlice that this follows from. A list has a later version, which other frontends do
    /// not see before the next slice changes.
    slices_version: SourceVersion,
    /// When it began to end, as far as this frontend has seen it.
    pub(crate) since: Instant,
    /// Since when no slice lists it.
    gone_since: Option<Instant>,
}

/// What has changed for a node since its stream started: numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeChange {
    /// Entries of its pods that do not end, or did not before.
    pub(crate) entries: u64,
    /// Its pods that end.
    pub(crate) pods: u64,
}

/// A commit, as far as it concerns pods.
pub(crate) struct PodCommit<'a> {
    pub(crate) index: &'a Index,
    pub(crate) changed: ChangedEntries,
    /// The service ports that may have changed.
    pub(crate) ports: BTreeSet<ServicePortKey>,
    pub(crate) revision: Revision,
    pub(crate) slices_version: SourceVersion,
    pub(crate) view_of: &'a dyn Fn(&ServicePortKey) -> Option<Arc<ServicePortView>>,
}

// === impl EndingPods ===

impl EndingPods {
    /// Updates the pods that a commit concerns. The log has the commit already, and the index has nothing that the log
    /// lacks.
    pub(crate) fn commit(&mut self, mut commit: PodCommit<'_>) {
        self.forget_gone();
        if !self.is_started {
            self.is_started = true;
            commit.changed.ending = commit.index.ending_addresses();
        }

        for node in &commit.changed.nodes {
            self.notify(node, |change| change.entries += 1);
        }
        let refreshed = self.refresh(&commit);
        let affected = self.update_ports(&commit, refreshed);

        for key in affected {
            self.decide(key, &commit);
        }
    }

    /// Reads the entries of the pods with an address that has changed. Returns these pods.
    fn refresh(&mut self, commit: &PodCommit<'_>) -> BTreeSet<PodKey> {
        let (mut pods, changed) = self.concerned(&commit.changed);
        let entries = counting(commit.index.entries_at(&changed));
        for entry in entries.values().flatten().filter(|entry| entry.terminating) {
            pods.entry(PodKey::of(entry)).or_insert_with(EndingPod::new).add(entry);
        }
        if pods.is_empty() {
            return BTreeSet::new();
        }

        add_other_addresses(&mut pods, commit.index);
        let known = pods.values().flat_map(|pod| &pod.addresses).copied();
        let entries = counting(commit.index.entries_at(&known.collect()));
        for (key, pod) in &mut pods {
            pod.read(*key, &entries);
        }
        read_uses(&mut pods, &entries, commit);

        let refreshed = pods.keys().copied().collect();
        for (key, pod) in pods {
            self.remove(key);
            if pod.gone_since.is_some() || pod.is_ending(key, &entries) {
                self.insert(key, pod);
            }
        }
        refreshed
    }

    /// The known pods that changed entries name, or that have their addresses; and all addresses of these pods, with
    /// those at which another one may begin to end. A pod that does not end and is removed from its slices counts if
    /// its node follows: something may wait for it.
    fn concerned(&self, changed: &ChangedEntries) -> (BTreeMap<PodKey, EndingPod>, BTreeSet<IpAddr>) {
        let mut addresses = changed.ending.clone();
        let at_addresses = changed.addresses.iter().flat_map(|address| self.keys_at(*address));
        let named = changed.pods.iter().copied().map(PodKey::Pod);
        let mut pods = BTreeMap::new();
        for key in at_addresses.chain(named) {
            if let Some(pod) = self.pods.get(&key) {
                addresses.extend(&pod.addresses);
                pods.insert(key, pod.clone());
            }
        }

        for entry in &changed.removed {
            let is_followed = entry.node.as_ref().is_some_and(|node| self.followers.contains_key(node));
            if is_followed && !pods.contains_key(&PodKey::of(entry)) {
                addresses.insert(entry.address);
                pods.entry(PodKey::of(entry)).or_insert_with(EndingPod::new).add(entry);
            }
        }
        (pods, addresses)
    }

    /// Looks for pods in the service ports that have changed. Returns all pods that the commit concerns.
    fn update_ports(&mut self, commit: &PodCommit<'_>, refreshed: BTreeSet<PodKey>) -> BTreeSet<PodKey> {
        let mut affected = refreshed.clone();
        for key in &commit.ports {
            let service = ObjectName::new(key.namespace.clone(), key.name.clone());
            let Some(pods) = self.by_service.get(&service) else { continue };
            let view = (commit.view_of)(key);

            for pod in pods.difference(&refreshed) {
                let Some(ending) = self.pods.get_mut(pod) else { continue };
                let is_used = view.as_ref().is_some_and(|view| ending.is_used_in(view));
                let has_changed = if is_used { ending.used_in.insert(key.clone()) } else { ending.used_in.remove(key) };
                if has_changed {
                    affected.insert(*pod);
                }
            }
        }
        affected
    }

    /// Decides since when a pod is not used, and notifies its node.
    fn decide(&mut self, key: PodKey, commit: &PodCommit<'_>) {
        let Some(pod) = self.pods.get_mut(&key) else { return };
        let is_used = pod.is_listed_in_use || !pod.used_in.is_empty();
        let unused_since = if is_used { None } else { Some(pod.unused_since.unwrap_or(commit.revision)) };
        if pod.unused_since != unused_since {
            pod.unused_since = unused_since;
            pod.slices_version = commit.slices_version;
        }

        for node in pod.nodes.clone() {
            self.notify(&node, |change| change.pods += 1);
        }
    }

    /// Follows what concerns a node. Another follower of it is ended: the receiver of that one has no sender any more.
    pub(crate) fn follow(&mut self, node: &Arc<str>) -> watch::Receiver<NodeChange> {
        let (sender, receiver) = watch::channel(NodeChange::default());
        self.followers.insert(node.clone(), sender);
        receiver
    }

    /// Forgets a follower that has ended, unless another one has taken its place.
    pub(crate) fn unfollow(&mut self, node: &Arc<str>) {
        if self.followers.get(node).is_some_and(|sender| sender.is_closed()) {
            self.followers.remove(node);
        }
    }

    fn notify(&self, node: &Arc<str>, change: impl FnOnce(&mut NodeChange)) {
        if let Some(follower) = self.followers.get(node) {
            follower.send_modify(change);
        }
    }

    fn keys_at(&self, address: IpAddr) -> impl Iterator<Item = PodKey> {
        let first = (address, PodKey::FIRST);
        let at_address = self.by_address.range(first..).take_while(move |(other, _)| *other == address);
        at_address.map(|(_, key)| *key)
    }

    fn insert(&mut self, key: PodKey, pod: EndingPod) {
        for address in &pod.addresses {
            self.by_address.insert((*address, key));
        }
        for service in &pod.services {
            self.by_service.entry(service.clone()).or_default().insert(key);
        }
        for (node, namespace) in pod.places() {
            let namespaces = self.by_node.entry(node.clone()).or_default();
            namespaces.entry(namespace.clone()).or_default().insert(key);
        }
        if let Some(gone_since) = pod.gone_since {
            self.gone.push_back((gone_since, key));
        }
        self.pods.insert(key, pod);
    }

    fn remove(&mut self, key: PodKey) {
        let Some(pod) = self.pods.remove(&key) else { return };
        for address in &pod.addresses {
            self.by_address.remove(&(*address, key));
        }
        for service in &pod.services {
            remove_from(&mut self.by_service, service, key);
        }
        for (node, namespace) in pod.places() {
            let Some(namespaces) = self.by_node.get_mut(node) else { continue };
            remove_from(namespaces, namespace, key);
            if namespaces.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    fn forget_gone(&mut self) {
        while let Some((since, key)) = self.gone.front().copied()
            && since.elapsed() >= GONE_RETENTION
        {
            self.gone.pop_front();
            // It may have come back, or have gone a second time.
            if self.pods.get(&key).is_some_and(|pod| pod.gone_since == Some(since)) {
                self.remove(key);
            }
        }
    }
}

// === impl EndingPod ===

impl EndingPod {
    fn new() -> Self {
        Self {
            addresses: BTreeSet::new(),
            services: BTreeSet::new(),
            nodes: BTreeSet::new(),
            is_listed_in_use: false,
            used_in: BTreeSet::new(),
            unused_since: None,
            slices_version: SourceVersion::default(),
            since: Instant::now(),
            gone_since: None,
        }
    }

    /// Adds an entry that is one of the pod. A pod has one address of each family, so entries that name it at others do
    /// not count: a tenant can write as many as it wants.
    fn add(&mut self, entry: &PodEntry) {
        let is_same_family = |address: &IpAddr| address.is_ipv4() == entry.address.is_ipv4();
        if self.addresses.iter().any(|address| is_same_family(address) && *address != entry.address) {
            return;
        }

        self.addresses.insert(entry.address);
        self.services.insert(entry.service.clone());
        self.nodes.extend(entry.node.clone());
    }

    /// Takes over what the entries at its addresses say.
    fn read(&mut self, key: PodKey, entries: &EntriesByAddress) {
        let mut is_listed = false;
        self.is_listed_in_use = false;
        self.used_in.clear();
        for entry in self.addresses.iter().filter_map(|address| entries.get(address)).flatten() {
            self.is_listed_in_use |= !entry.terminating;
            self.services.insert(entry.service.clone());
            if PodKey::of(entry) == key {
                is_listed = true;
                self.nodes.extend(entry.node.clone());
            }
        }

        self.gone_since = match self.gone_since {
            _ if is_listed => None,
            None => Some(Instant::now()),
            since => since,
        };
    }

    /// Whether an entry of the pod itself ends.
    fn is_ending(&self, key: PodKey, entries: &EntriesByAddress) -> bool {
        let at_its_addresses = self.addresses.iter().filter_map(|address| entries.get(address)).flatten();
        at_its_addresses.into_iter().any(|entry| entry.terminating && PodKey::of(entry) == key)
    }

    fn is_used_in(&self, view: &ServicePortView) -> bool {
        self.addresses.iter().any(|address| view.may_use(*address))
    }

    /// Its nodes, each with each namespace of its Services.
    fn places(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        let namespaces = || self.services.iter().map(|service| &service.namespace);
        self.nodes.iter().flat_map(move |node| namespaces().map(move |namespace| (node, namespace)))
    }

    pub(crate) fn namespaces(&self) -> BTreeSet<Arc<str>> {
        self.services.iter().map(|service| service.namespace.clone()).collect()
    }
}

// === impl PodKey ===

impl PodKey {
    /// Before all others.
    const FIRST: Self = Self::Pod(PodId::FIRST);

    fn of(entry: &PodEntry) -> Self {
        entry.pod.map_or(Self::Address(entry.address), Self::Pod)
    }
}

/// The entries that count, by address.
type EntriesByAddress = BTreeMap<IpAddr, Vec<PodEntry>>;

/// The entries that count: if one at an address names a pod, those that name none do not, because any author of a slice
/// can write them.
fn counting(entries: Vec<PodEntry>) -> EntriesByAddress {
    let mut by_address = EntriesByAddress::new();
    for entry in entries {
        by_address.entry(entry.address).or_default().push(entry);
    }
    for entries in by_address.values_mut() {
        if entries.iter().any(|entry| entry.pod.is_some()) {
            entries.retain(|entry| entry.pod.is_some());
        }
    }
    by_address
}

/// Adds the addresses of the other family: a pod has one of each in the slices of the same Services.
fn add_other_addresses(pods: &mut BTreeMap<PodKey, EndingPod>, index: &Index) {
    let services: BTreeSet<_> = pods.values().flat_map(|pod| pod.services.iter().cloned()).collect();
    let ids: HashSet<_> =
        pods.keys().filter_map(|key| if let PodKey::Pod(id) = key { Some(*id) } else { None }).collect();
    for entry in index.entries_of_pods(&services, &ids) {
        if let Some(pod) = pods.get_mut(&PodKey::of(&entry)) {
            pod.add(&entry);
        }
    }
}

/// Looks for pods in the pools of all service ports of the Services that list their addresses.
fn read_uses(pods: &mut BTreeMap<PodKey, EndingPod>, entries: &EntriesByAddress, commit: &PodCommit<'_>) {
    let mut pods_of = BTreeMap::<&ObjectName, BTreeSet<PodKey>>::new();
    for (key, pod) in &*pods {
        for entry in pod.addresses.iter().filter_map(|address| entries.get(address)).flatten() {
            pods_of.entry(&entry.service).or_default().insert(*key);
        }
    }

    for (service, keys) in pods_of {
        for port in commit.index.keys_of(service) {
            let Some(view) = (commit.view_of)(&port) else { continue };
            for key in &keys {
                if let Some(pod) = pods.get_mut(key)
                    && pod.is_used_in(&view)
                {
                    pod.used_in.insert(port.clone());
                }
            }
        }
    }
}

fn remove_from<K: Ord>(sets: &mut BTreeMap<K, BTreeSet<PodKey>>, key: &K, pod: PodKey) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(&pod);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
