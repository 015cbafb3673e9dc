//! What service ports share, counted: the chains for so many endpoints, and the elements of endpoints and of cluster IPs that
//! several service ports have.

use std::collections::BTreeMap;

use crate::{desired::PoolChain, element::Element};

/// What of it is in the kernel, and how many need it. Nobody may: it is there, and waits to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refs {
    pub(super) chains: BTreeMap<PoolChain, u32>,
    /// Those for which [`Map::is_shared`](crate::element::Map::is_shared).
    pub(super) elements: BTreeMap<Element, u32>,
}

/// A change of the counts: the new ones; `None` for what is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(super) chains: Vec<(PoolChain, Option<u32>)>,
    pub(super) elements: Vec<(Element, Option<u32>)>,
}

impl Refs {
    /// A chain is in the kernel.
    pub(crate) fn found_chain(&mut self, chain: PoolChain) {
        self.chains.entry(chain).or_insert(0);
    }

    /// An element that may have several owners is in the kernel.
    pub(crate) fn found_shared(&mut self, element: Element) {
        self.elements.entry(element).or_insert(0);
    }

    /// An element is in the kernel, and holds chains there.
    pub(crate) fn found_element(&mut self, element: &Element) {
        for chain in chains(element) {
            *self.chains.entry(chain).or_insert(0) += 1;
        }
    }

    /// The chains that are in the kernel.
    pub(crate) fn chains(&self) -> impl Iterator<Item = PoolChain> {
        self.chains.keys().copied()
    }

    /// The transaction with these changes is in force.
    pub(crate) fn settle(&mut self, delta: Delta) {
        fn put<K: Ord>(map: &mut BTreeMap<K, u32>, changes: Vec<(K, Option<u32>)>) {
            for (key, count) in changes {
                match count {
                    Some(count) => map.insert(key, count),
                    None => map.remove(&key),
                };
            }
        }
        put(&mut self.chains, delta.chains);
        put(&mut self.elements, delta.elements);
    }
}

/// The chains that are needed for an element: the one that it leads to, and those behind that.
pub(super) fn chains(element: &Element) -> impl Iterator<Item = PoolChain> {
    element.pool().into_iter().flat_map(PoolChain::path)
}
