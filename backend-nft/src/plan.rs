//! Plans the transaction that changes what the kernel contains into what it should contain. Pure.
//!
//! ```text
//!   AppliedState (what the kernel contains)          ──┐
//!   PlannedUpdates (the desired service ports)       ──┼──▶ Plan: operations in a safe order
//!   Repairs (of the base ruleset)                    ──┘
//! ```
//!
//! The order: add tables, chains, maps; delete elements; add rules of pool chains and source groups; add elements; add
//! other rules and base chains; delete chains, maps. So no rule or element refers to an object that does not exist.

mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use backend::{
    dataplane::EffectiveOptions,
    driver::{Change, Unneeded},
};
use proto::model::{IpFamily, PerFamily};

use crate::{
    applied::AppliedState,
    desired::{Desired, Update},
    edits::{Edits, GroupEdits, PlannedUpdate},
    element::Element,
    operation::{Operation, Repairs},
    refs::RefCountChanges,
};
use table::TablePlan;

/// A transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) operations: Vec<(IpFamily, Operation)>,
    /// The reference counts after the commit.
    pub(crate) refs: PerFamily<RefCountChanges>,
    /// The changes of each service port that it changes only in part, by the index of the update.
    pub(crate) partial: BTreeMap<u32, PerFamily<Edits>>,
    /// The elements that belong to no service port and that it removes, if it is the last one of a reconcile.
    pub(crate) last: Option<PerFamily<Vec<Element>>>,
}

// === impl Plan ===

impl Plan {
    /// The transaction for as much of the updates as the budget of the change allows, or a few elements more: some
    /// changes have to be in one transaction. Leaves in the updates what remains. `repairs`: those of the base ruleset,
    /// and the elements that belong to no service port. `may_finish`: if it completes the updates, it is the last one
    /// of a reconcile, and deletes what is unneeded.
    pub(crate) fn new(
        current: &AppliedState,
        change: &Change<'_>,
        updates: &mut [PlannedUpdate],
        mut repairs: PerFamily<Repairs>,
        may_finish: bool,
        effective: &EffectiveOptions,
    ) -> Self {
        let mut unneeded = if current.is_reconciling { Unneeded::Keep } else { Unneeded::Delete };
        let mut plan = Self::default();
        let mut tables = PerFamily::<TablePlan>::default();
        let unowned: usize = repairs.iter().map(|(_, repairs)| repairs.unowned.len()).sum();
        let mut left = change.budget.saturating_sub(unowned);
        for (index, planned) in (0..).zip(updates) {
            let (mut edits, is_complete) = planned.take(current, &tables, &mut left);
            if !is_complete {
                plan.partial.insert(index, edits.clone());
            }
            for family in IpFamily::ALL {
                let group = planned.update.desired[family].as_deref().and_then(Desired::sources);
                tables[family].needed_groups.extend(group.map(|group| group.id));
                tables[family].update(std::mem::take(&mut edits[family]), index);
            }
        }
        if may_finish && plan.partial.is_empty() {
            unneeded = Unneeded::Delete;
            plan.last = Some(PerFamily::from_fn(|family| {
                let (unowned, last) = current.last_repairs(family, change, left);
                left -= unowned.len();
                repairs[family].unowned.extend(&unowned);
                repairs[family].last.extend_from_slice(last);
                unowned
            }));
        }
        for (family, mut table) in tables {
            let repairs = std::mem::take(&mut repairs[family]);
            table.needed_groups.extend(current.needed_groups(family));
            let (operations, ref_changes) = table.finish(family, current, repairs, unneeded, &mut left, effective);
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

// === impl PlannedUpdate ===

impl PlannedUpdate {
    pub(crate) fn new(current: &AppliedState, update: Update) -> Self {
        let (sizes, edits) = PerFamily::from_fn(|family| Edits::new(current, family, &update)).unzip();
        Self { update, edits, remaining: None, size: sizes.v4 + sizes.v6 }
    }

    /// Takes as many changes as are left in the transaction, and whether these are all of them. `tables`: what the
    /// transaction contains already.
    fn take(
        &mut self,
        current: &AppliedState,
        tables: &PerFamily<TablePlan>,
        left: &mut usize,
    ) -> (PerFamily<Edits>, bool) {
        let update = &self.update;
        let mut edits = PerFamily::from_fn(|family| {
            let edits = match (self.edits[family].take(), &self.remaining) {
                (None, None) => Edits::between(Vec::new(), Vec::new(), update.desired[family].as_deref(), None),
                (edits, _) => *edits.unwrap_or_default(),
            };
            // Another transaction may have changed the group.
            Edits { group: GroupEdits::of(&current.refs[family], family, update), ..edits }
        });
        for family in IpFamily::ALL {
            // Another service port of the transaction may complete its group of source ranges.
            edits[family].group.take_if(|edits| tables[family].completes(edits.group.id));
        }
        let writes = |edits: &PerFamily<Edits>, family| edits[family].writes(&current.refs[family]);
        if self.remaining.is_none() {
            let both = writes(&edits, IpFamily::V4) + writes(&edits, IpFamily::V6);
            if both <= *left {
                *left -= both;
                return (edits, true);
            }
        }
        let mut remaining = self.remaining.take().unwrap_or_default();
        let mut is_complete = true;
        for family in IpFamily::ALL {
            let (rest, group) = std::mem::take(&mut edits[family]).into_remaining();
            if rest.len() > 0 {
                remaining[family] = rest;
            }
            let needs_group = group.is_some();
            edits[family] = remaining[family].take(group, *left);
            *left = left.saturating_sub(writes(&edits, family));
            let has_group = !needs_group || edits[family].group.as_ref().is_some_and(|group| group.is_complete);
            is_complete &= has_group && remaining[family].len() == 0;
        }
        self.size = remaining.v4.len() + remaining.v6.len();
        self.remaining = (!is_complete).then_some(remaining);
        (edits, is_complete)
    }
}

// === impl Edits ===

impl Edits {
    /// The number of elements that the changes write, and the changes. `None`: the table has nothing of the service
    /// port, so that they can be counted, without memory for all of a cold start.
    fn new(current: &AppliedState, family: IpFamily, update: &Update) -> (usize, Option<Box<Self>>) {
        let (mut old, mut old_shared, refs) = (Vec::new(), Vec::new(), &current.refs[family]);
        current.elements(family, update, &mut old);
        current.shared(family, update, &mut old_shared);
        let (desired, group) = (update.desired[family].as_deref(), GroupEdits::of(refs, family, update));
        if !old.is_empty() || !old_shared.is_empty() {
            let edits = Self::between(old, old_shared, desired, group);
            return (edits.writes(refs), Some(Box::new(edits)));
        }
        let Some(desired) = desired else { return (0, None) };
        desired.shared(&mut old_shared);
        let shared = old_shared.iter().filter(|element| !refs.elements.contains(element)).count();
        (group.map_or(0, |group| group.len()) + desired.len() + shared, None)
    }
}
