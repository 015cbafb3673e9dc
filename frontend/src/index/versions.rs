//! How far the source knows each kind, in the numbers of its API.

use std::collections::BTreeMap;

use proto::model::SourceVersion;

use crate::object::{ObjectKind, VersionProgress};

/// How far each kind is known. What an API without such numbers has is unknown.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The newest object, or deletion of one.
    objects: BTreeMap<ObjectKind, SourceVersion>,
    /// Up to where nothing is missing, also where nothing happened.
    confirmed: BTreeMap<ObjectKind, SourceVersion>,
}

// === impl Versions ===

impl Versions {
    pub(super) fn record(&mut self, kind: ObjectKind, seen: VersionProgress) {
        match seen {
            VersionProgress::Changed(version) => {
                self.objects.insert(kind, version);
                self.confirmed.insert(kind, version);
            }
            VersionProgress::Confirmed(version) => {
                self.confirmed.insert(kind, version);
                // An API that was restored from a backup: what there was beyond is gone.
                if self.objects.get(&kind).is_some_and(|newest| *newest > version) {
                    self.objects.remove(&kind);
                }
            }
        }
    }

    /// What the objects that are here reflect, at least.
    pub(super) fn reflected(&self) -> SourceVersion {
        self.objects.values().max().copied().unwrap_or_default()
    }

    /// Up to where changes would have been heard of.
    pub(super) fn known(&self) -> SourceVersion {
        self.confirmed.values().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_reflected_and_bookmarks_only_known() {
        let mut versions = Versions::default();
        assert_eq!((versions.reflected(), versions.known()), (SourceVersion(0), SourceVersion(0)));
        versions.record(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(90)));
        assert_eq!((versions.reflected(), versions.known()), (SourceVersion(0), SourceVersion(90)));
        versions.record(ObjectKind::Service, VersionProgress::Changed(SourceVersion(100)));
        versions.record(ObjectKind::EndpointSlice, VersionProgress::Changed(SourceVersion(95)));
        versions.record(ObjectKind::EndpointSlice, VersionProgress::Confirmed(SourceVersion(120)));
        assert_eq!((versions.reflected(), versions.known()), (SourceVersion(100), SourceVersion(120)));
    }

    #[test]
    fn a_restored_api_is_believed() {
        let mut versions = Versions::default();
        versions.record(ObjectKind::Service, VersionProgress::Changed(SourceVersion(100)));
        versions.record(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(50)));
        assert_eq!((versions.reflected(), versions.known()), (SourceVersion(0), SourceVersion(50)));
    }
}
