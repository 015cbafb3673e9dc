//! The changes of one service port in one table, and which of them come first if they do not fit into a transaction.
//!
//! ```text
//!   1. elements that several service ports need      5. what leads there (aliases, verdicts), VIP by VIP
//!   2. the group of its source ranges                6. removed slots and members that nothing leads to
//!   3. new slots and members                         7. elements that this service port needs no more
//!   4. slots with another endpoint
//! ```
//!
//! After each of them the service port is valid: a VIP leads to the old pool and the old group of source ranges until
//! the new ones are complete.

use std::collections::{BTreeMap, HashSet};

use backend::{dataplane::Vip, driver::ServicePortUpdate};
use ipnet::IpNet;
use proto::model::IpFamily;

use super::{CurrentState, RefCounts};
use crate::{
    desired::{Desired, SourceGroup, SourceGroupId},
    element::{Element, ElementData, Map},
};

/// The differing elements of a service port. An element with new data is removed and added: the kernel cannot replace
/// the data of an element.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    pub(super) removed: Vec<Element>,
    pub(super) added: Vec<Element>,
    /// The same for shared elements, of which references are counted.
    pub(super) unshared: Vec<Element>,
    pub(super) shared: Vec<Element>,
    /// `None`: it needs no group of source ranges, or the group is complete.
    pub(super) group: Option<GroupEdits>,
}

/// The changes of a group of source ranges that is new, or that another process has changed.
#[derive(Clone, Debug)]
pub(super) struct GroupEdits {
    pub(super) group: SourceGroup,
    pub(super) removed: Vec<IpNet>,
    pub(super) added: Vec<IpNet>,
    /// Whether the group is complete after these changes.
    pub(super) is_complete: bool,
}

/// What a service port has in a table after a part of its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartialServicePort {
    /// Its elements that are not shared, sorted.
    pub(crate) elements: Vec<Element>,
    /// The shared elements to which it has a reference, sorted.
    pub(crate) shared: Vec<Element>,
    /// The group of source ranges that its VIPs will refer to.
    pub(crate) group: Option<SourceGroupId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Edit {
    Remove,
    Add,
    Unshare,
}

type ElementKey = (Map, Vip, u32, Option<ElementData>);

impl Edits {
    /// The changes from what the table contains to what is desired.
    pub(super) fn new(current: &impl CurrentState, family: IpFamily, update: &ServicePortUpdate<Desired>) -> Self {
        let old = PartialServicePort::of(current, family, update);
        let mut new = PartialServicePort::default();
        if let Some(desired) = &update.desired[family] {
            desired.elements(&mut new.elements);
            desired.shared(&mut new.shared);
        }
        Self {
            removed: only_in(&old.elements, &new.elements),
            added: only_in(&new.elements, &old.elements),
            unshared: only_in(&old.shared, &new.shared),
            shared: only_in(&new.shared, &old.shared),
            group: update.desired[family]
                .as_ref()
                .and_then(Desired::sources)
                .and_then(|group| GroupEdits::new(group, current.refs(family))),
        }
    }

    /// The number of elements that they write. `refs`: the references of shared elements.
    pub(super) fn writes(&self, refs: &RefCounts) -> usize {
        let added = self.shared.iter().filter(|element| !refs.elements.contains_key(element)).count();
        let unused = |element: &&Element| refs.elements.get(element).is_some_and(|count| *count <= 1);
        let group = self.group.as_ref().map_or(0, GroupEdits::len);
        group + self.removed.len() + self.added.len() + added + self.unshared.iter().filter(unused).count()
    }

    /// Keeps the first changes, `budget` of them or a few more.
    pub(super) fn truncate(&mut self, budget: usize) {
        let mut left = budget;
        let mut kept = Self::default();
        kept.shared.extend(self.shared.iter().take(left));
        left -= kept.shared.len();
        if left > 0 {
            kept.group = self.group.take();
        }
        if let Some(group) = &mut kept.group {
            group.truncate(left);
            left -= group.len();
        }
        for group in self.in_order() {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(group.len());
            for (edit, element) in group {
                match edit {
                    Edit::Remove => kept.removed.push(element),
                    Edit::Add => kept.added.push(element),
                    Edit::Unshare => kept.unshared.push(element),
                }
            }
        }
        *self = kept;
    }

    /// The changes of its own elements, and those of which it gives up references, in groups, each of which has to be
    /// in one transaction.
    fn in_order(&self) -> impl Iterator<Item = Vec<(Edit, Element)>> {
        let added: BTreeMap<ElementKey, Element> =
            self.added.iter().filter(|element| is_leaf(element)).map(|element| (key(element), *element)).collect();
        let removed: HashSet<ElementKey> = self.removed.iter().filter(|element| is_leaf(element)).map(key).collect();
        let (mut new, mut replaced, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let without_old = added.iter().filter(|(key, _)| !removed.contains(key));
        new.extend(without_old.map(|(_, element)| vec![(Edit::Add, *element)]));
        for old in self.removed.iter().filter(|element| is_leaf(element)) {
            match added.get(&key(old)) {
                Some(element) => replaced.push(vec![(Edit::Remove, *old), (Edit::Add, *element)]),
                // Clients are not sent to a removed endpoint any more because of session affinity.
                None if matches!(old.data, ElementData::Member(..)) => replaced.push(vec![(Edit::Remove, *old)]),
                None => gone.push(vec![(Edit::Remove, *old)]),
            }
        }
        gone.extend(self.unshared.iter().map(|element| vec![(Edit::Unshare, *element)]));
        let mut by_vip: BTreeMap<Vip, Vec<(Edit, Element)>> = BTreeMap::new();
        let leading = |list: &[Element], edit| -> Vec<_> {
            list.iter().filter(|element| !is_leaf(element)).map(|element| (edit, *element)).collect()
        };
        for (edit, element) in leading(&self.removed, Edit::Remove).into_iter().chain(leading(&self.added, Edit::Add)) {
            by_vip.entry(element.vip).or_default().push((edit, element));
        }
        new.into_iter().chain(replaced).chain(by_vip.into_values()).chain(gone)
    }
}

impl GroupEdits {
    /// `None`: the group is complete.
    fn new(group: &SourceGroup, refs: &RefCounts) -> Option<Self> {
        let observed = refs.groups.get(&group.id);
        if observed.is_some_and(|observed| observed.is_intact) {
            return None;
        }
        let old = observed.map_or(&[][..], |observed| &observed.prefixes);
        let only_in = |one: &[IpNet], other: &[IpNet]| {
            one.iter().filter(|prefix| other.binary_search(prefix).is_err()).copied().collect()
        };
        let (removed, added) = (only_in(old, &group.prefixes), only_in(&group.prefixes, old));
        Some(Self { group: group.clone(), removed, added, is_complete: true })
    }

    /// The number of elements that they write.
    fn len(&self) -> usize {
        self.removed.len() + self.added.len()
    }

    /// Keeps the first changes, at most `budget` of them.
    fn truncate(&mut self, budget: usize) {
        self.is_complete &= self.len() <= budget;
        self.removed.truncate(budget);
        self.added.truncate(budget - self.removed.len());
    }
}

impl PartialServicePort {
    /// What a table contains of a service port, and of the VIPs that it should have.
    pub(super) fn of(current: &impl CurrentState, family: IpFamily, update: &ServicePortUpdate<Desired>) -> Self {
        let group = update.desired[family].as_ref().and_then(Desired::sources).map(|group| group.id);
        let mut partial = Self { group, ..Self::default() };
        current.elements(family, update, &mut partial.elements);
        current.shared(family, update, &mut partial.shared);
        partial
    }

    /// The same after these changes.
    pub(super) fn after(mut self, edits: &Edits) -> Self {
        for (list, removed, added) in
            [(&mut self.elements, &edits.removed, &edits.added), (&mut self.shared, &edits.unshared, &edits.shared)]
        {
            let removed: HashSet<&Element> = removed.iter().collect();
            list.retain(|element| !removed.contains(element));
            list.extend(added);
            list.sort_unstable();
        }
        self
    }
}

/// The order in which elements that no service port needs are removed: first what leads to others.
pub(crate) fn removal_order(elements: &mut [Element]) {
    elements.sort_by_key(|element| match element.data {
        ElementData::Verdict(_) => 0,
        _ if !is_leaf(element) => 1,
        _ => 2,
    });
}

/// Whether no packet is affected by an element unless another one leads to it.
fn is_leaf(element: &Element) -> bool {
    matches!(element.data, ElementData::Endpoint(..) | ElementData::Member(..))
}

/// What identifies an element in the kernel.
fn key(element: &Element) -> ElementKey {
    let in_key = matches!(element.data, ElementData::Member(..)).then_some(element.data);
    (element.map, element.vip, element.index, in_key)
}

/// The elements that only the first of two sorted lists contains.
fn only_in(one: &[Element], other: &[Element]) -> Vec<Element> {
    debug_assert!(one.is_sorted() && other.is_sorted());
    one.iter().copied().filter(|element| other.binary_search(element).is_err()).collect()
}
