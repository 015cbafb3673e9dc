//! Reference counts of the objects that service ports share: pool chains, groups of source ranges, and the elements for
//! hairpin and cluster IPs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;
use netlink::nft::Rule;
use proto::model::IpFamily;

use crate::{
    desired::SourceGroup,
    element::{Element, PoolChain, SourceGroupId},
};

/// The shared objects in the kernel, and how many references each has; 0: it is unused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCounts {
    pub(crate) chains: Counts<PoolChain>,
    /// The elements for which [`Map::is_shared`](crate::element::Map::is_shared).
    pub(crate) elements: Counts<Element>,
    pub(crate) groups: BTreeMap<SourceGroupId, SourceGroupRefs>,
}

/// The number of references of each object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts<K> {
    counts: BTreeMap<K, u32>,
    /// The objects without a reference.
    unused: BTreeSet<K>,
}

/// A group of source ranges in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceGroupRefs {
    /// The number of VIPs that refer to it. 0: it is not complete yet, or unused.
    pub(crate) count: u32,
    /// The source ranges, sorted.
    pub(crate) prefixes: Arc<[IpNet]>,
    /// The rules of its chain; `None`: there is no chain.
    pub(crate) rules: Option<Arc<[Rule]>>,
    /// Whether the kernel has exactly the prefixes and rules of the group.
    pub(crate) is_intact: bool,
}

/// The new count of each object that changes; `None`: deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCountChanges {
    pub(crate) chains: BTreeMap<PoolChain, Option<u32>>,
    pub(crate) elements: Vec<(Element, Option<u32>)>,
    pub(crate) groups: Vec<(SourceGroupId, Option<SourceGroupRefs>)>,
}

// === impl Counts ===

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self { counts: BTreeMap::new(), unused: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Counts<K> {
    /// `None`: the kernel does not contain the object.
    pub(crate) fn get(&self, key: &K) -> Option<u32> {
        self.counts.get(key).copied()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.counts.contains_key(key)
    }

    /// The objects that the kernel contains.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.counts.keys()
    }

    /// The objects without a reference.
    pub(crate) fn unused(&self) -> &BTreeSet<K> {
        &self.unused
    }

    /// `None`: the object is deleted.
    fn set(&mut self, key: K, count: Option<u32>) {
        match count {
            Some(count) => self.counts.insert(key, count),
            None => self.counts.remove(&key),
        };
        if count == Some(0) {
            self.unused.insert(key);
        } else {
            self.unused.remove(&key);
        }
    }

    /// Adds an object that the kernel contains.
    pub(crate) fn observe(&mut self, key: K) {
        if !self.contains(&key) {
            self.set(key, Some(0));
        }
    }

    /// Adds a reference.
    pub(crate) fn increment(&mut self, key: K) {
        self.set(key, Some(self.get(&key).unwrap_or(0) + 1));
    }
}

// === impl RefCounts ===

impl RefCounts {
    /// Whether the kernel contains exactly this group of source ranges.
    pub(crate) fn has_intact_group(&self, id: SourceGroupId) -> bool {
        self.groups.get(&id).is_some_and(|group| group.is_intact)
    }

    /// Counts the references of an element that the kernel contains.
    pub(crate) fn observe_element(&mut self, element: &Element) {
        for chain in chains(element) {
            self.chains.increment(chain);
        }
        if let Some(group) = element.source_group() {
            self.groups.entry(group).or_default().count += 1;
        }
    }

    /// Adds the content of a group of source ranges that the kernel contains.
    pub(crate) fn observe_group(
        &mut self,
        family: IpFamily,
        id: SourceGroupId,
        prefixes: Vec<IpNet>,
        rules: Option<Vec<Rule>>,
    ) {
        let group = SourceGroup { id, prefixes: prefixes.into() };
        let refs = self.groups.entry(id).or_default();
        refs.is_intact = SourceGroupId::of(&group.prefixes) == id && rules.as_ref() == Some(&group.rules(family));
        refs.prefixes = group.prefixes;
        refs.rules = rules.map(Arc::from);
    }

    /// The groups of source ranges that no VIP refers to.
    pub(crate) fn unused_groups(&self) -> impl Iterator<Item = SourceGroupId> {
        self.groups.iter().filter(|(_, refs)| refs.count == 0).map(|(id, _)| *id)
    }

    /// Records that a transaction with these changes was committed.
    pub(crate) fn commit(&mut self, changes: RefCountChanges) {
        for (chain, count) in changes.chains {
            self.chains.set(chain, count);
        }
        for (element, count) in changes.elements {
            self.elements.set(element, count);
        }
        for (id, refs) in changes.groups {
            match refs {
                Some(refs) => self.groups.insert(id, refs),
                None => self.groups.remove(&id),
            };
        }
    }
}

/// The chains that an element refers to: the chain of its verdict, and the chains that this chain jumps to.
pub(crate) fn chains(element: &Element) -> impl Iterator<Item = PoolChain> {
    element.pool().into_iter().flat_map(PoolChain::path)
}
