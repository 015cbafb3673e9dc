//! What a peer supports: a range of protocol versions, and features.
//!
//! A client lists both in Hello. The frontend answers with the version of the stream and the features that it supports
//! in Welcome. A feature may be used on a stream if both peers listed it.

use std::fmt;

/// The protocol versions that a peer supports, from `min` to `max`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The lowest version; not 0.
    pub min: u32,
    /// The highest version.
    pub max: u32,
}

/// An optional part of the protocol. A peer without it knows nothing of the operations, messages and fields that the
/// feature permits, so they are not sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Acks of commits that are received, but not programmed completely yet.
    UnfinishedAcks,
    /// Pools of the classes `Established` and `Gone`, which count in the digests of such a stream.
    EstablishedPools,
}

/// A set of features. It cannot contain those that this build does not know.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

/// What a client supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The protocol versions.
    pub versions: VersionRange,
    /// The features.
    pub features: Features,
}

/// A client and a frontend have no protocol version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no common protocol version: the client supports {client}, this frontend {frontend}; upgrade the {}",
    if .client.max < .frontend.min { "client" } else { "frontend" }
)]
pub struct VersionMismatch {
    /// The versions of the client.
    pub client: VersionRange,
    /// The versions of the frontend.
    pub frontend: VersionRange,
}

impl VersionRange {
    /// The versions that this build supports.
    pub const SUPPORTED: Self = Self { min: 1, max: 1 };

    /// Whether a version is in the range.
    #[must_use]
    pub fn contains(self, version: u32) -> bool {
        (self.min..=self.max).contains(&version)
    }

    /// The highest version that this frontend and a client support.
    ///
    /// # Errors
    /// If there is none.
    pub fn negotiate(self, client: Self) -> Result<u32, VersionMismatch> {
        let highest = self.max.min(client.max);
        if highest < self.min.max(client.min) {
            return Err(VersionMismatch { client, frontend: self });
        }
        Ok(highest)
    }
}

impl Feature {
    /// All features that this build knows.
    pub const ALL: [Self; 2] = [Self::UnfinishedAcks, Self::EstablishedPools];

    /// The name in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnfinishedAcks => "unfinished-acks",
            Self::EstablishedPools => "established-pools",
        }
    }
}

impl Features {
    /// No feature, as of peers that list none.
    pub const NONE: Self = Self(0);

    /// The features that this build implements, as a client and as a frontend.
    pub const SUPPORTED: Self = Self::of(&Feature::ALL);

    /// A set of these features.
    #[must_use]
    pub const fn of(features: &[Feature]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < features.len() {
            bits |= 1 << features[at] as u64;
            at += 1;
        }
        Self(bits)
    }

    /// Whether the set contains a feature.
    #[must_use]
    pub const fn contains(self, feature: Feature) -> bool {
        self.contains_all(Self::of(&[feature]))
    }

    /// Whether the set contains all of these features.
    #[must_use]
    pub const fn contains_all(self, features: Self) -> bool {
        features.0 & !self.0 == 0
    }

    /// The features in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The features in at least one of the sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The features, in order.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.contains(*feature))
    }
}

impl Capabilities {
    /// What this build supports.
    pub const SUPPORTED: Self = Self { versions: VersionRange::SUPPORTED, features: Features::SUPPORTED };
}

impl FromIterator<Feature> for Features {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        features.into_iter().fold(Self::NONE, |all, feature| all.union(Self::of(&[feature])))
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { min, max } if min == max => write!(f, "version {min}"),
            Self { min, max } => write!(f, "versions {min} to {max}"),
        }
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(Feature::name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u32, max: u32) -> VersionRange {
        VersionRange { min, max }
    }

    #[test]
    fn the_highest_common_version_is_chosen() {
        for (frontend, client, chosen) in [
            (range(1, 1), range(1, 1), 1),
            (range(1, 2), range(1, 1), 1),
            (range(1, 1), range(1, 2), 1),
            (range(1, 3), range(2, 4), 3),
            (range(2, 3), range(1, 2), 2),
        ] {
            assert_eq!(frontend.negotiate(client), Ok(chosen), "{frontend}, {client}");
        }
    }

    #[test]
    fn ranges_without_a_common_version_name_both_and_what_to_upgrade() {
        let error = |frontend: VersionRange, client| frontend.negotiate(client).unwrap_err().to_string();
        assert_eq!(
            error(range(2, 3), range(1, 1)),
            "no common protocol version: the client supports version 1, this frontend versions 2 to 3; \
             upgrade the client"
        );
        assert_eq!(
            error(range(1, 1), range(2, 3)),
            "no common protocol version: the client supports versions 2 to 3, this frontend version 1; \
             upgrade the frontend"
        );
    }

    #[test]
    fn features_are_sets() {
        let all: Features = Feature::ALL.into_iter().collect();
        assert_eq!(all, Features::of(&Feature::ALL));
        assert_eq!(all.iter().collect::<Vec<_>>(), Feature::ALL);
        assert!(Feature::ALL.into_iter().all(|feature| all.contains(feature) && !Features::NONE.contains(feature)));
        assert_eq!(all.intersection(Features::NONE), Features::NONE);
        assert_eq!(all.union(Features::NONE), all);
        assert!(all.contains_all(Features::SUPPORTED) && !Features::NONE.contains_all(all));
    }
}
