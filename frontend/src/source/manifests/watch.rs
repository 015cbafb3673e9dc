//! inotify events of a directory, gathered until somebody asks for them.
//!
//! A file counts as changed when its writer has closed it or renamed it into place, never while it is being written.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use notify::event::{AccessKind, AccessMode, EventKind, MetadataKind, ModifyKind, RenameMode};
use notify::{Event, INotifyWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::document::Format;

/// The watch on a directory, and on its parent: there the directory itself appears and disappears.
pub(super) struct Watch {
    directory: PathBuf,
    watcher: INotifyWatcher,
    gathered: Arc<Gathered>,
}

/// What has happened since the last [`Watch::take`].
#[derive(Debug, Default)]
pub(super) struct Happened {
    /// Files whose new contents are complete.
    pub(super) changed: BTreeSet<OsString>,
    /// Files that are gone, for good or because something takes their place just now.
    pub(super) vanished: BTreeSet<OsString>,
    /// Files whose permissions or times were set.
    pub(super) touched: BTreeSet<OsString>,
    /// Anything may have changed: events were lost, or a symbolic link changed that others may lead through.
    pub(super) anything: bool,
    /// The directory itself was removed, made or replaced.
    pub(super) directory: bool,
}

#[derive(Default)]
struct Gathered {
    happened: Mutex<Happened>,
    any: Notify,
}

// === impl Watch ===

impl Watch {
    /// Starts to watch a directory that exists. `directory` must be absolute.
    pub(super) fn new(directory: PathBuf) -> Result<Self> {
        let gathered = Arc::<Gathered>::default();
        let handler = {
            let (directory, gathered) = (directory.clone(), gathered.clone());
            move |event| gathered.add(&directory, event)
        };
        let watcher = INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?;
        let mut watch = Self { directory, watcher, gathered };
        watch.attach()?;
        Ok(watch)
    }

    /// Attaches to the directory that now is at the path, and first to its parent, so that no replacement slips through between.
    pub(super) fn attach(&mut self) -> Result<()> {
        if let Some(parent) = self.directory.parent().map(Path::to_owned)
            && let Err(error) = self.reattach(&parent)
        {
            warn!(%error, "cannot watch the parent directory; a manifests directory that is replaced goes unnoticed");
        }
        let directory = self.directory.clone();
        self.reattach(&directory).context("watch the directory")
    }

    fn reattach(&mut self, path: &Path) -> notify::Result<()> {
        if let Err(error) = self.watcher.unwatch(path) {
            debug!(?path, %error, "was not attached");
        }
        self.watcher.watch(path, RecursiveMode::NonRecursive)
    }

    /// Waits until something has happened.
    pub(super) async fn any(&self) {
        self.gathered.any.notified().await;
    }

    /// Takes what has been gathered.
    pub(super) fn take(&self) -> Happened {
        std::mem::take(&mut *self.gathered.lock())
    }
}

// === impl Gathered ===

impl Gathered {
    /// Called on the thread of the watcher.
    fn add(&self, directory: &Path, event: notify::Result<Event>) {
        let mut happened = self.lock();
        let mut added = true;
        match event {
            Ok(event) if !event.need_rescan() => {
                added = false;
                for path in &event.paths {
                    added |= happened.add(directory, path, event.kind);
                }
            }
            Ok(_) => happened.anything = true,
            Err(error) => {
                warn!(%error, "inotify failed, everything is looked at again");
                happened.anything = true;
            }
        }
        drop(happened);
        if added {
            self.any.notify_one();
        }
    }

    /// A panic elsewhere leaves nothing half done here.
    fn lock(&self) -> MutexGuard<'_, Happened> {
        self.happened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Happened ===

impl Happened {
    /// Says whether the event is of interest.
    fn add(&mut self, directory: &Path, path: &Path, kind: EventKind) -> bool {
        let vanishes = matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)));
        let appears = matches!(kind, EventKind::Modify(ModifyKind::Name(RenameMode::To)))
            || matches!(kind, EventKind::Create(_)) && is_complete(path);
        let completes = appears || kind == EventKind::Access(AccessKind::Close(AccessMode::Write));
        let touched = kind == EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        if path == directory {
            let replaced = vanishes || appears;
            self.directory |= replaced;
            return replaced;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        if parent != directory || !(vanishes || completes || touched) {
            return false;
        }
        if name.to_str().and_then(Format::of).is_none() {
            // A volume with a ConfigMap swaps the link `..data`, through which all its files lead.
            let swapped = appears && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
            self.anything |= swapped;
            return swapped;
        }
        if vanishes {
            self.changed.remove(name);
            self.vanished.insert(name.to_owned());
        } else if completes {
            self.vanished.remove(name);
            self.changed.insert(name.to_owned());
        } else {
            self.touched.insert(name.to_owned());
        }
        true
    }
}

/// Whether what was just created is all there. A new file is not: its writer has yet to close it.
fn is_complete(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.nlink() > 1)
}
