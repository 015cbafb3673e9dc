//! Versions: of the API server, whose order is checked, and of the objects of a kind, which show what a watch has
//! missed.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
};

use super::request::RequestError;
use crate::object::ObjectName;

/// The version of each object of a kind. Names and versions are hashes, so that an object costs 16 bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectVersions(HashMap<u64, u64>);

/// Objects with different versions in two [`ObjectVersions`]; `None`: it is in the other one only.
pub(super) type DifferingVersions = HashSet<(u64, Option<u64>, Option<u64>)>;

impl ObjectVersions {
    pub(super) fn set(&mut self, name: &ObjectName, version: &str) {
        self.0.insert(hash(name), hash(version));
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        self.0.remove(&hash(name));
    }

    /// The objects that are in one of the two only, or have another version in the other.
    pub(super) fn differing(&self, other: &Self) -> DifferingVersions {
        let names = self.0.keys().chain(other.0.keys().filter(|name| !self.0.contains_key(name)));
        let both = names.map(|name| (*name, self.0.get(name).copied(), other.0.get(name).copied()));
        both.filter(|(_, one, other)| one != other).collect()
    }
}

fn hash(value: impl std::hash::Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// Fails if a version is lower than the one before. Versions that are no numbers are not compared.
pub(super) fn check_order(last: &str, found: &str) -> Result<(), RequestError> {
    match (last.parse::<u64>(), found.parse::<u64>()) {
        (Ok(before), Ok(after)) if after < before => {
            Err(RequestError::Backwards { last: last.to_owned(), found: found.to_owned() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(objects: &[(&str, &str)]) -> ObjectVersions {
        let mut versions = ObjectVersions::default();
        for (name, version) in objects {
            versions.set(&ObjectName::new("shop", *name), version);
        }
        versions
    }

    #[test]
    fn added_changed_and_removed_objects_differ() {
        let before = versions(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!(before.differing(&before).len(), 0);
        let differing = before.differing(&versions(&[("a", "1"), ("b", "4"), ("d", "5")]));
        assert_eq!(differing.len(), 3);
        let later = before.differing(&versions(&[("a", "2"), ("b", "4"), ("c", "3")]));
        assert_eq!(differing.intersection(&later).count(), 1);
        let mut after = versions(&[("a", "1"), ("b", "1"), ("c", "3"), ("d", "5")]);
        after.set(&ObjectName::new("shop", "b"), "2");
        after.remove(&ObjectName::new("shop", "d"));
        assert_eq!(before, after);
        assert_eq!(before.differing(&versions(&[])).len(), 3);
    }

    #[test]
    fn only_numbers_are_compared() {
        assert!(check_order("9", "10").is_ok() && check_order("9", "9").is_ok());
        assert!(check_order("10", "9").is_err());
        assert!(check_order("b7", "a3").is_ok());
    }
}
