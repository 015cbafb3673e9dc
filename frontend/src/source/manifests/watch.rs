//! inotify events of a directory, collected until they are taken.
//!
//! A file counts as changed when its writer has closed it or renamed it to its name, never while it is being written.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use notify::{
    Event, INotifyWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, EventKind, MetadataKind, ModifyKind, RenameMode},
};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::document::ManifestFormat;

/// The watch on a directory, and on its parent, which reports when the directory itself is created, removed or
/// replaced.
pub(super) struct DirectoryWatch {
    directory: PathBuf,
    watcher: INotifyWatcher,
    collected: Arc<CollectedEvents>,
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

#[derive(Default)]
struct CollectedEvents {
    events: Mutex<FileEvents>,
    any: Notify,
}

// === impl DirectoryWatch ===

impl DirectoryWatch {
    /// Starts to watch an existing directory. The path must be absolute.
    pub(super) fn new(directory: PathBuf) -> Result<Self> {
        let collected = Arc::<CollectedEvents>::default();
        let handler = {
            let (directory, collected) = (directory.clone(), collected.clone());
            move |event| collected.add(&directory, event)
        };
        let watcher = INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?;
        let mut watch = Self { directory, watcher, collected };
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
    pub(super) async fn any(&self) {
        self.collected.any.notified().await;
    }

    /// Takes the collected events.
    pub(super) fn take(&self) -> FileEvents {
        std::mem::take(&mut *self.collected.lock())
    }
}

// === impl CollectedEvents ===

impl CollectedEvents {
    /// Runs on the thread of the inotify watcher.
    fn add(&self, directory: &Path, event: notify::Result<Event>) {
        let mut events = self.lock();
        let mut added = true;
        match event {
            Ok(event) if !event.need_rescan() => {
                added = false;
                for path in &event.paths {
                    added |= events.add(directory, path, event.kind);
                }
            }
            Ok(_) => events.rescan = true,
            Err(error) => {
                warn!(%error, "inotify failed, reading all files again");
                events.rescan = true;
            }
        }
        drop(events);
        if added {
            self.any.notify_one();
        }
    }

    /// No panic can leave the events in an inconsistent state.
    fn lock(&self) -> MutexGuard<'_, FileEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl FileEvents ===

impl FileEvents {
    /// Adds an event. Whether it is relevant.
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
