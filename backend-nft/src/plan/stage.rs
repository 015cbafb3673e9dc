//! Collects the changes of one table, and puts them into order.

use std::collections::{BTreeMap, BTreeSet};

use backend::{
    dataplane::EffectiveOptions,
    driver::{ServicePortUpdate, Unneeded},
};
use netlink::nft::Chain;
use proto::model::IpFamily;

use super::{
    Before, Elements, Operation, Owner, Refs, Repairs,
    diff::{Difference, diff},
    refs::{RefChanges, chains},
};
use crate::{
    desired::{Desired, PoolChain},
    element::{Element, Map},
};

/// How many unused chains a table keeps: a service that is rolled out returns to the sizes that it had, and for a new
/// chain the kernel walks over all elements of a map. With more, all of them are deleted at once.
const MAX_IDLE: usize = 64;

/// The changes of one table.
#[derive(Debug, Default)]
pub(super) struct Stage {
    gone: [Elements; Map::ALL.len()],
    new: [Elements; Map::ALL.len()],
    /// How many more, or fewer, elements refer to a chain.
    chains: BTreeMap<PoolChain, i64>,
    /// How many more, or fewer, service ports need a shared element, and one of them.
    shared: BTreeMap<Element, (i64, Owner)>,
    /// Chains that later transactions need.
    ahead: BTreeSet<PoolChain>,
    /// Budget for two lists of one service port after the other.
    scratch: (Vec<Element>, Vec<Element>),
}

impl Stage {
    /// Takes in elements to delete that are of no service port.
    pub(super) fn leftovers(&mut self, leftovers: &[Element]) {
        for element in leftovers {
            self.change(Difference::Gone(*element), None);
        }
    }

    /// The number of changed elements, without shared ones.
    pub(super) fn len(&self) -> usize {
        self.gone.iter().chain(&self.new).map(|elements| elements.list.len()).sum()
    }

    /// Adds the chains that a service port will need.
    pub(super) fn prepare(&mut self, family: IpFamily, update: &ServicePortUpdate<Desired>) {
        let (_, new) = &mut self.scratch;
        new.clear();
        update.desired[family].iter().for_each(|desired| desired.elements(new));
        self.ahead.extend(new.iter().flat_map(chains));
    }

    /// Takes in what one service port should have.
    pub(super) fn update(
        &mut self,
        before: &impl Before,
        family: IpFamily,
        update: &ServicePortUpdate<Desired>,
        index: u32,
    ) {
        let (mut old, mut new) = std::mem::take(&mut self.scratch);
        let desired = update.desired[family].as_ref();
        old.clear();
        new.clear();
        before.elements(family, update, &mut old);
        desired.inspect(|desired| desired.elements(&mut new));
        diff(&old, &new, |difference| self.change(difference, Some(index)));
        old.clear();
        new.clear();
        before.shared(family, update, &mut old);
        desired.inspect(|desired| desired.shared(&mut new));
        diff(&old, &new, |difference| {
            let (element, count) = match difference {
                Difference::Gone(element) => (element, -1),
                Difference::New(element) => (element, 1),
            };
            let (sum, owner) = self.shared.entry(element).or_default();
            *sum += count;
            *owner = Some(index);
        });
        self.scratch = (old, new);
    }

    fn change(&mut self, difference: Difference, owner: Owner) {
        let (list, element, count) = match difference {
            Difference::Gone(element) => (&mut self.gone, element, -1),
            Difference::New(element) => (&mut self.new, element, 1),
        };
        list[element.map as usize].push(element, owner);
        for chain in chains(&element) {
            *self.chains.entry(chain).or_default() += count;
        }
    }

    /// The operations in order, and the reference counts once they are committed.
    pub(super) fn finish(
        mut self,
        family: IpFamily,
        refs: &Refs,
        repairs: Repairs,
        unneeded: Unneeded,
        effective: &EffectiveOptions,
    ) -> (Vec<Operation>, RefChanges) {
        let mut delta = self.delta(refs, &repairs.pools, unneeded);
        let ahead = self.ahead.iter().filter(|chain| !refs.chains.contains_key(chain));
        let ahead: Vec<_> = ahead.filter(|chain| delta.chains.iter().all(|(other, _)| other != *chain)).collect();
        delta.chains.extend(ahead.into_iter().map(|chain| (*chain, Some(0))));
        let Repairs { first, mut pools, leftovers: _, foreign, rules, last } = repairs;
        let made = delta.chains.iter().filter(|(chain, count)| count.is_some() && !refs.chains.contains_key(chain));
        let made: Vec<PoolChain> = made.map(|(chain, _)| *chain).collect();
        let gone = delta.chains.iter().filter(|(_, count)| count.is_none());
        let mut gone: Vec<PoolChain> = gone.map(|(chain, _)| *chain).collect();
        // A chain is deleted before those that it jumps to.
        gone.sort_by_key(|chain| std::cmp::Reverse(chain.path().count()));
        pools.retain(|chain| !gone.contains(chain));

        let mut operations = first;
        operations.extend(made.iter().map(|chain| Operation::AddChain(Chain::regular(chain.to_string()))));
        operations.extend(pools.iter().map(|chain| Operation::FlushChain(chain.to_string())));
        for map in Map::ALL {
            let foreign: Vec<_> = foreign.iter().filter(|(of, _)| *of == map).map(|(_, key)| key.clone()).collect();
            operations.extend((!foreign.is_empty()).then_some(Operation::DeleteForeign(map, foreign)));
            let gone = std::mem::take(&mut self.gone[map as usize]);
            operations.extend((!gone.list.is_empty()).then_some(Operation::DeleteElements(map, gone)));
        }
        // Before the elements: for a rule that refers to a map the kernel walks over its elements, which takes 20 ms
        // for 100,000.
        for chain in made.into_iter().chain(pools) {
            let rules = chain.rules(family, effective).into_iter();
            operations.extend(rules.map(|rule| Operation::AddRule(chain.to_string(), rule)));
        }
        for map in Map::ALL {
            let new = std::mem::take(&mut self.new[map as usize]);
            operations.extend((!new.list.is_empty()).then_some(Operation::AddElements(map, new)));
        }
        operations.extend(rules);
        operations.extend(gone.into_iter().map(|chain| Operation::DeleteChain(chain.to_string())));
        operations.extend(last);
        (operations, delta)
    }

    /// The new reference counts. Takes in shared elements that are added and deleted. `broken`: chains with other
    /// rules.
    fn delta(&mut self, refs: &Refs, broken: &[PoolChain], unneeded: Unneeded) -> RefChanges {
        let mut delta = RefChanges::default();
        let chains = std::mem::take(&mut self.chains).into_iter();
        delta.chains = changed(&refs.chains, chains, Unneeded::Keep);
        if unneeded == Unneeded::Delete {
            delete_idle(&refs.chains, broken, &mut delta.chains);
        }
        let shared = std::mem::take(&mut self.shared);
        let counts = shared.iter().map(|(element, (count, _))| (*element, *count));
        for (element, count) in changed(&refs.elements, counts, unneeded) {
            let owner = shared.get(&element).and_then(|(_, owner)| *owner);
            match (refs.elements.contains_key(&element), count) {
                (false, Some(_)) => self.change(Difference::New(element), owner),
                (true, None) => self.change(Difference::Gone(element), owner),
                _ => {}
            }
            delta.elements.push((element, count));
        }
        delta
    }
}

/// Deletes unused chains: those with wrong rules, and all of them when there are too many.
fn delete_idle(before: &BTreeMap<PoolChain, u32>, broken: &[PoolChain], changes: &mut Vec<(PoolChain, Option<u32>)>) {
    let mut counts: BTreeMap<PoolChain, u32> = before.clone();
    counts.extend(changes.iter().map(|(chain, count)| (*chain, count.unwrap_or(0))));
    counts.retain(|_, count| *count == 0);
    if counts.len() <= MAX_IDLE {
        counts.retain(|chain, _| chain.path().any(|behind| broken.contains(&behind)));
    }
    changes.retain(|(chain, _)| !counts.contains_key(chain));
    changes.extend(counts.into_keys().filter(|chain| before.contains_key(chain)).map(|chain| (chain, None)));
}

/// The new reference counts; `None`: to be deleted.
fn changed<K: Copy + Ord>(
    counts: &BTreeMap<K, u32>,
    changes: impl Iterator<Item = (K, i64)>,
    unneeded: Unneeded,
) -> Vec<(K, Option<u32>)> {
    let mut changes: BTreeMap<K, i64> = changes.collect();
    if unneeded == Unneeded::Delete {
        for (key, _) in counts.iter().filter(|(_, count)| **count == 0) {
            changes.entry(*key).or_default();
        }
    }
    let after = changes.into_iter().filter_map(|(key, change)| {
        let before = counts.get(&key).copied();
        let count = u32::try_from(i64::from(before.unwrap_or(0)) + change).unwrap_or(0);
        match (before, count, unneeded) {
            (None, 0, _) => None,
            (Some(_), 0, Unneeded::Delete) => Some((key, None)),
            (before, count, _) => (before != Some(count)).then_some((key, Some(count))),
        }
    });
    after.collect()
}
