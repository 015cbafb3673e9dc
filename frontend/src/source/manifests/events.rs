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
    /// Files that were removed or renamed to another name. If such a file exists, it is being written again, or is in
    /// `files`.
    pub(super) removed: BTreeSet<OsString>,
    /// Any file may have changed: events were lost, or a symbolic link was replaced that files may point through.
    pub(super) rescan: bool,
}

impl FileEvents {
    /// Adds an event of inotify. Returns whether files must be read because of it.
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

    /// Adds an event of one path. Returns whether files must be read because of it.
    fn add(&mut self, path: &Path, kind: EventKind) -> bool {
        let is_removed = matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)));
        if !is_removed && !is_complete(path, kind) {
            return false;
        }

        let Some(name) = path.file_name() else { return false };
        if ManifestFormat::of(name).is_none() {
            // A ConfigMap volume replaces the link `..data`, which all its files point through.
            let is_relevant = is_link(path) && !is_lock(name);
            self.rescan |= is_relevant;
            return is_relevant;
        }

        if is_removed {
            self.files.remove(name);
            self.removed.insert(name.to_owned());
        } else {
            self.files.insert(name.to_owned());
        }
        true
    }
}

/// Whether a file is complete after an event: a new file is not before its writer has closed it.
fn is_complete(path: &Path, kind: EventKind) -> bool {
    match kind {
        EventKind::Modify(ModifyKind::Name(RenameMode::To))
        | EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Create(_) => is_link(path),
        _ => false,
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
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
