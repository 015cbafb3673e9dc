//! How the addresses of pods that drains ask about are used: decided once for each commit, however many questions there
//! are, while the index has nothing that the log lacks. So it does not matter how often others change their objects.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use proto::model::Revision;
use runtime::lock;
use tokio::time::Instant;

use super::ClusterState;
use crate::{
    index::Index,
    object::{ObjectName, PodId, SliceEndpoint},
    view::ServicePortView,
    waiting_drains::PAUSE,
};

/// The most addresses that are decided about without a question.
const MAX_KEPT: usize = 1024;
/// How many pods the slices may name at one address: that which has it, and one that had it before. Every tenant can
/// name others.
const MAX_PODS: usize = 4;
/// In how many service ports is looked for a pod. Every tenant can have more, and each commit looks.
const MAX_SERVICE_PORTS: usize = 256;

/// How addresses of a pod are used, as of the last commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressUse {
    /// The Services that have the first one in an EndpointSlice, or another one of the same pod.
    pub(crate) services: BTreeSet<ObjectName>,
    /// The namespaces of these, and of those that have had an address since the first question.
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    /// The first revision since which all entries are terminating, and no pool has an address. `None`: they are in use,
    /// or it is not known before the next commit.
    pub(crate) unused_since: Option<Revision>,
}

/// The addresses that drains ask about.
#[derive(Debug, Default)]
pub(super) struct AddressUses {
    asked: HashMap<Vec<IpAddr>, AskedAddresses>,
    #[cfg(test)]
    decisions: usize,
}

#[derive(Debug)]
struct AskedAddresses {
    used: Arc<AddressUse>,
    questions: usize,
    /// When the last question ended; without meaning while there is one.
    ended: Instant,
}

/// A question how addresses are used, until it is dropped.
#[derive(Debug)]
pub(crate) struct UseQuestion<'a> {
    cluster: &'a ClusterState,
    addresses: Vec<IpAddr>,
}

/// An entry of an EndpointSlice, with its Service.
type PodEntry<'a> = (ObjectName, &'a SliceEndpoint);

impl ClusterState {
    /// Asks how addresses of a pod are used. A first question waits for the next commit if anything has changed since
    /// the last one.
    pub(crate) fn ask_use(&self, addresses: Vec<IpAddr>) -> UseQuestion<'_> {
        let index = self.index();
        let mut uses = lock(&self.uses);
        if let Some(asked) = uses.asked.get_mut(&addresses) {
            asked.questions += 1;
        } else {
            let mut used = self.decide_use(&index, &addresses, &AddressUse::default());
            if index.is_dirty() || !self.is_ready() {
                used.unused_since = None;
            }
            let asked = AskedAddresses { used: Arc::new(used), questions: 1, ended: Instant::now() };
            uses.asked.insert(addresses.clone(), asked);
            #[cfg(test)]
            {
                uses.decisions += 1;
            }
        }
        UseQuestion { cluster: self, addresses }
    }

    /// Decides again after a commit, also about addresses whose last question ended less than [`PAUSE`] ago. The index
    /// is still locked, so that it has nothing that the log lacks.
    pub(super) fn decide_uses(&self, index: &Index, uses: &mut AddressUses) {
        let now = Instant::now();
        uses.asked.retain(|_, asked| asked.questions > 0 || now - asked.ended < PAUSE);
        for (addresses, asked) in &mut uses.asked {
            let used = self.decide_use(index, addresses, &asked.used);
            if *asked.used != used {
                asked.used = Arc::new(used);
            }
        }
        #[cfg(test)]
        {
            uses.decisions += uses.asked.len();
        }
    }

    /// `before`: how they were used before this commit.
    fn decide_use(&self, index: &Index, addresses: &[IpAddr], before: &AddressUse) -> AddressUse {
        let entries = entries_of_pod(index, addresses);
        let services: BTreeSet<_> = entries.iter().map(|(service, _)| service.clone()).collect();
        let of_services = services.iter().map(|service| service.namespace.clone());
        let namespaces = before.namespaces.iter().cloned().chain(of_services).collect();
        let of_pod: BTreeSet<_> = entries.iter().map(|(_, endpoint)| endpoint.address).collect();
        let keys = services.iter().flat_map(|service| index.keys_of(service));
        let keys: Vec<_> = keys.take(MAX_SERVICE_PORTS + 1).collect();
        // Of too many pods not all addresses are known.
        let is_ambiguous = pods_of(&entries).len() > MAX_PODS || keys.len() > MAX_SERVICE_PORTS;
        let may_use = |view: &Arc<ServicePortView>| of_pod.iter().any(|address| view.may_use(*address));
        // Sessions need the log for each commit: it is not locked for all service ports together.
        let is_used = is_ambiguous
            || entries.iter().any(|(_, endpoint)| !endpoint.terminating)
            || keys.iter().any(|key| self.log().view(key).is_some_and(may_use));
        let unused_since = (!is_used).then(|| before.unused_since.unwrap_or_else(|| self.log().revision()));
        AddressUse { services, namespaces, unused_since }
    }

    #[cfg(test)]
    pub(crate) fn use_decisions(&self) -> usize {
        lock(&self.uses).decisions
    }
}

impl UseQuestion<'_> {
    /// How they are used as of the last commit. While a commit is under way, this waits for what it changes.
    pub(crate) fn answer(&self) -> Arc<AddressUse> {
        lock(&self.cluster.uses).asked.get(&self.addresses).map(|asked| asked.used.clone()).unwrap_or_default()
    }
}

impl Drop for UseQuestion<'_> {
    fn drop(&mut self) {
        let mut uses = lock(&self.cluster.uses);
        let is_full = uses.asked.len() >= MAX_KEPT;
        if let Some(asked) = uses.asked.get_mut(&self.addresses) {
            asked.questions -= 1;
            asked.ended = Instant::now();
            if asked.questions == 0 && is_full {
                uses.asked.remove(&self.addresses);
            }
        }
    }
}

/// The entries with the first address, and, of each pod that they name, those with its other address, if they name no
/// other pod. A kubelet asks for the first address only; the other one is that in the slices of the same Services. Of
/// more than [`MAX_PODS`] other addresses are not looked for.
fn entries_of_pod<'a>(index: &'a Index, addresses: &[IpAddr]) -> Vec<PodEntry<'a>> {
    let Some(first) = addresses.first() else { return Vec::new() };
    let mut entries = entries_at(index, *first);
    let pods = pods_of(&entries);
    if pods.len() > MAX_PODS {
        return entries;
    }
    // A slice may list an address many times.
    let services: BTreeSet<_> = entries.iter().map(|(service, _)| service.clone()).collect();
    for pod in pods {
        let in_slices = || services.iter().find_map(|service| index.address_of_other_family(service, pod, *first));
        let other = addresses.get(1).copied().or_else(in_slices);
        let others = other.map(|address| entries_at(index, address)).unwrap_or_default();
        if pods_of(&others) == HashSet::from([pod]) {
            entries.extend(others);
        }
    }
    entries
}

/// The pods that entries name.
fn pods_of(entries: &[PodEntry<'_>]) -> HashSet<PodId> {
    entries.iter().filter_map(|(_, endpoint)| endpoint.pod).collect()
}

/// The entries with an address. Those without a pod do not count if others name one: every tenant can write them.
fn entries_at(index: &Index, address: IpAddr) -> Vec<PodEntry<'_>> {
    let mut entries: Vec<_> = index.endpoints_at(address).collect();
    if entries.iter().any(|(_, endpoint)| endpoint.pod.is_some()) {
        entries.retain(|(_, endpoint)| endpoint.pod.is_some());
    }
    entries
}
