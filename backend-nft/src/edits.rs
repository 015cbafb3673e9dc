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
    /// Its changes; `None`: the table has nothing of it.
    pub(crate) edits: PerFamily<Option<Box<Edits>>>,
    /// The changes that an earlier transaction has left.
    pub(crate) remaining: Option<Box<PerFamily<RemainingEdits>>>,
    /// How many elements programming it would change, or a few more.
    pub(crate) size: usize,
}

/// The differing elements of a service port. An element with new data is removed and added: the kernel cannot replace
/// the data of an element.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    pub(crate) removed: Vec<Element>,
    pub(crate) added: Vec<Element>,
    /// The same for shared elements, of which references are counted.
    pub(crate) unshared: Vec<Element>,
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
/// They are computed once, and each transaction takes the next ones.
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
    /// Whether the next one has to be in the same transaction.
    is_followed: bool,
}

/// What a service port has in a table after a part of its changes.
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

impl Edits {
    /// The changes from the elements that the table has, the service port's own and the shared ones.
    pub(crate) fn between(
        old: Vec<Element>,
        old_shared: Vec<Element>,
        desired: Option<&Desired>,
        group: Option<GroupEdits>,
    ) -> Self {
        let (mut new, mut new_shared) = (Vec::new(), Vec::new());
        desired.inspect(|desired| desired.elements(&mut new));
        desired.inspect(|desired| desired.shared(&mut new_shared));
        let ((removed, added), (unshared, shared)) = (differences(old, new), differences(old_shared, new_shared));
        Self { removed, added, unshared, shared, group }
    }

    /// The number of elements that they write. `refs`: the references of shared elements.
    pub(crate) fn writes(&self, refs: &RefCounts) -> usize {
        let added = self.shared.iter().filter(|element| !refs.elements.contains(element)).count();
        let unused = |element: &&Element| refs.elements.get(element).is_some_and(|count| count <= 1);
        let group = self.group.as_ref().map_or(0, GroupEdits::len);
        group + self.removed.len() + self.added.len() + added + self.unshared.iter().filter(unused).count()
    }

    /// The changes in their order; without those of the group of source ranges, which it returns, too.
    pub(crate) fn into_remaining(mut self) -> (RemainingEdits, Option<GroupEdits>) {
        let mut own = Vec::with_capacity(self.removed.len() + self.added.len() + self.unshared.len());
        for group in self.in_order() {
            let last = group.len() - 1;
            let edits = group.into_iter().enumerate();
            own.extend(edits.map(|(at, (edit, element))| OrderedEdit { edit, element, is_followed: at < last }));
        }
        own.reverse();
        self.shared.reverse();
        (RemainingEdits { shared: self.shared, own }, self.group)
    }

    /// The changes of its own elements, and those of which it gives up references, in groups, each of which has to be
    /// in one transaction.
    fn in_order(&self) -> impl Iterator<Item = Vec<(Edit, Element)>> {
        let leaves = self.added.iter().filter(|element| element.is_leaf());
        let mut new: BTreeMap<ElementKey, Element> = leaves.map(|element| (key(element), *element)).collect();
        let (mut replaced, mut gone) = (Vec::new(), Vec::new());
        for old in self.removed.iter().filter(|element| element.is_leaf()) {
            match new.remove(&key(old)) {
                Some(element) => replaced.push(vec![(Edit::Remove, *old), (Edit::Add, element)]),
                // Clients are not sent to a removed endpoint any more because of session affinity.
                None if matches!(old.data, ElementData::Member(..)) => replaced.push(vec![(Edit::Remove, *old)]),
                None => gone.push(vec![(Edit::Remove, *old)]),
            }
        }
        gone.extend(self.unshared.iter().map(|element| vec![(Edit::Unshare, *element)]));
        let mut by_vip: BTreeMap<Vip, Vec<(Edit, Element)>> = BTreeMap::new();
        let leading = |list: &[Element], edit| -> Vec<_> {
            list.iter().filter(|element| !element.is_leaf()).map(|element| (edit, *element)).collect()
        };
        for (edit, element) in leading(&self.removed, Edit::Remove).into_iter().chain(leading(&self.added, Edit::Add)) {
            by_vip.entry(element.vip).or_default().push((edit, element));
        }
        let new = new.into_values().map(|element| vec![(Edit::Add, element)]);
        new.chain(replaced).chain(by_vip.into_values()).chain(gone)
    }
}

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
        if left > 0 {
            taken.group = group;
        }
        if let Some(group) = &mut taken.group {
            group.truncate(left);
            left -= group.len();
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

impl GroupEdits {
    /// The changes of the group of source ranges of a service port; `None`: it needs none, or the group is complete.
    pub(crate) fn of(refs: &RefCounts, family: IpFamily, update: &Update) -> Option<Self> {
        let group = update.desired[family].as_deref().and_then(Desired::sources)?;
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

impl PartialServicePort {
    /// Records that these changes were committed.
    pub(crate) fn committed(&mut self, edits: &Edits) {
        for (set, removed, added) in
            [(&mut self.elements, &edits.removed, &edits.added), (&mut self.shared, &edits.unshared, &edits.shared)]
        {
            for element in removed {
                set.remove(element);
            }
            set.extend(added);
        }
    }

    /// The elements of a VIP or a pool key, sorted.
    pub(crate) fn of_key(&self, key: Vip) -> impl Iterator<Item = &Element> {
        let first = Element::new(Map::ALL[0], key, ElementData::None);
        self.elements.range(first..).take_while(move |element| element.vip == key)
    }
}

/// What identifies an element in the kernel.
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
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
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
