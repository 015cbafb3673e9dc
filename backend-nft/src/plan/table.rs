//! Collects the changes of one table, and orders them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use backend::{dataplane::EffectiveOptions, driver::Unneeded};
use ipnet::IpNet;
use netlink::nft::{Chain, Rule};
use proto::model::IpFamily;

use crate::{
    applied::AppliedState,
    desired::SourceGroup,
    edits::{Edits, GroupEdits},
    element::{Element, Map, PoolChain, SourceGroupId},
    operation::{Elements, Operation, Owner, Repairs},
    refs::{Counts, RefCountChanges, RefCounts, SourceGroupRefs, chains},
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
    /// The changes of groups that service ports need, and one of them.
    group_edits: BTreeMap<SourceGroupId, (GroupEdits, Owner)>,
    /// The groups that service ports need, and that are not deleted, although a VIP may not refer to them yet.
    pub(super) needed_groups: BTreeSet<SourceGroupId>,
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
    /// Whether the changes that were added complete a group of source ranges.
    pub(super) fn completes(&self, group: SourceGroupId) -> bool {
        self.group_edits.get(&group).is_some_and(|(edits, _)| edits.is_complete)
    }

    /// Adds the changes of one service port.
    pub(super) fn update(&mut self, edits: Edits, index: u32) {
        let Edits { removed, added, unshared, shared, group } = edits;
        removed.into_iter().for_each(|element| self.remove(element, Some(index)));
        added.into_iter().for_each(|element| self.add(element, Some(index)));
        if let Some(group) = group {
            self.group_edits.entry(group.group.id).or_insert((group, Some(index)));
        }
        let unshared = unshared.into_iter().map(|element| (element, -1));
        for (element, change) in unshared.chain(shared.into_iter().map(|element| (element, 1))) {
            let (sum, owner) = self.shared.entry(element).or_default();
            *sum += change;
            *owner = Some(index);
        }
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

    /// The operations in order, and the reference counts after their commit. `left`: the number of unneeded elements
    /// that may be deleted, which is reduced.
    pub(super) fn finish(
        mut self,
        family: IpFamily,
        current: &AppliedState,
        repairs: Repairs,
        unneeded: Unneeded,
        left: &mut usize,
        effective: &EffectiveOptions,
    ) -> (Vec<Operation>, RefCountChanges) {
        let Repairs { first, mut pools, unowned, foreign, rules, last } = repairs;
        unowned.into_iter().for_each(|element| self.remove(element, None));
        let refs = &current.refs[family];
        let mut ref_changes = self.count_refs(refs, &pools, unneeded, left);
        let group_chains = self.plan_groups(family, refs, &mut ref_changes, unneeded, left);
        let is_new = |chain: &PoolChain| !refs.chains.contains(chain);
        for chain in current.prepared[family].iter().copied().filter(is_new) {
            ref_changes.chains.entry(chain).or_insert(Some(0));
        }
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
        left: &mut usize,
    ) -> GroupChains {
        let mut chains = GroupChains::default();
        let mut changes = std::mem::take(&mut self.groups);
        let edits = std::mem::take(&mut self.group_edits);
        for id in edits.keys() {
            changes.entry(*id).or_default();
        }
        if unneeded == Unneeded::Delete {
            for id in refs.unused_groups() {
                changes.entry(id).or_default();
            }
        }
        for (id, change) in changes {
            let before = refs.groups.get(&id);
            let old = before.cloned().unwrap_or_default();
            let count = u32::try_from(i64::from(old.count) + change).unwrap_or(0);
            let mut new = SourceGroupRefs { count, ..old.clone() };
            if let Some((edits, owner)) = edits.get(&id) {
                edits.removed.iter().for_each(|prefix| self.remove(id.element(prefix), None));
                edits.added.iter().for_each(|prefix| self.add(id.element(prefix), *owner));
                let removed: BTreeSet<&IpNet> = edits.removed.iter().collect();
                let kept = old.prefixes.iter().filter(|prefix| !removed.contains(prefix));
                let prefixes: BTreeSet<IpNet> = kept.chain(&edits.added).copied().collect();
                new.prefixes = prefixes.into_iter().collect();
                new.rules = Some(chains.repair(&edits.group, family, old.rules.as_deref()));
                new.is_intact = edits.is_complete;
            } else if count == 0 && unneeded == Unneeded::Delete && !self.needed_groups.contains(&id) {
                // The chain first, so that no packet is matched with a part of the group.
                let (deleted, rest) = old.prefixes.split_at(old.prefixes.len().min(*left));
                *left -= deleted.len();
                deleted.iter().for_each(|prefix| self.remove(id.element(prefix), None));
                chains.deleted.extend(old.rules.as_ref().map(|_| Operation::DeleteChain(id.to_string())));
                if rest.is_empty() {
                    ref_changes.groups.extend(before.map(|_| (id, None)));
                    continue;
                }
                new = SourceGroupRefs { prefixes: rest.into(), ..SourceGroupRefs::default() };
            }
            if before != Some(&new) {
                ref_changes.groups.push((id, Some(new)));
            }
        }
        chains
    }

    /// The changes of the reference counts. Adds the changes of shared elements. `broken`: chains with wrong rules.
    fn count_refs(
        &mut self,
        refs: &RefCounts,
        broken: &[PoolChain],
        unneeded: Unneeded,
        left: &mut usize,
    ) -> RefCountChanges {
        let mut ref_changes = RefCountChanges::default();
        let chains = std::mem::take(&mut self.chains).into_iter();
        ref_changes.chains = changed(&refs.chains, chains, Unneeded::Keep, 0).collect();
        if unneeded == Unneeded::Delete {
            delete_unused(&refs.chains, broken, &mut ref_changes.chains);
        }
        let shared = std::mem::take(&mut self.shared);
        let counts = shared.iter().map(|(element, (count, _))| (*element, *count));
        for (element, count) in changed(&refs.elements, counts, unneeded, *left) {
            let owner = shared.get(&element).and_then(|(_, owner)| *owner);
            match (refs.elements.contains(&element), count) {
                (false, Some(_)) => self.add(element, owner),
                (true, None) => {
                    // The removals of service ports are counted already.
                    *left = left.saturating_sub(usize::from(!shared.contains_key(&element)));
                    self.remove(element, owner);
                }
                _ => {}
            }
            ref_changes.elements.push((element, count));
        }
        ref_changes
    }
}

/// Deletes unused chains: those with wrong rules, and all of them if there are more than [`MAX_UNUSED`].
fn delete_unused(before: &Counts<PoolChain>, broken: &[PoolChain], changes: &mut BTreeMap<PoolChain, Option<u32>>) {
    let mut unused: BTreeSet<PoolChain> = before.unused().clone();
    for (chain, count) in &*changes {
        if count.unwrap_or(0) == 0 {
            unused.insert(*chain);
        } else {
            unused.remove(chain);
        }
    }
    if unused.len() <= MAX_UNUSED {
        unused.retain(|chain| chain.path().any(|next| broken.contains(&next)));
    }
    changes.retain(|chain, _| !unused.contains(chain));
    changes.extend(unused.into_iter().filter(|chain| before.contains(chain)).map(|chain| (chain, None)));
}

/// The new reference counts; `None`: to be deleted. Of those that were 0 before, at most `limit` are deleted.
fn changed<K: Copy + Ord>(
    counts: &Counts<K>,
    changes: impl Iterator<Item = (K, i64)>,
    unneeded: Unneeded,
    limit: usize,
) -> impl Iterator<Item = (K, Option<u32>)> {
    let mut changes: BTreeMap<K, i64> = changes.collect();
    if unneeded == Unneeded::Delete {
        let unused = counts.unused().iter().filter(|key| !changes.contains_key(*key));
        let unused: Vec<K> = unused.take(limit).copied().collect();
        changes.extend(unused.into_iter().map(|key| (key, 0)));
    }
    changes.into_iter().filter_map(move |(key, change)| {
        let before = counts.get(&key);
        let count = u32::try_from(i64::from(before.unwrap_or(0)) + change).unwrap_or(0);
        match (before, count, unneeded) {
            (None, 0, _) => None,
            (Some(_), 0, Unneeded::Delete) => Some((key, None)),
            (before, count, _) => (before != Some(count)).then_some((key, Some(count))),
        }
    })
}
