//! Sets by key, without empty ones.

use std::collections::{BTreeMap, BTreeSet};

pub(super) type Groups<K, V> = BTreeMap<K, BTreeSet<V>>;

/// Whether members are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupChange {
    Add,
    Remove,
}

impl GroupChange {
    /// Adds or removes a member. Whether this changes the first member of the group.
    pub(super) fn apply<V: Ord + Clone>(self, group: &mut BTreeSet<V>, member: &V) -> bool {
        let before = group.first().cloned();
        match self {
            Self::Add => group.insert(member.clone()),
            Self::Remove => group.remove(member),
        };
        group.first() != before.as_ref()
    }
}

/// Adds or removes a member. Whether this changes the first member of the group.
pub(super) fn change_group<K: Ord + Clone, V: Ord + Clone>(
    groups: &mut Groups<K, V>,
    change: GroupChange,
    key: K,
    member: &V,
) -> bool {
    let group = groups.entry(key.clone()).or_default();
    let changed = change.apply(group, member);
    if group.is_empty() {
        groups.remove(&key);
    }
    changed
}

pub(super) fn first<'a, K: Ord, V: Ord>(groups: &'a Groups<K, V>, key: &K) -> Option<&'a V> {
    groups.get(key)?.first()
}
