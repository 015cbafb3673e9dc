//! Sets by key, without empty ones.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// Sets by key, without empty ones.
pub(super) type Groups<K, V> = HashMap<K, BTreeSet<V>>;

/// Whether members are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupChange {
    Add,
    Remove,
}

/// Adds or removes a member. Whether this changes the first member of the group.
pub(super) fn change_group<K: Copy + Eq + Hash, V: Ord + Clone>(
    groups: &mut Groups<K, V>,
    change: GroupChange,
    key: K,
    member: &V,
) -> bool {
    let group = groups.entry(key).or_default();
    let before = group.first().cloned();
    match change {
        GroupChange::Add => group.insert(member.clone()),
        GroupChange::Remove => group.remove(member),
    };
    let changed = group.first() != before.as_ref();
    if group.is_empty() {
        groups.remove(&key);
    }
    changed
}

/// The first member of a group.
pub(super) fn first<'a, K: Eq + Hash, V: Ord>(groups: &'a Groups<K, V>, key: &K) -> Option<&'a V> {
    groups.get(key)?.first()
}
