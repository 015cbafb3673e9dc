//! Plans the transaction that leads from the applied state to the desired state. Pure.
//!
//! ```text
//!   AppliedState (the content of the kernel)         ──┐
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
    refs::{RefCountChanges, RefCounts},
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
    /// The elements that belong to no service port and that it removes; `None`: it is not the last transaction of a
    /// reconcile.
    pub(crate) last: Option<PerFamily<Vec<Element>>>,
}

/// The changes of a service port that a transaction contains.
#[derive(Clone, Debug)]
struct TakenEdits {
    edits: PerFamily<Edits>,
    /// Whether no change of the service port is left for another transaction.
    is_complete: bool,
}

// === impl Plan ===

impl Plan {
    /// The transaction for as much of the updates as the budget of the change allows, or a few elements more, because
    /// some changes have to be in one transaction. The remaining changes stay in the updates. `repairs`: of the base
    /// ruleset, and the elements that belong to no service port. `may_finish`: if the transaction completes the
    /// updates, it is the last one of a reconcile, and deletes unneeded objects.
    pub(crate) fn new(
        current: &AppliedState,
        change: &Change<'_>,
        updates: &mut [PlannedUpdate],
        mut repairs: PerFamily<Repairs>,
        may_finish: bool,
        effective: &EffectiveOptions,
    ) -> Self {
        let mut plan = Self::default();
        let mut tables = PerFamily::<TablePlan>::default();
        let unowned: usize = repairs.iter().map(|(_, repairs)| repairs.unowned.len()).sum();
        let mut left = change.budget.saturating_sub(unowned);

        for (index, planned) in (0..).zip(updates) {
            let TakenEdits { edits, is_complete } = planned.take(current, &tables, &mut left);
            if !is_complete {
                plan.partial.insert(index, edits.clone());
            }
            for (family, edits) in edits {
                let group = planned.update.desired[family].as_deref().and_then(Desired::sources);
                tables[family].needed_groups.extend(group.map(|group| group.id));
                tables[family].update(edits, index);
            }
        }

        let mut unneeded = if current.is_reconciling { Unneeded::Keep } else { Unneeded::Delete };
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
        let mut planned = Self { update, edits: PerFamily::default(), remaining: None, size: 0 };
        for family in IpFamily::ALL {
            planned.compute_edits(family, current);
        }
        planned
    }

    /// Computes the changes in a table, and their number. If the table has nothing of the service port, they are only
    /// counted, because a cold start would need memory for the changes of all service ports.
    fn compute_edits(&mut self, family: IpFamily, current: &AppliedState) {
        let refs = &current.refs[family];
        let desired = self.update.desired[family].as_deref();
        let group = GroupEdits::of(refs, family, &self.update);
        let mut old = Vec::new();
        current.elements(family, &self.update, &mut old);
        let mut old_shared = Vec::new();
        current.shared(family, &self.update, &mut old_shared);

        if !old.is_empty() || !old_shared.is_empty() {
            let edits = Edits::between(old, old_shared, desired, group);
            self.size += edits.writes(refs);
            self.edits[family] = Some(Box::new(edits));
        } else if let Some(desired) = desired {
            let mut shared = Vec::new();
            desired.shared(&mut shared);
            let added = shared.iter().filter(|element| !refs.elements.contains(element)).count();
            self.size += group.map_or(0, |group| group.len()) + desired.len() + added;
        }
    }

    /// Takes as many changes as are left in the transaction. `tables`: the changes that it contains already.
    fn take(&mut self, current: &AppliedState, tables: &PerFamily<TablePlan>, left: &mut usize) -> TakenEdits {
        let edits = PerFamily::from_fn(|family| self.take_edits(family, current, &tables[family]));
        if self.remaining.is_none() {
            let writes = edits.v4.writes(&current.refs.v4) + edits.v6.writes(&current.refs.v6);
            if writes <= *left {
                *left -= writes;
                return TakenEdits { edits, is_complete: true };
            }
        }
        self.take_part(edits, &current.refs, left)
    }

    /// The changes in a table that are not in `remaining`.
    fn take_edits(&mut self, family: IpFamily, current: &AppliedState, table: &TablePlan) -> Edits {
        let mut edits = match self.edits[family].take() {
            Some(edits) => *edits,
            None if self.remaining.is_some() => Edits::default(),
            None => Edits::between(Vec::new(), Vec::new(), self.update.desired[family].as_deref(), None),
        };
        // Another transaction may have changed the group of source ranges, and another service port of this transaction
        // may complete it.
        edits.group = GroupEdits::of(&current.refs[family], family, &self.update);
        edits.group.take_if(|edits| table.completes(edits.group.id));
        edits
    }

    /// Takes the first changes in their order, because not all of them fit into the transaction.
    fn take_part(&mut self, edits: PerFamily<Edits>, refs: &PerFamily<RefCounts>, left: &mut usize) -> TakenEdits {
        let mut remaining = self.remaining.take().unwrap_or_default();
        let mut taken = TakenEdits { edits: PerFamily::default(), is_complete: true };

        for (family, edits) in edits {
            let (ordered, group) = edits.into_remaining();
            if ordered.len() > 0 {
                remaining[family] = ordered;
            }
            let needs_group = group.is_some();
            let part = remaining[family].take(group, *left);
            *left = left.saturating_sub(part.writes(&refs[family]));
            let has_group = !needs_group || part.group.as_ref().is_some_and(|group| group.is_complete);
            taken.is_complete &= has_group && remaining[family].len() == 0;
            taken.edits[family] = part;
        }

        self.size = remaining.v4.len() + remaining.v6.len();
        if !taken.is_complete {
            self.remaining = Some(remaining);
        }
        taken
    }
}
