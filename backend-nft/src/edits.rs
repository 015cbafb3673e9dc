//! The changes of one service port in one table, and their order if they do not fit into one transaction.
//!
//! ```text
//!   1. new references of shared elements             5. elements that lead there (aliases, verdicts), VIP by VIP
//!   2. the group of its source ranges                6. removed slots and members, to which no element leads any more
//!   3. new slots and members                         7. references of shared elements that it gives up
//!   4. slots with another endpoint
//! ```
//!
//! After each step the service port is valid: a VIP leads to the old pool and the old group of source ranges until
//! the new ones are complete.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use backend::dataplane::Vip;
use ipnet::IpNet;
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::{Desired, SourceGroup, Update},
    element::{Element, ElementData, Map, SourceGroupId},
    refs::RefCounts,
};

/// A service port that is to be programmed. Small: a cold start plans all of them before it programs the first.
#[derive(Clone, Debug)]
pub(crate) struct PlannedUpdate {
    pub(crate) update: Update,
    /// Its changes; `None`: the table has nothing of it, or a transaction has taken them.
    pub(crate) edits: PerFamily<Option<Box<Edits>>>,
    /// The changes that did not fit into an earlier transaction.
    pub(crate) remaining: Option<Box<PerFamily<RemainingEdits>>>,
    /// The number of elements that its changes write, or a few more.
    pub(crate) size: usize,
}

/// The differing elements of a service port. An element with new data is removed and added: the kernel cannot replace
/// the data of an element.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    pub(crate) removed: Vec<Element>,
    pub(crate) added: Vec<Element>,
    /// The shared elements to which it gives up a reference.
    pub(crate) unshared: Vec<Element>,
    /// The shared elements to which it gets a reference.
    pub(crate) shared: Vec<Element>,
    /// `None`: it needs no group of source ranges, or the group is complete.
    pub(crate) group: Option<GroupEdits>,
}

/// The changes of a group of source ranges that is new, or that another process has changed.
#[derive(Clone, Debug)]
pub(crate) struct GroupEdits {
    pub(crate) group: SourceGroup,
    pub(crate) removed: Vec<IpNet>,
    pub(crate) added: Vec<IpNet>,
    /// Whether the group is complete after these changes.
    pub(crate) is_complete: bool,
}

/// The changes of a service port that do not fit into a transaction, except for those of its group of source ranges.
/// They are computed once, and each transaction takes the next changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemainingEdits {
    /// New references of shared elements, in reverse order.
    shared: Vec<Element>,
    /// The changes of its own elements, and the references that it gives up, in reverse order.
    own: Vec<OrderedEdit>,
}

#[derive(Clone, Copy, Debug)]
struct OrderedEdit {
    edit: Edit,
    element: Element,
    /// Whether the next change has to be in the same transaction.
    is_followed: bool,
}

/// The elements of a service port in a table after a part of its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartialServicePort {
    /// Its elements that are not shared.
    pub(crate) elements: BTreeSet<Element>,
    /// The shared elements to which it has a reference.
    pub(crate) shared: BTreeSet<Element>,
    /// The group of source ranges that its VIPs will refer to.
    pub(crate) group: Option<SourceGroupId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Remove,
    Add,
    Unshare,
}

type ElementKey = (Map, Vip, u32, Option<ElementData>);

// === impl Edits ===

impl Edits {
    /// The changes from the elements in the table (`old_shared`: the shared elements) to the desired ones.
    pub(crate) fn between(
        old: Vec<Element>,
        old_shared: Vec<Element>,
        desired: Option<&Desired>,
        group: Option<GroupEdits>,
    ) -> Self {
        let mut new = Vec::new();
        let mut new_shared = Vec::new();
        if let Some(desired) = desired {
            desired.elements(&mut new);
            desired.shared(&mut new_shared);
        }

        let (removed, added) = differences(old, new);
        let (unshared, shared) = differences(old_shared, new_shared);
        Self { removed, added, unshared, shared, group }
    }

    /// The number of elements that they write. `refs`: the references of shared elements.
    pub(crate) fn writes(&self, refs: &RefCounts) -> usize {
        let is_new = |element: &&Element| !refs.elements.contains(element);
        let is_unused = |element: &&Element| refs.elements.get(element).is_some_and(|count| count <= 1);
        let shared = self.shared.iter().filter(is_new).count() + self.unshared.iter().filter(is_unused).count();
        let group = self.group.as_ref().map_or(0, GroupEdits::len);
        self.removed.len() + self.added.len() + shared + group
    }

    /// The changes in their order, and apart from them the changes of the group of source ranges.
    pub(crate) fn into_remaining(mut self) -> (RemainingEdits, Option<GroupEdits>) {
        let mut own = Vec::with_capacity(self.removed.len() + self.added.len() + self.unshared.len());
        for unit in self.in_order() {
            let last = unit.len() - 1;
            let edits = unit.into_iter().enumerate();
            own.extend(edits.map(|(at, (edit, element))| OrderedEdit { edit, element, is_followed: at < last }));
        }
        own.reverse();
        self.shared.reverse();
        (RemainingEdits { shared: self.shared, own }, self.group)
    }

    /// The changes of its own elements, and the references that it gives up, in units, each of which has to be in one
    /// transaction.
    fn in_order(&self) -> impl Iterator<Item = Vec<(Edit, Element)>> {
        let leaves = self.added.iter().filter(|element| element.is_leaf());
        let mut new: BTreeMap<ElementKey, Element> = leaves.map(|element| (key(element), *element)).collect();
        let mut replaced = Vec::new();
        let mut gone = Vec::new();
        for old in self.removed.iter().filter(|element| element.is_leaf()) {
            match new.remove(&key(old)) {
                Some(element) => replaced.push(vec![(Edit::Remove, *old), (Edit::Add, element)]),
                // Early, so that session affinity sends no more clients to a removed endpoint.
                None if matches!(old.data, ElementData::Member(..)) => replaced.push(vec![(Edit::Remove, *old)]),
                None => gone.push(vec![(Edit::Remove, *old)]),
            }
        }
        gone.extend(self.unshared.iter().map(|element| vec![(Edit::Unshare, *element)]));

        let mut leading: BTreeMap<Vip, Vec<(Edit, Element)>> = BTreeMap::new();
        for element in self.removed.iter().filter(|element| !element.is_leaf()) {
            leading.entry(element.vip).or_default().push((Edit::Remove, *element));
        }
        for element in self.added.iter().filter(|element| !element.is_leaf()) {
            leading.entry(element.vip).or_default().push((Edit::Add, *element));
        }

        let new = new.into_values().map(|element| vec![(Edit::Add, element)]);
        new.chain(replaced).chain(leading.into_values()).chain(gone)
    }
}

// === impl RemainingEdits ===

impl RemainingEdits {
    /// An upper bound of the number of elements that they write.
    pub(crate) fn len(&self) -> usize {
        self.shared.len() + self.own.len()
    }

    /// Takes the next changes, `budget` of them or a few more, after those of the group of source ranges.
    pub(crate) fn take(&mut self, group: Option<GroupEdits>, budget: usize) -> Edits {
        let mut left = budget;
        let mut taken = Edits::default();
        let rest = self.shared.len().saturating_sub(left);
        taken.shared.extend(self.shared.drain(rest..).rev());
        left -= taken.shared.len();

        if left > 0
            && let Some(mut group) = group
        {
            group.truncate(left);
            left -= group.len();
            taken.group = Some(group);
        }

        let mut is_followed = false;
        while let Some(next) = self.own.pop_if(|_| left > 0 || is_followed) {
            left = left.saturating_sub(1);
            is_followed = next.is_followed;
            match next.edit {
                Edit::Remove => taken.removed.push(next.element),
                Edit::Add => taken.added.push(next.element),
                Edit::Unshare => taken.unshared.push(next.element),
            }
        }
        taken
    }
}

// === impl GroupEdits ===

impl GroupEdits {
    /// The changes of the group of source ranges of a service port; `None`: it needs none, or the group is complete.
    pub(crate) fn of(refs: &RefCounts, family: IpFamily, update: &Update) -> Option<Self> {
        let group = update.desired[family].as_deref().and_then(Desired::sources)?;
        let observed = refs.groups.get(&group.id);
        if observed.is_some_and(|observed| observed.is_intact) {
            return None;
        }
        let old = observed.map_or(&[][..], |observed| &observed.prefixes);
        Some(Self {
            group: group.clone(),
            removed: without(old, &group.prefixes),
            added: without(&group.prefixes, old),
            is_complete: true,
        })
    }

    /// The number of elements that they write.
    pub(crate) fn len(&self) -> usize {
        self.removed.len() + self.added.len()
    }

    /// Keeps the first changes, at most `budget` of them.
    fn truncate(&mut self, budget: usize) {
        self.is_complete &= self.len() <= budget;
        self.removed.truncate(budget);
        self.added.truncate(budget - self.removed.len());
    }
}

/// The prefixes of a list without the excluded ones, which are sorted.
fn without(prefixes: &[IpNet], excluded: &[IpNet]) -> Vec<IpNet> {
    prefixes.iter().filter(|prefix| excluded.binary_search(prefix).is_err()).copied().collect()
}

// === impl PartialServicePort ===

impl PartialServicePort {
    /// Records that these changes were committed.
    pub(crate) fn committed(&mut self, edits: &Edits) {
        for element in &edits.removed {
            self.elements.remove(element);
        }
        self.elements.extend(&edits.added);

        for element in &edits.unshared {
            self.shared.remove(element);
        }
        self.shared.extend(&edits.shared);
    }

    /// The elements of a VIP or a pool key, sorted.
    pub(crate) fn of_key(&self, key: Vip) -> impl Iterator<Item = &Element> {
        let first = Element::new(Map::ALL[0], key, ElementData::None);
        self.elements.range(first..).take_while(move |element| element.vip == key)
    }
}

/// The parts of an element that identify it in the kernel.
fn key(element: &Element) -> ElementKey {
    let in_key = matches!(element.data, ElementData::Member(..)).then_some(element.data);
    (element.map, element.vip, element.index, in_key)
}

/// The elements that only the first, and that only the second of two sorted lists contains.
fn differences(old: Vec<Element>, new: Vec<Element>) -> (Vec<Element>, Vec<Element>) {
    debug_assert!(old.is_sorted() && new.is_sorted());
    if old.is_empty() || new.is_empty() {
        return (old, new);
    }

    let mut removed = Vec::new();
    let mut added = Vec::new();
    let mut old = old.into_iter().peekable();
    let mut new = new.into_iter().peekable();
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return (removed, added),
        };
        match order {
            Ordering::Less => removed.extend(old.next()),
            Ordering::Greater => added.extend(new.next()),
            Ordering::Equal => drop((old.next(), new.next())),
        }
    }
}
