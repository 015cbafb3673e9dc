//! From what the kernel holds and what it should hold to a transaction, pure.
//!
//! ```text
//!   Before (what was programmed, or what was found) ──┐
//!   Edits  (what each service port is to have)      ──┼──▶ Plan: operations in a safe order
//!   Repairs (the fixed part)                        ──┘
//! ```
//!
//! The order: tables, chains, maps, elements gone, rules of pool chains, elements new, other rules, base chains, chains gone, maps
//! gone. So nothing leads to what is not there yet or not there any more.

mod diff;
mod refs;
mod stage;
#[cfg(test)]
mod tests;

use backend::dataplane::EffectiveOptions;
use netlink::nft::{Chain, Rule, Set};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Desired, PoolChain},
    element::{Element, Map},
};
pub(crate) use refs::{Delta, Refs};
use stage::Stage;

/// One step of a transaction, in one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    DeleteTable,
    /// Creates it, or wakes it up.
    AddTable,
    AddChain(Chain),
    AddSet(Set),
    /// Deletes the chain's rules.
    FlushChain(String),
    DeleteElements(Map, Elements),
    /// Deletes elements that we would not have written, by their keys.
    DeleteForeign(Map, Vec<Box<[u8]>>),
    AddElements(Map, Elements),
    AddRule(String, Rule),
    DeleteChain(String),
    DeleteSet(String),
}

/// Elements, and on whose behalf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    pub(crate) list: Vec<Element>,
    /// Where in the list those of an edit start; sorted.
    owners: Vec<(u32, Owner)>,
}

/// The index of an edit; `None` for what belongs to no single service port.
pub(crate) type Owner = Option<u32>;

/// What one service port is to have.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) key: ServicePortKey,
    pub(crate) desired: PerFamily<Option<Desired>>,
}

/// What the kernel holds.
pub(crate) trait Before {
    /// Appends the elements of what the edit is about, sorted, but those that are shared.
    fn elements(&self, family: IpFamily, edit: &Edit, to: &mut Vec<Element>);
    /// Appends the shared elements that it is known to need, sorted.
    fn shared(&self, family: IpFamily, edit: &Edit, to: &mut Vec<Element>);
    /// What is shared by service ports.
    fn refs(&self, family: IpFamily) -> &Refs;
}

/// What is wrong with the parts of a table that belong to no service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Repairs {
    /// Before the elements: tables, chains, sets, flushed chains.
    pub(crate) first: Vec<Operation>,
    /// Pool chains that are there with other rules.
    pub(crate) pools: Vec<PoolChain>,
    /// Elements that no service port claims.
    pub(crate) leftovers: Vec<Element>,
    /// Elements that nobody of ours has written.
    pub(crate) foreign: Vec<(Map, Box<[u8]>)>,
    /// Behind the elements: rules, base chains.
    pub(crate) rules: Vec<Operation>,
    /// Chains and sets of others.
    pub(crate) last: Vec<Operation>,
}

/// What to do with chains and shared elements that nobody needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    Delete,
    /// Another part of the same work may need them.
    Keep,
}

/// A transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<(IpFamily, Operation)>,
    /// What is shared when it is in force.
    pub(crate) refs: PerFamily<Delta>,
    /// How many of the edits are in it.
    pub(crate) taken: usize,
}

/// How much a transaction may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Everything.
    Enough,
    /// So many elements, and the rest of the service port that fills it up.
    Elements(usize),
}

/// What of later transactions is in this one already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    Nothing,
    /// Their chains: made while maps are empty, they cost nothing.
    Chains,
}

// === impl Repairs ===

impl Repairs {
    /// Leaves what is to be done before or with the service ports; returns what can wait until nobody needs it.
    pub(crate) fn split_off_later(&mut self) -> Self {
        let (leftovers, last) = (std::mem::take(&mut self.leftovers), std::mem::take(&mut self.last));
        Self { leftovers, last, ..Self::default() }
    }
}

// === impl Plan ===

impl Plan {
    /// The transaction that leads from `before` to what the `active` ones of the edits want.
    pub(crate) fn new(
        before: &impl Before,
        (edits, active): (&[Edit], &[u32]),
        repairs: PerFamily<Repairs>,
        sweep: Sweep,
        effective: &EffectiveOptions,
    ) -> Self {
        Self::fill(before, (edits, active), repairs, (Room::Enough, Ahead::Nothing), sweep, effective)
    }

    /// The same for as many of the `active` as there is room for, see [`Plan::taken`]: at least one, and each as a whole. While some
    /// are left, nothing that nobody needs goes yet.
    pub(crate) fn fill(
        before: &impl Before,
        (edits, active): (&[Edit], &[u32]),
        mut repairs: PerFamily<Repairs>,
        (room, ahead): (Room, Ahead),
        sweep: Sweep,
        effective: &EffectiveOptions,
    ) -> Self {
        let mut plan = Self::default();
        let mut stages = PerFamily::<Stage>::default();
        let edit = |index: &u32| Some((*index, edits.get(*index as usize)?));
        for (index, edit) in active.iter().filter_map(edit) {
            if let Room::Elements(room) = room
                && plan.taken > 0
                && stages.v4.len() + stages.v6.len() >= room
            {
                break;
            }
            for family in IpFamily::ALL {
                stages[family].edit(before, family, edit, index);
            }
            plan.taken += 1;
        }
        let rest = active.get(plan.taken..).unwrap_or_default();
        if ahead == Ahead::Chains {
            for (_, edit) in rest.iter().filter_map(edit) {
                IpFamily::ALL.into_iter().for_each(|family| stages[family].prepare(family, edit));
            }
        }
        let sweep = if rest.is_empty() { sweep } else { Sweep::Keep };
        let PerFamily { v4, v6 } = stages;
        for (family, mut stage) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
            let mut repairs = std::mem::take(&mut repairs[family]);
            if !rest.is_empty() {
                repairs.split_off_later();
            }
            stage.leftovers(&repairs.leftovers);
            let (operations, delta) = stage.finish(family, before.refs(family), repairs, sweep, effective);
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

    /// On whose behalf the element of this index is here.
    pub(crate) fn owner(&self, index: usize) -> Owner {
        let behind = self.owners.partition_point(|(start, _)| *start as usize <= index);
        behind.checked_sub(1).and_then(|at| self.owners[at].1)
    }
}
