//! How the addresses of a pod are used: decided once for each commit, however many questions there are about them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use proto::model::Revision;
use runtime::lock;

use super::ClusterState;
use crate::{
    index::Index,
    object::{ObjectName, PodId, SliceEndpoint},
    view::ServicePortView,
};

/// How many decisions are kept: more than pods end at the same time.
const MAX_USES: usize = 1024;
/// How many pods the slices may name at one address: that which has it, and one that had it before. Every tenant can
/// name others.
const MAX_PODS: usize = 4;

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

/// The decisions since a commit.
#[derive(Debug, Default)]
pub(super) struct UsesOfCommit {
    commit: u64,
    uses: HashMap<Vec<IpAddr>, Arc<AddressUse>>,
    #[cfg(test)]
    decisions: usize,
}

/// An entry of an EndpointSlice, with its Service.
type PodEntry<'a> = (ObjectName, &'a SliceEndpoint);

impl ClusterState {
    /// How addresses of a pod are used now.
    pub(crate) fn use_of(&self, addresses: &[IpAddr]) -> Arc<AddressUse> {
        let commit = *self.commits.borrow();
        let known = lock(&self.uses).of_commit(commit).get(addresses).cloned();
        if let Some(used) = known {
            let is_current = self.is_current(&self.index());
            return if is_current { used } else { Arc::new(AddressUse { revision: None, ..(*used).clone() }) };
        }
        // The lock is not held: others decide the same.
        let used = Arc::new(self.decide_use(addresses));
        let mut known = lock(&self.uses);
        #[cfg(test)]
        {
            known.decisions += 1;
        }
        let uses = known.of_commit(commit);
        if used.revision.is_some() && uses.len() < MAX_USES {
            uses.insert(addresses.to_vec(), used.clone());
        }
        used
    }

    #[cfg(test)]
    pub(crate) fn use_decisions(&self) -> usize {
        lock(&self.uses).decisions
    }

    fn decide_use(&self, addresses: &[IpAddr]) -> AddressUse {
        let (mut used, of_pod, keys) = {
            let index = self.index();
            let entries = entries_of_pod(&index, addresses);
            let services: BTreeSet<_> = entries.iter().map(|(service, _)| service.clone()).collect();
            // Of too many pods not all addresses are known.
            let is_ambiguous = pods_of(&entries).len() > MAX_PODS;
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
}

impl UsesOfCommit {
    /// Forgets those of other commits.
    fn of_commit(&mut self, commit: u64) -> &mut HashMap<Vec<IpAddr>, Arc<AddressUse>> {
        if self.commit != commit {
            self.commit = commit;
            self.uses.clear();
        }
        &mut self.uses
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
