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

/// The maximum number of unused chains in a table; with more, all of them are deleted at once. Some stay because a pool
/// returns to its earlier sizes during a rollout, and for each new chain the kernel checks all elements of a map.
const MAX_UNUSED_CHAINS: usize = 64;

/// The changes of one table.
#[derive(Debug, Default)]
pub(super) struct TablePlan {
    removed: [Elements; Map::ALL.len()],
    added: [Elements; Map::ALL.len()],
    /// The change of the number of elements that refer to a chain.
    chains: BTreeMap<PoolChain, i64>,
    /// The change of the number of service ports that need a shared element, and one such service port.
    shared: BTreeMap<Element, (i64, Owner)>,
    /// The change of the number of VIPs that refer to a group of source ranges.
    groups: BTreeMap<SourceGroupId, i64>,
    /// The changes of groups that service ports need, and one such service port.
    group_edits: BTreeMap<SourceGroupId, (GroupEdits, Owner)>,
    /// The groups that service ports need, and that are not deleted, although a VIP may not refer to them yet.
    pub(super) needed_groups: BTreeSet<SourceGroupId>,
}

/// The changes of pool chains.
#[derive(Debug)]
struct PoolChains {
    added: Vec<PoolChain>,
    /// Chains with wrong rules.
    repaired: Vec<PoolChain>,
    /// A chain comes before the chains that it jumps to.
    deleted: Vec<PoolChain>,
}

/// The operations for the chains of groups of source ranges.
#[derive(Debug, Default)]
struct GroupChains {
    /// Before the elements: new and flushed chains.
    first: Vec<Operation>,
    rules: Vec<Operation>,
    deleted: Vec<Operation>,
}

// === impl TablePlan ===

impl TablePlan {
    /// Whether the changes that were added complete a group of source ranges.
    pub(super) fn completes(&self, group: SourceGroupId) -> bool {
        self.group_edits.get(&group).is_some_and(|(edits, _)| edits.is_complete)
    }

    /// Adds the changes of one service port.
    pub(super) fn update(&mut self, edits: Edits, index: u32) {
        let Edits { removed, added, unshared, shared, group } = edits;
        for element in removed {
            self.remove(element, Some(index));
        }
        for element in added {
            self.add(element, Some(index));
        }
        for element in unshared {
            self.count_shared(element, -1, index);
        }
        for element in shared {
            self.count_shared(element, 1, index);
        }
        if let Some(group) = group {
            self.group_edits.entry(group.group.id).or_insert((group, Some(index)));
        }
    }

    fn count_shared(&mut self, element: Element, change: i64, index: u32) {
        let (sum, owner) = self.shared.entry(element).or_default();
        *sum += change;
        *owner = Some(index);
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
        let Repairs { first, pools: broken, unowned, foreign, rules, last } = repairs;
        let refs = &current.refs[family];
        for element in unowned {
            self.remove(element, None);
        }
        let mut ref_changes = self.count_refs(refs, &broken, unneeded, left);
        let group_chains = self.plan_groups(family, refs, &mut ref_changes, unneeded, left);
        let pool_chains = PoolChains::plan(refs, &current.prepared[family], broken, &mut ref_changes);

        let mut operations = first;
        operations.extend(pool_chains.added.iter().map(|chain| Operation::AddChain(Chain::regular(chain.to_string()))));
        operations.extend(pool_chains.repaired.iter().map(|chain| Operation::FlushChain(chain.to_string())));
        operations.extend(group_chains.first);

        for map in Map::ALL {
            let keys: Vec<_> = foreign.iter().filter(|(of, _)| *of == map).map(|(_, key)| key.clone()).collect();
            if !keys.is_empty() {
                operations.push(Operation::DeleteForeign(map, keys));
            }
            let removed = std::mem::take(&mut self.removed[map as usize]);
            if !removed.list.is_empty() {
                operations.push(Operation::DeleteElements(map, removed));
            }
        }

        // Before the elements: for each rule that refers to a map, the kernel checks its elements (20 ms for 100,000).
        for chain in pool_chains.added.iter().chain(&pool_chains.repaired) {
            let rules = chain.rules(family, effective).into_iter();
            operations.extend(rules.map(|rule| Operation::AddRule(chain.to_string(), rule)));
        }
        operations.extend(group_chains.rules);

        for map in Map::ALL {
            let added = std::mem::take(&mut self.added[map as usize]);
            if !added.list.is_empty() {
                operations.push(Operation::AddElements(map, added));
            }
        }
        operations.extend(rules);

        // Foreign chains are flushed before ours are deleted, because their rules may jump to our chains. Foreign sets
        // are deleted afterwards, because rules that another process has added to our chains may use them.
        let (flushed, last): (Vec<_>, Vec<_>) =
            last.into_iter().partition(|operation| matches!(operation, Operation::FlushChain(_)));
        operations.extend(flushed);
        operations.extend(pool_chains.deleted.iter().map(|chain| Operation::DeleteChain(chain.to_string())));
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

        let mut chains = GroupChains::default();
        for (id, change) in changes {
            let before = refs.groups.get(&id);
            let old = before.cloned().unwrap_or_default();
            let count = u32::try_from(i64::from(old.count) + change).unwrap_or(0);
            let is_unneeded = count == 0 && unneeded == Unneeded::Delete && !self.needed_groups.contains(&id);

            let new = match edits.get(&id) {
                Some((edits, owner)) => {
                    let rules = chains.repair(&edits.group, family, old.rules.as_deref());
                    let prefixes = self.edit_group(edits, &old.prefixes, *owner);
                    Some(SourceGroupRefs { count, prefixes, rules: Some(rules), is_intact: edits.is_complete })
                }
                None if is_unneeded => {
                    // The chain first, so that no packet is matched with a part of the group.
                    if old.rules.is_some() {
                        chains.deleted.push(Operation::DeleteChain(id.to_string()));
                    }
                    self.delete_prefixes(id, &old.prefixes, left)
                }
                None => Some(SourceGroupRefs { count, ..old }),
            };
            if before != new.as_ref() {
                ref_changes.groups.push((id, new));
            }
        }
        chains
    }

    /// Writes the changes of a group of source ranges. Returns its prefixes after these changes.
    fn edit_group(&mut self, edits: &GroupEdits, old: &[IpNet], owner: Owner) -> Arc<[IpNet]> {
        let id = edits.group.id;
        for prefix in &edits.removed {
            self.remove(id.element(prefix), None);
        }
        for prefix in &edits.added {
            self.add(id.element(prefix), owner);
        }

        let removed: BTreeSet<&IpNet> = edits.removed.iter().collect();
        let kept = old.iter().filter(|prefix| !removed.contains(prefix));
        let prefixes: BTreeSet<IpNet> = kept.chain(&edits.added).copied().collect();
        prefixes.into_iter().collect()
    }

    /// Deletes prefixes of a group that no service port needs, as many as are left in the transaction. Returns the rest
    /// of the group; `None`: the whole group is deleted.
    fn delete_prefixes(&mut self, id: SourceGroupId, old: &[IpNet], left: &mut usize) -> Option<SourceGroupRefs> {
        let (deleted, rest) = old.split_at(old.len().min(*left));
        *left -= deleted.len();
        for prefix in deleted {
            self.remove(id.element(prefix), None);
        }
        if rest.is_empty() {
            return None;
        }
        Some(SourceGroupRefs { prefixes: rest.into(), ..SourceGroupRefs::default() })
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
                    if !shared.contains_key(&element) {
                        *left = left.saturating_sub(1);
                    }
                    self.remove(element, owner);
                }
                _ => {}
            }
            ref_changes.elements.push((element, count));
        }
        ref_changes
    }
}

// === impl PoolChains ===

impl PoolChains {
    /// `prepared`: chains that are added although no element refers to them yet; `broken`: chains with wrong rules.
    fn plan(
        refs: &RefCounts,
        prepared: &BTreeSet<PoolChain>,
        broken: Vec<PoolChain>,
        ref_changes: &mut RefCountChanges,
    ) -> Self {
        let is_new = |chain: &PoolChain| !refs.chains.contains(chain);
        for chain in prepared.iter().copied().filter(is_new) {
            ref_changes.chains.entry(chain).or_insert(Some(0));
        }

        let mut chains = Self { added: Vec::new(), repaired: broken, deleted: Vec::new() };
        for (chain, count) in &ref_changes.chains {
            if count.is_none() {
                chains.deleted.push(*chain);
            } else if is_new(chain) {
                chains.added.push(*chain);
            }
        }
        chains.deleted.sort_by_key(|chain| std::cmp::Reverse(chain.path().count()));
        chains.repaired.retain(|chain| !chains.deleted.contains(chain));
        chains
    }
}

// === impl GroupChains ===

impl GroupChains {
    /// Gives the chain of a group the rules of the group, and returns them.
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

/// Deletes unused chains with wrong rules, and all unused chains if there are more than [`MAX_UNUSED_CHAINS`].
fn delete_unused(before: &Counts<PoolChain>, broken: &[PoolChain], changes: &mut BTreeMap<PoolChain, Option<u32>>) {
    let mut unused: BTreeSet<PoolChain> = before.unused().clone();
    for (chain, count) in &*changes {
        if count.unwrap_or(0) == 0 {
            unused.insert(*chain);
        } else {
            unused.remove(chain);
        }
    }

    if unused.len() <= MAX_UNUSED_CHAINS {
        unused.retain(|chain| chain.path().any(|next| broken.contains(&next)));
    }
    changes.retain(|chain, _| !unused.contains(chain));
    changes.extend(unused.into_iter().filter(|chain| before.contains(chain)).map(|chain| (chain, None)));
}

/// The new reference counts; `None`: the object is to be deleted. Of the objects that were unused before, at most
/// `limit` are deleted.
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
