//! Plans the transaction from what the kernel contains to what it should contain. Pure.
//!
//! ```text
//!   Before (the applied or the observed state)     ──┐
//!   updates (what each service port should have)   ──┼──▶ Plan: operations in a safe order
//!   Repairs (of the base ruleset)                  ──┘
//! ```
//!
//! The order: add tables, chains, maps; delete elements; add rules of pool chains; add elements; add other rules and
//! base chains; delete chains, maps. So no rule or element refers to an object that does not exist yet or any more.

mod diff;
mod refs;
mod stage;
#[cfg(test)]
mod tests;

use backend::{
    dataplane::EffectiveOptions,
    driver::{ServicePortUpdate, Unneeded},
};
use netlink::nft::{Chain, Rule, Set};
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::{Desired, PoolChain},
    element::{Element, Map},
};
pub(crate) use refs::{RefChanges, Refs};
use stage::Stage;

/// One step of a transaction, in one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    DeleteTable,
    /// Creates it, or makes it active again.
    AddTable,
    AddChain(Chain),
    AddSet(Set),
    /// Deletes the chain's rules.
    FlushChain(String),
    DeleteElements(Map, Elements),
    /// Deletes elements that we never write, by their keys.
    DeleteForeign(Map, Vec<Box<[u8]>>),
    AddElements(Map, Elements),
    AddRule(String, Rule),
    DeleteChain(String),
    DeleteSet(String),
}

/// Elements, and the service ports that they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) list: Vec<Element>,
    /// Where in the list the elements of each update start; sorted.
    owners: Vec<(u32, Owner)>,
}

/// The index of an update; `None`: several service ports, or none.
pub(crate) type Owner = Option<u32>;

/// What the kernel contains.
pub(crate) trait Before {
    /// Appends the elements of the service port that are not shared, sorted.
    fn elements(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>);
    /// Appends the shared elements that it needs, as far as known, sorted.
    fn shared(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>);
    /// The reference counts of what service ports share.
    fn refs(&self, family: IpFamily) -> &Refs;
}

/// What has to be repaired in the parts of a table that belong to no service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Repairs {
    /// Before the elements: tables, chains, sets, flushed chains.
    pub(crate) first: Vec<Operation>,
    /// Pool chains with other rules.
    pub(crate) pools: Vec<PoolChain>,
    /// Elements of VIPs without a service port.
    pub(crate) leftovers: Vec<Element>,
    /// Elements that we never write.
    pub(crate) foreign: Vec<(Map, Box<[u8]>)>,
    /// After the elements: rules, base chains.
    pub(crate) rules: Vec<Operation>,
    /// Foreign chains and sets.
    pub(crate) last: Vec<Operation>,
}

/// A transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<(IpFamily, Operation)>,
    /// The reference counts once it is committed.
    pub(crate) refs: PerFamily<RefChanges>,
    /// How many of the updates are in it.
    pub(crate) taken: usize,
}

/// The maximum size of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// No maximum.
    Unlimited,
    /// This many elements, and the other ones of the last service port.
    Elements(usize),
}

/// What a transaction contains for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    /// Their chains: they cost nothing while maps are empty.
    Chains,
}

// === impl Repairs ===

impl Repairs {
    /// Keeps what has to be done before or with the service ports; returns what can wait until the last transaction.
    pub(crate) fn split_off_later(&mut self) -> Self {
        let (leftovers, last) = (std::mem::take(&mut self.leftovers), std::mem::take(&mut self.last));
        Self { leftovers, last, ..Self::default() }
    }
}

// === impl Plan ===

impl Plan {
    /// The transaction that makes the `active` ones of the updates what they should be.
    pub(crate) fn new(
        before: &impl Before,
        (updates, active): (&[ServicePortUpdate<Desired>], &[u32]),
        repairs: PerFamily<Repairs>,
        unneeded: Unneeded,
        effective: &EffectiveOptions,
    ) -> Self {
        Self::fill(before, (updates, active), repairs, (Budget::Unlimited, Ahead::Nothing), unneeded, effective)
    }

    /// The same for as many of the `active` as the budget allows, see [`Plan::taken`]: at least one, and each
    /// completely. While some are left, nothing that is not needed is deleted.
    pub(crate) fn fill(
        before: &impl Before,
        (updates, active): (&[ServicePortUpdate<Desired>], &[u32]),
        mut repairs: PerFamily<Repairs>,
        (budget, ahead): (Budget, Ahead),
        unneeded: Unneeded,
        effective: &EffectiveOptions,
    ) -> Self {
        let mut plan = Self::default();
        let mut stages = PerFamily::<Stage>::default();
        let update = |index: &u32| Some((*index, updates.get(*index as usize)?));
        for (index, update) in active.iter().filter_map(update) {
            if let Budget::Elements(budget) = budget
                && plan.taken > 0
                && stages.v4.len() + stages.v6.len() >= budget
            {
                break;
            }
            for family in IpFamily::ALL {
                stages[family].update(before, family, update, index);
            }
            plan.taken += 1;
        }
        let rest = active.get(plan.taken..).unwrap_or_default();
        if ahead == Ahead::Chains {
            for (_, update) in rest.iter().filter_map(update) {
                IpFamily::ALL.into_iter().for_each(|family| stages[family].prepare(family, update));
            }
        }
        let unneeded = if rest.is_empty() { unneeded } else { Unneeded::Keep };
        let PerFamily { v4, v6 } = stages;
        for (family, mut stage) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
            let mut repairs = std::mem::take(&mut repairs[family]);
            if !rest.is_empty() {
                repairs.split_off_later();
            }
            stage.leftovers(&repairs.leftovers);
            let (operations, delta) = stage.finish(family, before.refs(family), repairs, unneeded, effective);
            plan.operations.extend(operations.into_iter().map(|operation| (family, operation)));
            plan.refs[family] = delta;
        }
        plan
    }

    /// How many objects it writes.
    pub(crate) fn writes(&self) -> usize {
        self.operations.iter().map(|(_, operation)| operation.writes()).sum()
    }
}

impl Operation {
    /// How many objects it writes.
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
    /// Appends one.
    pub(crate) fn push(&mut self, element: Element, owner: Owner) {
        if self.owners.last().is_none_or(|(_, last)| *last != owner) {
            self.owners.push((self.list.len() as u32, owner));
        }
        self.list.push(element);
    }

    /// The service port that the element at this index is for.
    pub(crate) fn owner(&self, index: usize) -> Owner {
        let behind = self.owners.partition_point(|(start, _)| *start as usize <= index);
        behind.checked_sub(1).and_then(|at| self.owners[at].1)
    }
}
