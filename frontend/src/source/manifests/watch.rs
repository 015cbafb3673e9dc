//! inotify events of a directory, collected until they are taken.
//!
//! A file counts as changed when its writer has closed it or renamed it to its name, never while it is being written.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, mem,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use notify::{
    Event, INotifyWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, EventKind, MetadataKind, ModifyKind, RenameMode},
};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::document::ManifestFormat;

/// The watch on a directory, and on its parent, which reports when the directory itself is created, removed or
/// replaced.
pub(super) struct DirectoryWatch {
    directory: PathBuf,
    watcher: INotifyWatcher,
    /// The thread of the inotify watcher adds to it.
    collected: watch::Sender<FileEvents>,
    any: watch::Receiver<FileEvents>,
}

/// The events since the last [`DirectoryWatch::take`].
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

// === impl DirectoryWatch ===

impl DirectoryWatch {
    /// Starts to watch an existing directory. The path must be absolute.
    pub(super) fn new(directory: PathBuf) -> Result<Self> {
        let collected = watch::Sender::<FileEvents>::default();
        let handler = {
            let (directory, collected) = (directory.clone(), collected.clone());
            move |event| {
                collected.send_if_modified(|events| events.collect(&directory, event));
            }
        };
        let watcher = INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?;
        let mut watch = Self { directory, watcher, any: collected.subscribe(), collected };
        watch.attach()?;
        Ok(watch)
    }

    /// Watches the directory that is at the path now. First its parent, so that no replacement in between is missed.
    pub(super) fn attach(&mut self) -> Result<()> {
        if let Some(parent) = self.directory.parent().map(Path::to_owned)
            && let Err(error) = self.reattach(&parent)
        {
            warn!(%error, "cannot watch the parent directory, a replaced manifests directory will not be detected");
        }
        let directory = self.directory.clone();
        self.reattach(&directory).context("watch the directory")
    }

    fn reattach(&mut self, path: &Path) -> notify::Result<()> {
        if let Err(error) = self.watcher.unwatch(path) {
            debug!(?path, %error, "directory was not watched");
        }
        self.watcher.watch(path, RecursiveMode::NonRecursive)
    }

    /// Waits for an event.
    pub(super) async fn any(&mut self) {
        // Fails only without the sender, which is here.
        let _ = self.any.changed().await;
    }

    /// Takes the collected events.
    pub(super) fn take(&self) -> FileEvents {
        let mut taken = FileEvents::default();
        self.collected.send_if_modified(|events| {
            taken = mem::take(events);
            false
        });
        taken
    }
}

// === impl FileEvents ===

impl FileEvents {
    /// Adds what inotify reports. Whether it is relevant.
    fn collect(&mut self, directory: &Path, event: notify::Result<Event>) -> bool {
        match event {
            Ok(event) if !event.need_rescan() => {
                return event.paths.iter().fold(false, |any, path| self.add(directory, path, event.kind) || any);
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
