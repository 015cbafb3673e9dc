//! inotify events of a directory, collected until they are taken.
//!
//! A file counts as changed when its writer has closed it or renamed it to its name, never while it is being written.

use std::{collections::BTreeSet, ffi::OsString, fs, os::unix::fs::MetadataExt, path::Path};

use notify::{
    Event,
    event::{AccessKind, AccessMode, EventKind, MetadataKind, ModifyKind, RenameMode},
};
use tracing::warn;

use super::document::ManifestFormat;

/// The events since they were last taken.
#[derive(Debug, Default)]
pub(super) struct FileEvents {
    /// Files that were written completely.
    pub(super) changed: BTreeSet<OsString>,
    /// Files that were removed or renamed, perhaps to be replaced in a moment.
    pub(super) removed: BTreeSet<OsString>,
    /// Files whose permissions or times were changed.
    pub(super) touched: BTreeSet<OsString>,
    /// Any file may have changed: events were lost, or a symbolic link was replaced that files may point through.
    pub(super) rescan: bool,
    /// The directory itself was removed, created or replaced.
    pub(super) directory: bool,
}

// === impl FileEvents ===

impl FileEvents {
    /// Adds what inotify reports. Whether it is relevant.
    pub(super) fn collect(&mut self, directory: &Path, event: notify::Result<Event>) -> bool {
        match event {
            Ok(event) if !event.need_rescan() => {
                let relevant = event.paths.iter().filter(|path| self.add(directory, path, event.kind));
                return relevant.count() > 0;
            }
            Ok(_) => {}
            Err(error) => warn!(%error, "inotify failed, reading all files again"),
        }
        self.rescan = true;
        true
    }

    /// Adds an event of one path. Whether it is relevant.
    fn add(&mut self, directory: &Path, path: &Path, kind: EventKind) -> bool {
        let is_removed = matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)));
        let is_created = matches!(kind, EventKind::Modify(ModifyKind::Name(RenameMode::To)))
            || matches!(kind, EventKind::Create(_)) && is_complete(path);
        let is_written = is_created || kind == EventKind::Access(AccessKind::Close(AccessMode::Write));
        let touched = kind == EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        if path == directory {
            let replaced = is_removed || is_created;
            self.directory |= replaced;
            return replaced;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        if parent != directory || !(is_removed || is_written || touched) {
            return false;
        }
        if ManifestFormat::of(name).is_none() {
            // A ConfigMap volume replaces the link `..data`, which all its files point through.
            let swapped = is_created && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
            self.rescan |= swapped;
            return swapped;
        }
        if is_removed {
            self.changed.remove(name);
            self.removed.insert(name.to_owned());
        } else if is_written {
            self.removed.remove(name);
            self.changed.insert(name.to_owned());
        } else {
            self.touched.insert(name.to_owned());
        }
        true
    }
}

/// Whether a path that was just created is complete. A new file is not before its writer has closed it.
fn is_complete(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.nlink() > 1)
}
