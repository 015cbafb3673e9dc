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

impl Age {
    /// Whether an object of this age goes before one that keeps what it has if both were created in the same second.
    pub(super) fn precedes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Created(this), Self::Created(other)) => this < other,
            (this, other) => this <= other,
        }
    }
}
