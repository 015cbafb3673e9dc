//! Which EndpointSlices contain an address, or the name of a Node or zone. An entry takes 24 bytes, because there is
//! one for each endpoint of the cluster: it names its slice by a number.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use proto::model::ServicePortKey;

use super::{
    Index,
    keys::{key_of, sibling},
};
use crate::object::{ObjectName, PodId, SliceEndpoint, SliceObject};

#[derive(Debug)]
pub(super) struct SliceIndex<K> {
    entries: BTreeSet<(K, u32)>,
    numbers: HashMap<ObjectName, u32>,
    /// By number; `None`: unused.
    slices: Vec<Option<ObjectName>>,
    unused: Vec<u32>,
}

/// An entry of an EndpointSlice, with its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEntry {
    pub(crate) service: ObjectName,
    pub(crate) address: IpAddr,
    /// The node that it names; if it names none, that with the address in a pod CIDR.
    pub(crate) node: Option<Arc<str>>,
    pub(crate) terminating: bool,
    pub(crate) pod: Option<PodId>,
}

/// The entries of EndpointSlices that have changed since a commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedEntries {
    /// The addresses of all of them.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The addresses of those that end now.
    pub(crate) ending: BTreeSet<IpAddr>,
    /// The pods that they name now.
    pub(crate) pods: BTreeSet<PodId>,
    /// Their nodes, and those that they had.
    pub(crate) nodes: BTreeSet<Arc<str>>,
    /// Those that their slices do not have any more, or not like that.
    pub(crate) removed: Vec<PodEntry>,
}

impl Index {
    /// The entries with any of these addresses. Costs the size of the slices that have one, each once.
    pub(crate) fn entries_at(&self, addresses: &BTreeSet<IpAddr>) -> Vec<PodEntry> {
        let slices: BTreeSet<_> = addresses.iter().flat_map(|address| self.addresses.slices(*address)).collect();
        let slices = slices.into_iter().filter_map(|name| self.slice(name));
        self.entries_of(slices, |endpoint| addresses.contains(&endpoint.address))
    }

    /// The entries of these pods in the slices of these Services. Costs the size of these slices.
    pub(crate) fn entries_of_pods(&self, services: &BTreeSet<ObjectName>, pods: &HashSet<PodId>) -> Vec<PodEntry> {
        let slices = services.iter().filter_map(|service| self.slices.get(service)).flat_map(BTreeMap::values);
        self.entries_of(slices, |endpoint| endpoint.pod.is_some_and(|pod| pods.contains(&pod)))
    }

    /// The entries of a node: those that name it, and those that name no node, with an address in its pod CIDRs. Costs
    /// the size of the slices that have one.
    pub(crate) fn entries_on(&self, node: &str) -> Vec<PodEntry> {
        let pod_cidrs = self.node(node).map_or(&[][..], |node| &node.pod_cidrs);
        let in_pod_cidrs =
            pod_cidrs.iter().flat_map(|cidr| self.addresses.slices_between(cidr.network(), cidr.broadcast()));
        let slices: BTreeSet<_> = self.located.slices(node.into()).chain(in_pod_cidrs).collect();
        let is_on_node = |endpoint: &SliceEndpoint| match &endpoint.node {
            Some(named) => **named == *node,
            None => pod_cidrs.iter().any(|cidr| cidr.contains(&endpoint.address)),
        };
        self.entries_of(slices.into_iter().filter_map(|name| self.slice(name)), is_on_node)
    }

    /// The addresses of all entries that end.
    pub(crate) fn ending_addresses(&self) -> BTreeSet<IpAddr> {
        let slices = self.slices.values().flat_map(BTreeMap::values);
        let ending = slices.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.terminating);
        ending.map(|endpoint| endpoint.address).collect()
    }

    /// Takes the entries that have changed since the last call.
    pub(crate) fn take_changed_entries(&mut self) -> ChangedEntries {
        mem::take(&mut self.pending.entries)
    }

    /// Records which entries differ between two versions of a slice. Costs the size of the slice.
    pub(super) fn note_changed_entries(&mut self, old: Option<&SliceObject>, new: Option<&SliceObject>) {
        let has_moved = old.map(|slice| &slice.service) != new.map(|slice| &slice.service);
        let before = entries_by_address(old);
        let after = entries_by_address(new);
        let addresses: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();

        for address in addresses {
            if !has_moved && before.get(&address) == after.get(&address) {
                continue;
            }
            let removed = self.pod_entries(old, before.get(&address));
            let added = self.pod_entries(new, after.get(&address));
            let changed = &mut self.pending.entries;
            changed.addresses.insert(address);
            if added.iter().any(|entry| entry.terminating) {
                changed.ending.insert(address);
            }
            changed.pods.extend(added.iter().filter_map(|entry| entry.pod));
            changed.nodes.extend(removed.iter().chain(&added).filter_map(|entry| entry.node.clone()));
            changed.removed.extend(removed);
        }
    }

    /// The keys of the service ports of a Service.
    pub(crate) fn keys_of(&self, name: &ObjectName) -> impl Iterator<Item = ServicePortKey> {
        let service = self.services.get(name);
        service.into_iter().flat_map(|service| service.ports.iter().map(move |port| key_of(service, port)))
    }

    fn entries_of<'a>(
        &self,
        slices: impl Iterator<Item = &'a SliceObject>,
        is_wanted: impl Fn(&SliceEndpoint) -> bool,
    ) -> Vec<PodEntry> {
        let mut entries = Vec::new();
        for slice in slices {
            #[cfg(test)]
            crate::testing::count_steps(slice.endpoints.len());
            let wanted = slice.endpoints.iter().filter(|endpoint| is_wanted(endpoint));
            entries.extend(wanted.map(|endpoint| self.pod_entry(slice, endpoint)));
        }
        entries
    }

    fn pod_entries(&self, slice: Option<&SliceObject>, endpoints: Option<&Vec<&SliceEndpoint>>) -> Vec<PodEntry> {
        let entries = |slice| endpoints.into_iter().flatten().map(move |endpoint| self.pod_entry(slice, endpoint));
        slice.into_iter().flat_map(entries).collect()
    }

    fn pod_entry(&self, slice: &SliceObject, endpoint: &SliceEndpoint) -> PodEntry {
        let node_of_pod_cidr = || self.claims.protected.pod_cidr(endpoint.address).map(|(_, node)| node.clone());
        PodEntry {
            service: sibling(&slice.name, &slice.service),
            address: endpoint.address,
            node: endpoint.node.clone().or_else(node_of_pod_cidr),
            terminating: endpoint.terminating,
            pod: endpoint.pod,
        }
    }
}

/// The endpoints of a slice by address: it may list one several times.
fn entries_by_address(slice: Option<&SliceObject>) -> BTreeMap<IpAddr, Vec<&SliceEndpoint>> {
    let mut entries = BTreeMap::<_, Vec<_>>::new();
    for endpoint in slice.into_iter().flat_map(|slice| &slice.endpoints) {
        entries.entry(endpoint.address).or_default().push(endpoint);
    }
    entries
}

impl<K> Default for SliceIndex<K> {
    fn default() -> Self {
        Self { entries: BTreeSet::new(), numbers: HashMap::new(), slices: Vec::new(), unused: Vec::new() }
    }
}

impl<K: Ord + Clone> SliceIndex<K> {
    /// Replaces the keys of a slice. Costs what has changed in it.
    pub(super) fn change_slice(&mut self, name: &ObjectName, old: &BTreeSet<K>, new: &BTreeSet<K>) {
        if new.is_empty() && old.is_empty() {
            return;
        }
        let number = self.number(name);
        for key in old.difference(new) {
            self.entries.remove(&(key.clone(), number));
        }
        self.entries.extend(new.difference(old).map(|key| (key.clone(), number)));
        if new.is_empty() {
            self.numbers.remove(name);
            self.unused.push(number);
            self.slices[number as usize] = None;
        }
    }

    pub(super) fn slices(&self, key: K) -> impl Iterator<Item = &ObjectName> {
        self.slices_between(key.clone(), key)
    }

    /// The slices with a key between these two, inclusive.
    pub(super) fn slices_between(&self, first: K, last: K) -> impl Iterator<Item = &ObjectName> {
        let entries = self.entries.range((first, 0)..=(last, u32::MAX));
        entries.filter_map(|(_, number)| self.slices[*number as usize].as_ref())
    }

    /// All slices with keys.
    pub(super) fn all(&self) -> impl Iterator<Item = &ObjectName> {
        self.numbers.keys()
    }

    /// The number of entries, and that of slices with entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.numbers.len())
    }

    fn number(&mut self, name: &ObjectName) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.slices.push(None);
            // A cluster has far less than 2^32 slices.
            u32::try_from(self.slices.len() - 1).unwrap_or(u32::MAX)
        });
        self.slices[number as usize] = Some(name.clone());
        self.numbers.insert(name.clone(), number);
        number
    }
}

pub(super) fn addresses(slice: Option<&SliceObject>) -> BTreeSet<IpAddr> {
    slice.into_iter().flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.address).collect()
}

/// The nodes that the endpoints of a slice name.
pub(super) fn nodes(slice: Option<&SliceObject>) -> BTreeSet<Arc<str>> {
    slice.into_iter().flat_map(|slice| &slice.endpoints).filter_map(|endpoint| endpoint.node.clone()).collect()
}
