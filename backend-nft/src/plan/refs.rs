//! Reference counts of the objects that service ports share: pool chains, and the elements for hairpin and cluster IPs.

use std::collections::BTreeMap;

use crate::{desired::PoolChain, element::Element};

/// The shared objects in the kernel, and how many references each has; 0: it is unused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCounts {
    pub(super) chains: BTreeMap<PoolChain, u32>,
    /// The elements for which [`Map::is_shared`](crate::element::Map::is_shared).
    pub(super) elements: BTreeMap<Element, u32>,
}

/// The new count of each object that changes; `None`: deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCountChanges {
    pub(super) chains: BTreeMap<PoolChain, Option<u32>>,
    pub(super) elements: Vec<(Element, Option<u32>)>,
}

impl RefCounts {
    /// Adds a chain that the kernel contains.
    pub(crate) fn observe_chain(&mut self, chain: PoolChain) {
        self.chains.entry(chain).or_insert(0);
    }

    /// Adds a shared element that the kernel contains.
    pub(crate) fn observe_shared(&mut self, element: Element) {
        self.elements.entry(element).or_insert(0);
    }

    /// Counts the references of an element that the kernel contains.
    pub(crate) fn observe_element(&mut self, element: &Element) {
        for chain in chains(element) {
            *self.chains.entry(chain).or_insert(0) += 1;
        }
    }

    /// The chains that the kernel contains.
    pub(crate) fn chains(&self) -> impl Iterator<Item = PoolChain> {
        self.chains.keys().copied()
    }

    /// Records that a transaction with these changes was committed.
    pub(crate) fn commit(&mut self, changes: RefCountChanges) {
        fn put<K: Ord>(map: &mut BTreeMap<K, u32>, changes: impl IntoIterator<Item = (K, Option<u32>)>) {
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

/// The chains that an element refers to: that of its verdict, and those that this chain jumps to.
pub(super) fn chains(element: &Element) -> impl Iterator<Item = PoolChain> {
    element.pool().into_iter().flat_map(PoolChain::path)
}
