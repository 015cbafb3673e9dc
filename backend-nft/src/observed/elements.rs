//! The elements of VIPs that are not programmed since the kernel was read, and which of them need attention: an index
//! that follows each change, so that no transaction visits elements that it does not write.

use std::collections::{BTreeMap, BTreeSet};

use backend::dataplane::{Vip, VipOwnership};
use proto::model::{IpFamily, ServicePortKey};

use crate::{
    desired::{pool_key, vip_of_key},
    element::{Element, ElementData, Verdict},
};

/// The elements of one table.
#[derive(Clone, Debug)]
pub(crate) struct ObservedElements {
    family: IpFamily,
    /// The elements of each VIP or pool key, sorted; at least one.
    by_key: BTreeMap<Vip, Vec<Element>>,
    /// The keys without a service port that have elements of each rank.
    unowned: [BTreeSet<Vip>; REMOVAL_RANKS],
    /// The keys of a service port with elements that Fairlead never writes.
    foreign: BTreeSet<Vip>,
    /// The aliases that lead to each pool key.
    aliases: BTreeMap<Vip, BTreeSet<Vip>>,
    /// The aliases without a service port that lead to the pool of a service port.
    stale: BTreeSet<Vip>,
    /// The aliases of a service port that lead to the pool of another service port.
    crossing: BTreeSet<Vip>,
}

/// Why the elements of a key need attention.
#[derive(Clone, Copy, Debug, Default)]
struct Attention {
    /// Whether it has elements of each rank, and no service port.
    unowned: [bool; REMOVAL_RANKS],
    is_foreign: bool,
    is_stale: bool,
    is_crossing: bool,
}

const FOREIGN: ElementData = ElementData::Verdict(Verdict::Foreign);

const REMOVAL_RANKS: usize = 3;

// === impl ObservedElements ===

impl ObservedElements {
    /// These elements, which are sorted.
    pub(crate) fn new(family: IpFamily, elements: impl IntoIterator<Item = Element>, ownership: &VipOwnership) -> Self {
        let mut observed = Self {
            family,
            by_key: BTreeMap::new(),
            unowned: Default::default(),
            foreign: BTreeSet::new(),
            aliases: BTreeMap::new(),
            stale: BTreeSet::new(),
            crossing: BTreeSet::new(),
        };
        let mut by_key: BTreeMap<Vip, Vec<Element>> = BTreeMap::new();
        for element in elements {
            by_key.entry(element.vip).or_default().push(element);
        }
        for (key, elements) in by_key {
            observed.insert(key, elements, ownership);
        }
        observed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The elements of a VIP or a pool key, sorted.
    pub(crate) fn get(&self, key: &Vip) -> &[Element] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// Records that elements were removed from the kernel.
    pub(crate) fn remove_elements(&mut self, removed: &[Element], ownership: &VipOwnership) {
        let mut by_key: BTreeMap<Vip, BTreeSet<&Element>> = BTreeMap::new();
        for element in removed {
            by_key.entry(element.vip).or_default().insert(element);
        }
        for (key, removed) in by_key {
            let mut elements = self.take(&key);
            elements.retain(|element| !removed.contains(element));
            if !elements.is_empty() {
                self.insert(key, elements, ownership);
            }
        }
    }

    /// Records that a VIP has got another owner.
    pub(crate) fn owner_changed(&mut self, vip: &Vip, ownership: &VipOwnership) {
        if self.by_key.is_empty() {
            return;
        }
        for key in [*vip, pool_key(vip, self.family)] {
            self.classify(&key, ownership);
            let aliases: Vec<Vip> = self.aliases.get(&key).into_iter().flatten().copied().collect();
            for alias in &aliases {
                self.classify(alias, ownership);
            }
        }
    }

    /// Whether any element belongs to no service port, or has data that Fairlead never writes.
    pub(crate) fn has_unneeded(&self) -> bool {
        self.unowned.iter().any(|keys| !keys.is_empty()) || !self.foreign.is_empty()
    }

    /// At most `limit` of the unneeded elements, and whether these are all of them: elements that another version of
    /// Fairlead or another process has left at a VIP whose service port is not programmed, and elements that belong to
    /// no service port, first the elements that lead to others.
    pub(crate) fn unneeded(
        &self,
        ownership: &VipOwnership,
        is_programmed: impl Fn(&ServicePortKey) -> bool,
        limit: usize,
    ) -> (Vec<Element>, bool) {
        let is_rejected = |key: &&Vip| self.owner(key, ownership).is_some_and(|owner| !is_programmed(owner));
        let of_rejected = self.foreign.iter().filter(is_rejected).flat_map(|key| self.get(key));
        let foreign = of_rejected.filter(|element| element.data == FOREIGN);
        let unowned = self.unowned.iter().enumerate().flat_map(|(rank, keys)| {
            let elements = keys.iter().flat_map(|key| self.get(key));
            elements.filter(move |element| removal_rank(element) == rank)
        });

        let mut unneeded: Vec<Element> = foreign.chain(unowned).take(limit.saturating_add(1)).copied().collect();
        let is_all = unneeded.len() <= limit;
        unneeded.truncate(limit);
        (unneeded, is_all)
    }

    /// At most `limit` of the elements of VIPs without a service port that lead to the pool of a service port.
    pub(crate) fn stale(&self, limit: usize) -> Vec<Element> {
        let mut stale: Vec<Element> = self.stale.iter().flat_map(|key| self.get(key)).copied().collect();
        stale.sort_by_key(removal_rank);
        stale.truncate(limit);
        stale
    }

    /// The VIPs of pools to which aliases of other service ports lead, and these other service ports.
    pub(crate) fn crossing<'a>(
        &'a self,
        ownership: &'a VipOwnership,
    ) -> impl Iterator<Item = (Vip, &'a ServicePortKey)> {
        let pools = self.crossing.iter().flat_map(|key| self.get(key));
        pools.filter_map(move |element| {
            let ElementData::PoolKey(pool) = &element.data else { return None };
            let user = self.owner(&element.vip, ownership)?;
            let owner = self.owner(pool, ownership)?;
            (user != owner).then_some((vip_of_key(pool), user))
        })
    }

    fn owner<'a>(&self, key: &Vip, ownership: &'a VipOwnership) -> Option<&'a ServicePortKey> {
        ownership.owner(self.family, &vip_of_key(key))
    }

    /// Finds out whether the elements of a key need attention.
    fn classify(&mut self, key: &Vip, ownership: &VipOwnership) {
        let Some(elements) = self.by_key.get(key) else { return };
        let owner = self.owner(key, ownership);
        let mut attention = Attention::default();
        for element in elements {
            attention.unowned[removal_rank(element)] |= owner.is_none();
            attention.is_foreign |= owner.is_some() && element.data == FOREIGN;
            if let ElementData::PoolKey(pool) = &element.data
                && let Some(of_pool) = self.owner(pool, ownership)
            {
                attention.is_stale |= owner.is_none();
                attention.is_crossing |= owner.is_some_and(|owner| owner != of_pool);
            }
        }
        self.mark(key, attention);
    }

    /// Enters a key into the sets of keys that need attention, or removes it from them.
    fn mark(&mut self, key: &Vip, attention: Attention) {
        let Attention { unowned, is_foreign, is_stale, is_crossing } = attention;
        let others = [(&mut self.foreign, is_foreign), (&mut self.stale, is_stale), (&mut self.crossing, is_crossing)];
        for (keys, is_member) in self.unowned.iter_mut().zip(unowned).chain(others) {
            if is_member {
                keys.insert(*key);
            } else {
                keys.remove(key);
            }
        }
    }

    fn insert(&mut self, key: Vip, elements: Vec<Element>, ownership: &VipOwnership) {
        for element in &elements {
            if let ElementData::PoolKey(pool) = element.data {
                self.aliases.entry(pool).or_default().insert(key);
            }
        }
        self.by_key.insert(key, elements);
        self.classify(&key, ownership);
    }

    /// Removes a VIP or pool key, and returns its elements, because they have changed or its service port is
    /// programmed.
    pub(crate) fn take(&mut self, key: &Vip) -> Vec<Element> {
        let Some(elements) = self.by_key.remove(key) else { return Vec::new() };
        self.mark(key, Attention::default());
        for element in &elements {
            if let ElementData::PoolKey(pool) = element.data
                && let Some(aliases) = self.aliases.get_mut(&pool)
            {
                aliases.remove(key);
                if aliases.is_empty() {
                    self.aliases.remove(&pool);
                }
            }
        }
        elements
    }
}

/// Elements that no service port needs are removed in this order: first the elements that lead to others.
fn removal_rank(element: &Element) -> usize {
    match element.data {
        ElementData::Verdict(_) => 0,
        _ if !element.is_leaf() => 1,
        _ => 2,
    }
}
