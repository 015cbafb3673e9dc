//! The resourceVersion up to which each kind has been delivered.

use proto::model::{KindVersions, SourceVersion};

use crate::object::{ObjectKind, VersionProgress};

/// The versions of each kind; 0 for a source without numeric versions.
#[derive(Debug, Default)]
pub(super) struct SourceVersions {
    /// Of the newest object, or deletion of one: the current objects reflect it at least.
    pub(super) reflected: KindVersions,
    /// Up to which all changes have been delivered, even if there were none. The watch of one kind may hang while the
    /// others go on.
    pub(super) confirmed: KindVersions,
}

impl SourceVersions {
    pub(super) fn record(&mut self, kind: ObjectKind, progress: VersionProgress) {
        let reflected = of_kind(&mut self.reflected, kind);
        let SourceVersion(version) = match progress {
            VersionProgress::Changed(version) => {
                *reflected = version.0;
                version
            }
            VersionProgress::Confirmed(version) => {
                // The API server was restored from a backup, without the later changes.
                if *reflected > version.0 {
                    *reflected = 0;
                }
                version
            }
        };
        *of_kind(&mut self.confirmed, kind) = version;
    }
}

fn of_kind(versions: &mut KindVersions, kind: ObjectKind) -> &mut u64 {
    match kind {
        ObjectKind::Service => &mut versions.services,
        ObjectKind::EndpointSlice => &mut versions.endpoint_slices,
        ObjectKind::Node => &mut versions.nodes,
        ObjectKind::ServiceCidr => &mut versions.service_cidrs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_reflected_and_bookmarks_only_confirm() {
        let mut versions = SourceVersions::default();
        let kinds = |services, endpoint_slices| KindVersions { services, endpoint_slices, ..KindVersions::default() };
        assert_eq!((versions.reflected, versions.confirmed), (kinds(0, 0), kinds(0, 0)));
        versions.record(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(90)));
        assert_eq!((versions.reflected, versions.confirmed), (kinds(0, 0), kinds(90, 0)));
        versions.record(ObjectKind::Service, VersionProgress::Changed(SourceVersion(100)));
        versions.record(ObjectKind::EndpointSlice, VersionProgress::Changed(SourceVersion(95)));
        versions.record(ObjectKind::EndpointSlice, VersionProgress::Confirmed(SourceVersion(120)));
        assert_eq!((versions.reflected, versions.confirmed), (kinds(100, 95), kinds(100, 120)));
        assert_eq!(versions.reflected.newest(), SourceVersion(100));
        assert_eq!(versions.confirmed.newest(), SourceVersion(120));
    }

    #[test]
    fn version_of_a_restored_server_replaces_a_higher_one() {
        let mut versions = SourceVersions::default();
        versions.record(ObjectKind::Service, VersionProgress::Changed(SourceVersion(100)));
        versions.record(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(50)));
        let confirmed = KindVersions { services: 50, ..KindVersions::default() };
        assert_eq!((versions.reflected, versions.confirmed), (KindVersions::default(), confirmed));
    }
}
