//! The resourceVersion up to which each kind has been delivered.

use std::collections::BTreeMap;

use proto::model::{KindVersions, SourceVersion};

use crate::object::{ObjectKind, VersionProgress};

/// The versions of each kind. Empty for a source without numeric versions.
#[derive(Debug, Default)]
pub(super) struct SourceVersions {
    /// Of the newest object, or deletion of one.
    changed: BTreeMap<ObjectKind, SourceVersion>,
    /// Up to which all changes have been delivered, even if there were none.
    confirmed: BTreeMap<ObjectKind, SourceVersion>,
}

// === impl SourceVersions ===

impl SourceVersions {
    pub(super) fn record(&mut self, kind: ObjectKind, progress: VersionProgress) {
        match progress {
            VersionProgress::Changed(version) => {
                self.changed.insert(kind, version);
                self.confirmed.insert(kind, version);
            }
            VersionProgress::Confirmed(version) => {
                self.confirmed.insert(kind, version);
                // The API server was restored from a backup, without the later changes.
                if self.changed.get(&kind).is_some_and(|newest| *newest > version) {
                    self.changed.remove(&kind);
                }
            }
        }
    }

    /// The version of each kind that the current objects reflect at least.
    pub(super) fn reflected(&self) -> KindVersions {
        of_kinds(&self.changed)
    }

    /// The version of each kind up to which all changes have been delivered: the watch of one may hang while the others
    /// go on.
    pub(super) fn confirmed(&self) -> KindVersions {
        of_kinds(&self.confirmed)
    }
}

fn of_kinds(versions: &BTreeMap<ObjectKind, SourceVersion>) -> KindVersions {
    let version = |kind| versions.get(&kind).map_or(0, |version| version.0);
    KindVersions {
        services: version(ObjectKind::Service),
        endpoint_slices: version(ObjectKind::EndpointSlice),
        nodes: version(ObjectKind::Node),
        service_cidrs: version(ObjectKind::ServiceCidr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_reflected_and_bookmarks_only_confirm() {
        let mut versions = SourceVersions::default();
        let kinds = |services, endpoint_slices| KindVersions { services, endpoint_slices, ..KindVersions::default() };
        assert_eq!((versions.reflected(), versions.confirmed()), (kinds(0, 0), kinds(0, 0)));
        versions.record(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(90)));
        assert_eq!((versions.reflected(), versions.confirmed()), (kinds(0, 0), kinds(90, 0)));
        versions.record(ObjectKind::Service, VersionProgress::Changed(SourceVersion(100)));
        versions.record(ObjectKind::EndpointSlice, VersionProgress::Changed(SourceVersion(95)));
        versions.record(ObjectKind::EndpointSlice, VersionProgress::Confirmed(SourceVersion(120)));
        assert_eq!((versions.reflected(), versions.confirmed()), (kinds(100, 95), kinds(100, 120)));
        assert_eq!(versions.reflected().newest(), SourceVersion(100));
        assert_eq!(versions.confirmed().newest(), SourceVersion(120));
    }

    #[test]
    fn version_of_a_restored_server_replaces_a_higher_one() {
        let mut versions = SourceVersions::default();
        versions.record(ObjectKind::Service, VersionProgress::Changed(SourceVersion(100)));
        versions.record(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(50)));
        let confirmed = KindVersions { services: 50, ..KindVersions::default() };
        assert_eq!((versions.reflected(), versions.confirmed()), (KindVersions::default(), confirmed));
    }
}
