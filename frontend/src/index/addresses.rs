//! Which EndpointSlices contain an address, or the name of a Node or zone. An entry takes 24 bytes, because there is
//! one for each endpoint of the cluster: it names its slice by a number.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use proto::model::{IpFamily, ServicePortKey};

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

impl Index {
    /// All entries of EndpointSlices with an address, with the Service of each.
    pub(crate) fn endpoints_at(&self, address: IpAddr) -> impl Iterator<Item = (ObjectName, &SliceEndpoint)> {
        self.addresses.slices(address).filter_map(|name| self.slice(name)).flat_map(move |slice| {
            let endpoints = slice.endpoints.iter().filter(move |endpoint| endpoint.address == address);
            endpoints.map(move |endpoint| (sibling(&slice.name, &slice.service), endpoint))
        })
    }

    /// The address of a pod in the EndpointSlices of a Service, of another IP family than one that is known.
    pub(crate) fn address_of_other_family(&self, service: &ObjectName, pod: PodId, known: IpAddr) -> Option<IpAddr> {
        let slices = self.slices.get(service)?.values().filter(|slice| slice.family != IpFamily::of(&known));
        let mut endpoints = slices.flat_map(|slice| {
            #[cfg(test)]
            crate::testing::count_steps(slice.endpoints.len());
            &slice.endpoints
        });
        endpoints.find(|endpoint| endpoint.pod == Some(pod)).map(|endpoint| endpoint.address)
    }

    /// The keys of the service ports of a Service.
    pub(crate) fn keys_of(&self, name: &ObjectName) -> impl Iterator<Item = ServicePortKey> {
        let service = self.services.get(name);
        service.into_iter().flat_map(|service| service.ports.iter().map(move |port| key_of(service, port)))
    }
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
        let entries = self.entries.range((key.clone(), 0)..=(key, u32::MAX));
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
