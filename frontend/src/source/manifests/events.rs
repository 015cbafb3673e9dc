//! inotify events of a directory, collected until they are taken.
//!
//! A file counts as changed when its writer has closed it or renamed it to its name, never while it is being written.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs,
    path::Path,
};

use notify::{
    Event,
    event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode},
};
use tracing::warn;

use super::document::ManifestFormat;

/// The events since they were last taken.
#[derive(Debug, Default)]
pub(super) struct FileEvents {
    /// Files that were written completely, or renamed to their name.
    pub(super) files: BTreeSet<OsString>,
    /// Files that were removed or renamed to another name. One that exists is being written again, or is in `files`.
    pub(super) removed: BTreeSet<OsString>,
    /// Any file may have changed: events were lost, or a symbolic link was replaced that files may point through.
    pub(super) rescan: bool,
}

impl FileEvents {
    /// Adds what inotify reports. Whether it is relevant.
    pub(super) fn collect(&mut self, event: notify::Result<Event>) -> bool {
        match event {
            Ok(event) if !event.need_rescan() => {
                let relevant = event.paths.iter().filter(|path| self.add(path, event.kind));
                return relevant.count() > 0;
            }
            Ok(_) => {}
            Err(error) => warn!(%error, "inotify failed, reading all files again"),
        }
        self.rescan = true;
        true
    }

    /// Adds an event of one path. Whether it is relevant.
    fn add(&mut self, path: &Path, kind: EventKind) -> bool {
        let is_link = || fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let is_removed = matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)));
        let is_complete = match kind {
            EventKind::Modify(ModifyKind::Name(RenameMode::To))
            | EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
            // A new file is not complete before its writer has closed it.
            EventKind::Create(_) => is_link(),
            _ => false,
        };
        match path.file_name() {
            _ if !is_removed && !is_complete => return false,
            Some(name) if ManifestFormat::of(name).is_some() => {
                if is_removed {
                    self.files.remove(name);
                    self.removed.insert(name.to_owned());
                } else {
                    self.files.insert(name.to_owned());
                }
            }
            // A ConfigMap volume replaces the link `..data`, which all its files point through.
            Some(name) if !is_lock(name) && is_link() => self.rescan = true,
            _ => return false,
        }
        true
    }
}

/// Whether it is the name of a link that an editor creates while a file is edited: `.#a.yaml`.
fn is_lock(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && !name.starts_with(b"..")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use notify::event::CreateKind;
    use tempfile::TempDir;

    use super::*;

    /// A directory and its events.
    struct Fixture {
        directory: TempDir,
        events: FileEvents,
    }

    impl Fixture {
        fn new() -> Self {
            Self { directory: TempDir::new().unwrap(), events: FileEvents::default() }
        }

        /// Collects an event of this name. Returns whether it is relevant.
        fn collect(&mut self, name: &str, kind: EventKind) -> bool {
            let event = Event::new(kind).add_path(self.directory.path().join(name));
            self.events.collect(Ok(event))
        }
    }

    #[test]
    fn removed_file_is_read_only_when_it_is_complete_again() {
        let mut fixture = Fixture::new();
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        assert!(fixture.collect("a.yaml", closed));
        assert!(fixture.collect("a.yaml", EventKind::Modify(ModifyKind::Name(RenameMode::From))));
        assert!(!fixture.collect("a.yaml", EventKind::Create(CreateKind::File)));
        assert!(fixture.events.files.is_empty() && fixture.events.removed.contains(OsStr::new("a.yaml")));
        assert!(fixture.collect("a.yaml", closed));
        assert!(fixture.events.files.contains(OsStr::new("a.yaml")));
    }

    #[test]
    fn lock_of_an_editor_reads_nothing() {
        let mut fixture = Fixture::new();
        let created = EventKind::Create(CreateKind::File);
        for (name, is_relevant) in [(".#a.yaml", false), ("..data", true)] {
            symlink("missing", fixture.directory.path().join(name)).unwrap();
            assert_eq!(fixture.collect(name, created), is_relevant, "{name}");
            assert_eq!(fixture.events.rescan, is_relevant, "{name}");
        }
    }
}
