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

mod refs;
mod table;
#[cfg(test)]
mod tests;

use backend::{
    dataplane::EffectiveOptions,
    driver::{ServicePortUpdate, Unneeded},
};
use netlink::nft::{Chain, Rule, Set};
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::{Desired, FixedChain, PoolChain, Slots},
    element::{Element, Map},
};
pub(crate) use refs::{RefCountChanges, RefCounts};
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
    /// How many of the updates it contains.
    pub(crate) taken: usize,
}

/// The maximum size of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// No maximum.
    Unlimited,
    /// This many elements; the elements of the last service port may exceed it.
    Elements(usize),
}

/// What a transaction prepares for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepare {
    Nothing,
    /// Their pool chains, which are cheap to add while maps are empty.
    PoolChains,
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
    /// The transaction for as many of the `active` updates as the budget allows, see [`Plan::taken`]: at least one, and
    /// each completely. If some remain, unneeded objects are not deleted.
    pub(crate) fn new(
        current: &impl CurrentState,
        (updates, active): (&[ServicePortUpdate<Desired>], &[u32]),
        mut repairs: PerFamily<Repairs>,
        (budget, prepare): (Budget, Prepare),
        unneeded: Unneeded,
        effective: &EffectiveOptions,
    ) -> Self {
        let mut plan = Self::default();
        let mut tables = PerFamily::<TablePlan>::default();
        let update = |index: &u32| Some((*index, updates.get(*index as usize)?));
        for (index, update) in active.iter().filter_map(update) {
            if let Budget::Elements(budget) = budget
                && plan.taken > 0
                && tables.v4.len() + tables.v6.len() >= budget
            {
                break;
            }
            for family in IpFamily::ALL {
                tables[family].update(current, family, update, index);
            }
            plan.taken += 1;
        }
        let rest = active.get(plan.taken..).unwrap_or_default();
        if prepare == Prepare::PoolChains {
            for (_, update) in rest.iter().filter_map(update) {
                IpFamily::ALL.into_iter().for_each(|family| tables[family].prepare(family, update));
            }
        }
        let unneeded = if rest.is_empty() { unneeded } else { Unneeded::Keep };
        let PerFamily { v4, v6 } = tables;
        for (family, mut table) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
            let mut repairs = std::mem::take(&mut repairs[family]);
            if !rest.is_empty() {
                repairs.split_off_later();
            }
            table.delete_unowned(&repairs.unowned);
            let (operations, ref_changes) = table.finish(family, current.refs(family), repairs, unneeded, effective);
            plan.operations.extend(operations.into_iter().map(|operation| (family, operation)));
            plan.refs[family] = ref_changes;
        }
        plan
    }

    /// The number of objects that are written.
    pub(crate) fn writes(&self) -> usize {
        self.operations.iter().map(|(_, operation)| operation.writes()).sum()
    }
}

impl Operation {
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
