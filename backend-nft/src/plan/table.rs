//! Collects the changes of one table, and orders them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use backend::{
    dataplane::EffectiveOptions,
    driver::{ServicePortUpdate, Unneeded},
};
use ipnet::IpNet;
use netlink::nft::{Chain, Rule};
use proto::model::IpFamily;

use super::{
    CurrentState, Elements, Operation, Owner, RefCounts, Repairs,
    refs::{RefCountChanges, SourceGroupRefs, chains},
};
use crate::{
    desired::{Desired, PoolChain, SourceGroup, SourceGroupId},
    element::{Element, Map},
};

/// The maximum number of unused chains in a table; with more, all of them are deleted at once. During a rollout, a pool
/// returns to sizes that it had before, and for each new chain the kernel checks all elements of a map.
const MAX_UNUSED: usize = 64;

/// The changes of one table.
#[derive(Debug, Default)]
pub(super) struct TablePlan {
    removed: [Elements; Map::ALL.len()],
    added: [Elements; Map::ALL.len()],
    /// The change of the number of elements that refer to a chain.
    chains: BTreeMap<PoolChain, i64>,
    /// The change of the number of service ports that need a shared element, and one of them.
    shared: BTreeMap<Element, (i64, Owner)>,
    /// The change of the number of VIPs that refer to a group of source ranges.
    groups: BTreeMap<SourceGroupId, i64>,
    /// The groups that service ports need, and one of them.
    needed_groups: BTreeMap<SourceGroupId, (SourceGroup, Owner)>,
    /// The number of elements of new groups.
    new_sources: usize,
    /// Chains that later transactions need.
    prepared: BTreeSet<PoolChain>,
    /// Buffers for the old and new elements of a service port.
    scratch: (Vec<Element>, Vec<Element>),
}

/// The operations for the chains of groups of source ranges.
#[derive(Debug, Default)]
struct GroupChains {
    /// Before the elements: new and flushed chains.
    first: Vec<Operation>,
    rules: Vec<Operation>,
    deleted: Vec<Operation>,
}

impl GroupChains {
    /// Makes the rules of a chain those of its group, which it returns.
    fn repair(&mut self, group: &SourceGroup, family: IpFamily, old: Option<&[Rule]>) -> Arc<[Rule]> {
        let rules: Arc<[Rule]> = group.rules(family).into();
        let name = group.id.to_string();
        if old != Some(&*rules) {
            self.first.push(match old {
                None => Operation::AddChain(Chain::regular(&*name)),
                Some(_) => Operation::FlushChain(name.clone()),
            });
            self.rules.extend(rules.iter().map(|rule| Operation::AddRule(name.clone(), rule.clone())));
        }
        rules
    }
}

impl TablePlan {
    /// Deletes elements that belong to no service port.
    pub(super) fn delete_unowned(&mut self, unowned: &[Element]) {
        for element in unowned {
            self.remove(*element, None);
        }
    }

    /// The number of changed elements, without those for hairpin and cluster IPs.
    pub(super) fn len(&self) -> usize {
        let own: usize = self.removed.iter().chain(&self.added).map(|elements| elements.list.len()).sum();
        own + self.new_sources
    }

    /// Adds the chains that a service port needs in a later transaction.
    pub(super) fn prepare(&mut self, family: IpFamily, update: &ServicePortUpdate<Desired>) {
        let (_, new) = &mut self.scratch;
        new.clear();
        update.desired[family].iter().for_each(|desired| desired.elements(new));
        self.prepared.extend(new.iter().flat_map(chains));
    }

    /// Adds the changes of one service port.
    pub(super) fn update(
        &mut self,
        current: &impl CurrentState,
        family: IpFamily,
        update: &ServicePortUpdate<Desired>,
        index: u32,
    ) {
        let (mut old, mut new) = std::mem::take(&mut self.scratch);
        let desired = update.desired[family].as_ref();
        old.clear();
        new.clear();
        current.elements(family, update, &mut old);
        desired.inspect(|desired| desired.elements(&mut new));
        only_in(&old, &new).for_each(|removed| self.remove(removed, Some(index)));
        only_in(&new, &old).for_each(|added| self.add(added, Some(index)));
        if let Some(group) = desired.and_then(Desired::sources)
            && !self.needed_groups.contains_key(&group.id)
        {
            let is_new = !current.refs(family).groups.contains_key(&group.id);
            self.new_sources += if is_new { group.prefixes.len() } else { 0 };
            self.needed_groups.insert(group.id, (group.clone(), Some(index)));
        }
        old.clear();
        new.clear();
        current.shared(family, update, &mut old);
        desired.inspect(|desired| desired.shared(&mut new));
        let (removed, added) = (only_in(&old, &new), only_in(&new, &old));
        for (element, change) in removed.map(|element| (element, -1)).chain(added.map(|element| (element, 1))) {
            let (sum, owner) = self.shared.entry(element).or_default();
            *sum += change;
            *owner = Some(index);
        }
        self.scratch = (old, new);
    }

    fn remove(&mut self, element: Element, owner: Owner) {
        self.removed[element.map as usize].push(element, owner);
        self.count_chains(&element, -1);
    }

    fn add(&mut self, element: Element, owner: Owner) {
        self.added[element.map as usize].push(element, owner);
        self.count_chains(&element, 1);
    }

    fn count_chains(&mut self, element: &Element, change: i64) {
        for chain in chains(element) {
            *self.chains.entry(chain).or_default() += change;
        }
        if let Some(group) = element.source_group() {
            *self.groups.entry(group).or_default() += change;
        }
    }

    /// The operations in order, and the reference counts after their commit.
    pub(super) fn finish(
        mut self,
        family: IpFamily,
        refs: &RefCounts,
        repairs: Repairs,
        unneeded: Unneeded,
        effective: &EffectiveOptions,
    ) -> (Vec<Operation>, RefCountChanges) {
        let mut ref_changes = self.count_refs(refs, &repairs.pools, unneeded);
        let group_chains = self.plan_groups(family, refs, &mut ref_changes, unneeded);
        let is_new = |chain: &PoolChain| !refs.chains.contains_key(chain);
        for chain in std::mem::take(&mut self.prepared).into_iter().filter(is_new) {
            ref_changes.chains.entry(chain).or_insert(Some(0));
        }
        let Repairs { first, mut pools, unowned: _, foreign, rules, last } = repairs;
        let (kept, deleted): (Vec<_>, Vec<_>) = ref_changes.chains.iter().partition(|(_, count)| count.is_some());
        let new_chains: Vec<PoolChain> = kept.into_iter().map(|(chain, _)| *chain).filter(is_new).collect();
        let mut deleted: Vec<PoolChain> = deleted.into_iter().map(|(chain, _)| *chain).collect();
        // A chain is deleted before those that it jumps to.
        deleted.sort_by_key(|chain| std::cmp::Reverse(chain.path().count()));
        pools.retain(|chain| !deleted.contains(chain));

        let mut operations = first;
        operations.extend(new_chains.iter().map(|chain| Operation::AddChain(Chain::regular(chain.to_string()))));
        operations.extend(pools.iter().map(|chain| Operation::FlushChain(chain.to_string())));
        operations.extend(group_chains.first);
        for map in Map::ALL {
            let foreign: Vec<_> = foreign.iter().filter(|(of, _)| *of == map).map(|(_, key)| key.clone()).collect();
            operations.extend((!foreign.is_empty()).then_some(Operation::DeleteForeign(map, foreign)));
            let removed = std::mem::take(&mut self.removed[map as usize]);
            operations.extend((!removed.list.is_empty()).then_some(Operation::DeleteElements(map, removed)));
        }
        // Before the elements: for each rule that refers to a map, the kernel checks its elements (20 ms for 100,000).
        for chain in new_chains.into_iter().chain(pools) {
            let rules = chain.rules(family, effective).into_iter();
            operations.extend(rules.map(|rule| Operation::AddRule(chain.to_string(), rule)));
        }
        operations.extend(group_chains.rules);
        for map in Map::ALL {
            let added = std::mem::take(&mut self.added[map as usize]);
            operations.extend((!added.list.is_empty()).then_some(Operation::AddElements(map, added)));
        }
        operations.extend(rules);
        // Rules of foreign chains may jump to our chains; rules in our chains that another process has added may use
        // foreign sets.
        let (flushed, last): (Vec<_>, Vec<_>) =
            last.into_iter().partition(|operation| matches!(operation, Operation::FlushChain(_)));
        operations.extend(flushed);
        operations.extend(deleted.into_iter().map(|chain| Operation::DeleteChain(chain.to_string())));
        operations.extend(group_chains.deleted);
        operations.extend(last);
        (operations, ref_changes)
    }

    /// Adds, repairs and deletes groups of source ranges: their elements, and the operations for their chains.
    fn plan_groups(
        &mut self,
        family: IpFamily,
        refs: &RefCounts,
        ref_changes: &mut RefCountChanges,
        unneeded: Unneeded,
    ) -> GroupChains {
        let mut chains = GroupChains::default();
        let mut changes = std::mem::take(&mut self.groups);
        let needed = std::mem::take(&mut self.needed_groups);
        for id in needed.keys() {
            changes.entry(*id).or_default();
        }
        if unneeded == Unneeded::Delete {
            for (id, _) in refs.groups.iter().filter(|(_, group)| group.count == 0) {
                changes.entry(*id).or_default();
            }
        }
        for (id, change) in changes {
            let before = refs.groups.get(&id);
            let old = before.cloned().unwrap_or_default();
            let count = u32::try_from(i64::from(old.count) + change).unwrap_or(0);
            let mut new = SourceGroupRefs { count, ..old.clone() };
            match needed.get(&id) {
                _ if count == 0 && unneeded == Unneeded::Delete => {
                    self.change_sources(id, (&old.prefixes, None), (&[], None));
                    chains.deleted.extend(old.rules.map(|_| Operation::DeleteChain(id.to_string())));
                    ref_changes.groups.extend(before.map(|_| (id, None)));
                    continue;
                }
                // Another process may have changed what the kernel contains.
                Some((group, owner)) if count > 0 && !old.is_intact => {
                    self.change_sources(id, (&old.prefixes, None), (&group.prefixes, *owner));
                    new.prefixes = group.prefixes.clone();
                    new.rules = Some(chains.repair(group, family, old.rules.as_deref()));
                    new.is_intact = true;
                }
                _ => {}
            }
            if before != Some(&new) {
                ref_changes.groups.push((id, Some(new)));
            }
        }
        chains
    }

    /// Adds the difference between two sorted lists of prefixes.
    fn change_sources(&mut self, id: SourceGroupId, old: (&[IpNet], Owner), new: (&[IpNet], Owner)) {
        let only_in = |one: &[IpNet], other: &[IpNet]| {
            let prefixes = one.iter().filter(|prefix| other.binary_search(prefix).is_err());
            prefixes.map(|prefix| id.element(prefix)).collect::<Vec<_>>()
        };
        only_in(old.0, new.0).into_iter().for_each(|element| self.remove(element, old.1));
        only_in(new.0, old.0).into_iter().for_each(|element| self.add(element, new.1));
    }

    /// The changes of the reference counts. Adds the changes of shared elements. `broken`: chains with wrong rules.
    fn count_refs(&mut self, refs: &RefCounts, broken: &[PoolChain], unneeded: Unneeded) -> RefCountChanges {
        let mut ref_changes = RefCountChanges::default();
        let chains = std::mem::take(&mut self.chains).into_iter();
        ref_changes.chains = changed(&refs.chains, chains, Unneeded::Keep).collect();
        if unneeded == Unneeded::Delete {
            delete_unused(&refs.chains, broken, &mut ref_changes.chains);
        }
        let shared = std::mem::take(&mut self.shared);
        let counts = shared.iter().map(|(element, (count, _))| (*element, *count));
        for (element, count) in changed(&refs.elements, counts, unneeded) {
            let owner = shared.get(&element).and_then(|(_, owner)| *owner);
            match (refs.elements.contains_key(&element), count) {
                (false, Some(_)) => self.add(element, owner),
                (true, None) => self.remove(element, owner),
                _ => {}
            }
            ref_changes.elements.push((element, count));
        }
        ref_changes
    }
}

/// The elements that only the first of two sorted lists contains. An element with new data is removed and added: the
/// kernel cannot replace the data of an element.
fn only_in<'a>(one: &'a [Element], other: &'a [Element]) -> impl Iterator<Item = Element> + 'a {
    debug_assert!(one.is_sorted() && other.is_sorted());
    one.iter().copied().filter(|element| other.binary_search(element).is_err())
}

/// Deletes unused chains: those with wrong rules, and all of them if there are more than [`MAX_UNUSED`].
fn delete_unused(
    before: &BTreeMap<PoolChain, u32>,
    broken: &[PoolChain],
    changes: &mut BTreeMap<PoolChain, Option<u32>>,
) {
    let mut counts: BTreeMap<PoolChain, u32> = before.clone();
    counts.extend(changes.iter().map(|(chain, count)| (*chain, count.unwrap_or(0))));
    counts.retain(|_, count| *count == 0);
    if counts.len() <= MAX_UNUSED {
        counts.retain(|chain, _| chain.path().any(|next| broken.contains(&next)));
    }
    changes.retain(|chain, _| !counts.contains_key(chain));
    changes.extend(counts.into_keys().filter(|chain| before.contains_key(chain)).map(|chain| (chain, None)));
}

/// The new reference counts; `None`: to be deleted.
fn changed<K: Copy + Ord>(
    counts: &BTreeMap<K, u32>,
    changes: impl Iterator<Item = (K, i64)>,
    unneeded: Unneeded,
) -> impl Iterator<Item = (K, Option<u32>)> {
    let mut changes: BTreeMap<K, i64> = changes.collect();
    if unneeded == Unneeded::Delete {
        for (key, _) in counts.iter().filter(|(_, count)| **count == 0) {
            changes.entry(*key).or_default();
        }
    }
    changes.into_iter().filter_map(move |(key, change)| {
        let before = counts.get(&key).copied();
        let count = u32::try_from(i64::from(before.unwrap_or(0)) + change).unwrap_or(0);
        match (before, count, unneeded) {
            (None, 0, _) => None,
            (Some(_), 0, Unneeded::Delete) => Some((key, None)),
            (before, count, _) => (before != Some(count)).then_some((key, Some(count))),
        }
    })
}
