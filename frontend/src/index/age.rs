//! The age of an object, which decides between two that exclude each other.

use std::time::SystemTime;

/// The age of an object: the older one is less. One without a creation time counts as the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Age {
    /// `metadata.creationTimestamp`.
    Created(SystemTime),
    Unknown,
}

impl From<Option<SystemTime>> for Age {
    fn from(created: Option<SystemTime>) -> Self {
        created.map_or(Self::Unknown, Self::Created)
    }
}
