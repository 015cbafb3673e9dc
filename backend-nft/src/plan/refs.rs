//! Reference counts of the objects that service ports share: pool chains, groups of source ranges, and the elements for
//! hairpin and cluster IPs.

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;
use netlink::nft::Rule;
use proto::model::IpFamily;

use crate::{
    desired::{PoolChain, SourceGroup, SourceGroupId},
    element::Element,
};

/// The shared objects in the kernel, and how many references each has; 0: it is unused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCounts {
    pub(super) chains: BTreeMap<PoolChain, u32>,
    /// The elements for which [`Map::is_shared`](crate::element::Map::is_shared).
    pub(super) elements: BTreeMap<Element, u32>,
    pub(super) groups: BTreeMap<SourceGroupId, SourceGroupRefs>,
}

/// A group of source ranges in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceGroupRefs {
    /// The number of VIPs that refer to it. 0: it is not complete yet, or unused.
    pub(super) count: u32,
    /// Sorted.
    pub(super) prefixes: Arc<[IpNet]>,
    /// The rules of its chain; `None`: there is no chain.
    pub(super) rules: Option<Arc<[Rule]>>,
    /// Whether the prefixes and the rules are those of the group.
    pub(super) is_intact: bool,
}

/// The new count of each object that changes; `None`: deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RefCountChanges {
    pub(super) chains: BTreeMap<PoolChain, Option<u32>>,
    pub(super) elements: Vec<(Element, Option<u32>)>,
    pub(super) groups: Vec<(SourceGroupId, Option<SourceGroupRefs>)>,
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

    /// The chains that the kernel contains.
    pub(crate) fn chains(&self) -> impl Iterator<Item = PoolChain> {
        self.chains.keys().copied()
    }

    /// The number of shared elements without a reference.
    pub(crate) fn unused_elements(&self) -> usize {
        self.elements.values().filter(|count| **count == 0).count()
    }

    /// The groups of source ranges that no VIP refers to.
    pub(crate) fn unused_groups(&self) -> impl Iterator<Item = SourceGroupId> {
        self.groups.iter().filter(|(_, group)| group.count == 0).map(|(id, _)| *id)
    }

    /// Records that a transaction with these changes was committed.
    pub(crate) fn commit(&mut self, changes: RefCountChanges) {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: impl IntoIterator<Item = (K, Option<V>)>) {
            for (key, refs) in changes {
                match refs {
                    Some(refs) => map.insert(key, refs),
                    None => map.remove(&key),
                };
            }
        }
        put(&mut self.chains, changes.chains);
        put(&mut self.elements, changes.elements);
        put(&mut self.groups, changes.groups);
    }
}

/// The chains that an element refers to: that of its verdict, and those that this chain jumps to.
pub(crate) fn chains(element: &Element) -> impl Iterator<Item = PoolChain> {
    element.pool().into_iter().flat_map(PoolChain::path)
}
