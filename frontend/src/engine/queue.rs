//! Updates of the source that wait to be applied: of each object the newest one.

use std::collections::{HashMap, VecDeque, hash_map::Entry};

use crate::object::{ObjectId, SourceUpdate};

/// In the order of their arrival, except that an update of an object takes the place of one that waits: who changes an
/// object all the time, however long that takes to apply, delays others by one update of it. The result does not depend
/// on the order, and the API promises none for different objects.
#[derive(Debug, Default)]
pub(super) struct UpdateQueue {
    updates: VecDeque<SourceUpdate>,
    /// How many were taken out so far.
    taken: usize,
    /// Where the update of an object is, counted from the first one ever.
    places: HashMap<ObjectId, usize>,
}

impl UpdateQueue {
    pub(super) fn len(&self) -> usize {
        self.updates.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    pub(super) fn push(&mut self, update: SourceUpdate) {
        if let SourceUpdate::Replace(kind, _) = &update {
            // A later update must not be applied before the list.
            self.places.retain(|(of, _), _| of != kind);
        }
        if let Some(object) = object_of(&update) {
            match self.places.entry(object) {
                Entry::Occupied(place) => {
                    self.updates[*place.get() - self.taken] = update;
                    return;
                }
                Entry::Vacant(place) => drop(place.insert(self.taken + self.updates.len())),
            }
        }
        self.updates.push_back(update);
    }

    pub(super) fn pop(&mut self) -> Option<SourceUpdate> {
        let update = self.updates.pop_front()?;
        if let Some(object) = object_of(&update)
            && self.places.get(&object) == Some(&self.taken)
        {
            self.places.remove(&object);
        }
        self.taken += 1;
        Some(update)
    }
}

fn object_of(update: &SourceUpdate) -> Option<ObjectId> {
    match update {
        SourceUpdate::Apply(parsed) => Some((parsed.kind, parsed.name.clone())),
        SourceUpdate::Delete(kind, name) => Some((*kind, name.clone())),
        SourceUpdate::Replace(..) | SourceUpdate::Progress(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ObjectKind, ObjectName};

    fn delete(name: &str) -> SourceUpdate {
        SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", name))
    }

    fn names(queue: &mut UpdateQueue) -> Vec<String> {
        let updates = std::iter::from_fn(|| queue.pop());
        let name = |update| object_of(&update).map_or_else(|| "list".to_owned(), |(_, name)| name.name.to_string());
        updates.map(name).collect()
    }

    #[test]
    fn newer_update_of_an_object_takes_the_place_of_one_that_waits() {
        let mut queue = UpdateQueue::default();
        ["a", "b", "a", "c", "b"].map(delete).into_iter().for_each(|update| queue.push(update));
        assert_eq!(queue.pop().and_then(|update| object_of(&update)), object_of(&delete("a")));
        ["b", "a"].map(delete).into_iter().for_each(|update| queue.push(update));
        assert_eq!(names(&mut queue), ["b", "c", "a"]);
        assert!(queue.places.is_empty());
    }

    #[test]
    fn updates_after_a_list_are_applied_after_it() {
        let mut queue = UpdateQueue::default();
        let list = SourceUpdate::Replace(ObjectKind::Service, Vec::new());
        [delete("a"), list, delete("a")].into_iter().for_each(|update| queue.push(update));
        assert_eq!(names(&mut queue), ["a", "list", "a"]);
        assert!(queue.places.is_empty());
    }
}
