//! Plans the transaction that changes what the kernel contains into what it should contain. Pure.
//!
//! ```text
//!   CurrentState (applied or observed)               ──┐
//!   ServicePortUpdates (the desired service ports)   ──┼──▶ Plan: operations in a safe order
//!   Repairs (of the base ruleset)                    ──┘
//! ```
//!
//! The order: add tables, chains, maps; delete elements; add rules of pool chains and source groups; add elements; add
//! other rules and base chains; delete chains, maps. So no rule or element refers to an object that does not exist.

mod edits;
mod refs;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use backend::{
    dataplane::EffectiveOptions,
    driver::{ServicePortUpdate, Unneeded},
};
use netlink::nft::{Chain, Rule, Set};
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::{Desired, FixedChain, PoolChain, Slots, SourceGroupId},
    element::{Element, Map},
};
use edits::Edits;
pub(crate) use edits::{PartialServicePort, removal_order};
pub(crate) use refs::{RefCountChanges, RefCounts, chains};
use table::TablePlan;

/// One step of a transaction, in one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    DeleteTable,
    /// Creates the table, or clears its dormant flag.
    AddTable,
    AddChain(Chain),
    AddSet(Set),
    /// Deletes the rules of the chain.
    FlushChain(String),
    DeleteElements(Map, Elements),
    /// Deletes elements that Fairlead never writes, by their keys.
    DeleteForeign(Map, Vec<Box<[u8]>>),
    AddElements(Map, Elements),
    AddRule(String, Rule),
    DeleteChain(String),
    DeleteSet(String),
}

/// Elements, and the service ports that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) list: Vec<Element>,
    /// The index at which the elements of each update start; sorted.
    owners: Vec<(u32, Owner)>,
}

/// The index of an update; `None`: several service ports, or none.
pub(crate) type Owner = Option<u32>;

/// What the kernel contains: the applied or the observed state.
pub(crate) trait CurrentState {
    /// Appends the elements of the service port that are not shared, sorted.
    fn elements(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>);
    /// Appends the shared elements that the service port needs, if known, sorted.
    fn shared(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>);
    /// The reference counts of shared objects.
    fn refs(&self, family: IpFamily) -> &RefCounts;
    /// The groups of source ranges that service ports need which are programmed in part.
    fn needed_groups(&self, family: IpFamily) -> impl Iterator<Item = SourceGroupId>;
    /// The slots of the endpoints of the service port, if known.
    fn slots(&self, family: IpFamily, update: &ServicePortUpdate<Desired>) -> Slots;

    /// Leaves the endpoints of an update in the slots that they have.
    fn keep_slots(&self, update: &mut ServicePortUpdate<Desired>) {
        for family in IpFamily::ALL {
            let slots = self.slots(family, update);
            update.desired[family].iter_mut().for_each(|desired| desired.keep_slots(&slots));
        }
    }
}

/// The repairs of the objects of a table that belong to no service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Repairs {
    /// Before the elements: tables, chains, sets, flushed chains.
    pub(crate) first: Vec<Operation>,
    /// Pool chains with other rules.
    pub(crate) pools: Vec<PoolChain>,
    /// Elements of VIPs without a service port.
    pub(crate) unowned: Vec<Element>,
    /// Elements that Fairlead never writes.
    pub(crate) foreign: Vec<(Map, Box<[u8]>)>,
    /// After the elements: rules, base chains.
    pub(crate) rules: Vec<Operation>,
    /// For the last transaction: foreign chains are flushed, and foreign chains and sets deleted. Until then, elements
    /// of another version may refer to them.
    pub(crate) last: Vec<Operation>,
}

/// A transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<(IpFamily, Operation)>,
    /// The reference counts after the commit.
    pub(crate) refs: PerFamily<RefCountChanges>,
    /// What each service port that it changes only in part has after the commit, by the index of the update.
    pub(crate) partial: BTreeMap<u32, PerFamily<PartialServicePort>>,
}

/// What a transaction does besides the changes of service ports.
#[derive(Clone, Debug)]
pub(crate) struct PlanOptions<'a> {
    /// The repairs of the base ruleset, and the elements that belong to no service port.
    pub(crate) repairs: PerFamily<Repairs>,
    /// Pool chains that later transactions need, which are cheap to add while maps are empty.
    pub(crate) prepared: PerFamily<BTreeSet<PoolChain>>,
    pub(crate) unneeded: Unneeded,
    /// The most elements. One group of changes that has to be in one transaction may exceed it.
    pub(crate) budget: usize,
    pub(crate) effective: &'a EffectiveOptions,
}

// === impl Repairs ===

impl Repairs {
    /// Adds rules to a chain.
    pub(crate) fn add_rules(&mut self, FixedChain { chain, rules }: &FixedChain) {
        self.rules.extend(rules.iter().map(|rule| Operation::AddRule(chain.name.clone(), rule.clone())));
    }

    /// Keeps the repairs that are needed before or with the service ports; returns those for the last transaction.
    pub(crate) fn split_off_later(&mut self) -> Self {
        let (unowned, last) = (std::mem::take(&mut self.unowned), std::mem::take(&mut self.last));
        Self { unowned, last, ..Self::default() }
    }
}

// === impl Plan ===

impl Plan {
    /// The transaction for as much of the updates as the budget allows.
    pub(crate) fn new(
        current: &impl CurrentState,
        updates: &[ServicePortUpdate<Desired>],
        options: PlanOptions<'_>,
    ) -> Self {
        let PlanOptions { mut repairs, mut prepared, unneeded, budget, effective } = options;
        let mut plan = Self::default();
        let mut tables = PerFamily::<TablePlan>::default();
        let unowned: usize = repairs.iter().map(|(_, repairs)| repairs.unowned.len()).sum();
        let mut left = budget.saturating_sub(unowned);
        for (index, update) in (0..).zip(updates) {
            let mut edits = PerFamily::from_fn(|family| Edits::new(current, family, update));
            for family in IpFamily::ALL {
                // Another service port of the transaction may complete its group of source ranges.
                edits[family].group.take_if(|edits| tables[family].completes(edits.group.id));
                let group = update.desired[family].as_ref().and_then(Desired::sources);
                tables[family].need_groups(group.map(|group| group.id));
            }
            let writes = |edits: &PerFamily<Edits>, family| edits[family].writes(current.refs(family));
            let both = writes(&edits, IpFamily::V4) + writes(&edits, IpFamily::V6);
            if both > left {
                for family in IpFamily::ALL {
                    edits[family].truncate(left);
                    left = left.saturating_sub(writes(&edits, family));
                }
                let after = |family| PartialServicePort::of(current, family, update).after(&edits[family]);
                plan.partial.insert(index, PerFamily::from_fn(after));
            } else {
                left -= both;
            }
            for family in IpFamily::ALL {
                tables[family].update(std::mem::take(&mut edits[family]), index);
            }
        }
        let PerFamily { v4, v6 } = tables;
        for (family, mut table) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
            let repairs = std::mem::take(&mut repairs[family]);
            table.prepare(std::mem::take(&mut prepared[family]));
            table.need_groups(current.needed_groups(family));
            table.delete_unowned(&repairs.unowned);
            let refs = current.refs(family);
            let (operations, ref_changes) = table.finish(family, refs, repairs, unneeded, &mut left, effective);
            plan.operations.extend(operations.into_iter().map(|operation| (family, operation)));
            plan.refs[family] = ref_changes;
        }
        plan
    }

    /// How many elements programming a service port would change.
    pub(crate) fn size(current: &impl CurrentState, update: &ServicePortUpdate<Desired>) -> usize {
        let writes = |family| Edits::new(current, family, update).writes(current.refs(family));
        IpFamily::ALL.into_iter().map(writes).sum()
    }

    /// The number of objects that are written.
    pub(crate) fn writes(&self) -> usize {
        self.operations.iter().map(|(_, operation)| operation.writes()).sum()
    }
}

impl Operation {
    /// The number of elements that are written.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Self::DeleteElements(..) | Self::AddElements(..) | Self::DeleteForeign(..) => self.writes(),
            _ => 0,
        }
    }

    /// The number of objects that are written.
    pub(crate) fn writes(&self) -> usize {
        match self {
            Self::DeleteElements(_, elements) | Self::AddElements(_, elements) => elements.list.len(),
            Self::DeleteForeign(_, keys) => keys.len(),
            _ => 1,
        }
    }
}

// === impl Elements ===

impl Elements {
    /// Appends an element.
    pub(crate) fn push(&mut self, element: Element, owner: Owner) {
        if self.owners.last().is_none_or(|(_, last)| *last != owner) {
            self.owners.push((self.list.len() as u32, owner));
        }
        self.list.push(element);
    }

    /// The owner of the element at this index.
    pub(crate) fn owner(&self, index: usize) -> Owner {
        let end = self.owners.partition_point(|(start, _)| *start as usize <= index);
        end.checked_sub(1).and_then(|at| self.owners[at].1)
    }
}
