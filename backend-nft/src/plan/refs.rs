//! Reference counts of what service ports share: pool chains, and the elements of endpoints and of cluster IPs.

use std::collections::BTreeMap;

use crate::{desired::PoolChain, element::Element};

/// What of it is in the kernel, and how many references it has; 0: it is to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refs {
    pub(super) chains: BTreeMap<PoolChain, u32>,
    /// Those for which [`Map::is_shared`](crate::element::Map::is_shared).
    pub(super) elements: BTreeMap<Element, u32>,
}

/// The new counts of what changes; `None`: deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefChanges {
    pub(super) chains: Vec<(PoolChain, Option<u32>)>,
    pub(super) elements: Vec<(Element, Option<u32>)>,
}

impl Refs {
    /// Adds a chain that is in the kernel.
    pub(crate) fn found_chain(&mut self, chain: PoolChain) {
        self.chains.entry(chain).or_insert(0);
    }

    /// Adds a shared element that is in the kernel.
    pub(crate) fn found_shared(&mut self, element: Element) {
        self.elements.entry(element).or_insert(0);
    }

    /// Counts the references of an element that is in the kernel.
    pub(crate) fn found_element(&mut self, element: &Element) {
        for chain in chains(element) {
            *self.chains.entry(chain).or_insert(0) += 1;
        }
    }

    /// The chains that are in the kernel.
    pub(crate) fn chains(&self) -> impl Iterator<Item = PoolChain> {
        self.chains.keys().copied()
    }

    /// Records that a transaction with these changes was committed.
    pub(crate) fn commit(&mut self, changes: RefChanges) {
        fn put<K: Ord>(map: &mut BTreeMap<K, u32>, changes: Vec<(K, Option<u32>)>) {
            for (key, count) in changes {
                match count {
                    Some(count) => map.insert(key, count),
                    None => map.remove(&key),
                };
            }
        }
        put(&mut self.chains, changes.chains);
        put(&mut self.elements, changes.elements);
    }
}

/// The chains that an element refers to: its verdict, and those that this one jumps to.
pub(super) fn chains(element: &Element) -> impl Iterator<Item = PoolChain> {
    element.pool().into_iter().flat_map(PoolChain::path)
}
