//! A directory of Kubernetes manifests as a source: read once, then watched with inotify.
//!
//! ```text
//!   inotify ─▶ FileEvents ─▶ catalog (stat, read changed files, compare) ─▶ SourceUpdate, FileNotice
//! ```
//!
//! Files may be symbolic links: their targets are read, but only changes in the directory itself are detected.

mod catalog;
mod document;
mod events;
mod notice;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io, mem,
    path::{self, Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use notify::{INotifyWatcher, RecursiveMode, Watcher as _};
use runtime::Shutdown;
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, error, info, warn};

use self::{
    catalog::{Catalog, RefreshResult, RefreshScope},
    events::FileEvents,
    notice::FileNotice,
};
use crate::object::{ObjectKind, SourceUpdate};

/// How long to collect events that belong together, such as several files that one command writes.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// How long a file must be missing before its objects are deleted. Editors move the old file away before they write the
/// new one.
pub(super) const REMOVAL_DELAY: Duration = Duration::from_millis(50);

/// How often to check for a missing directory: its parent may be missing as well, and then inotify reports nothing.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Watches one directory.
struct DirectoryWatcher {
    directory: PathBuf,
    /// The watch on the directory, and on its parent, which reports when the directory itself is created, removed or
    /// replaced.
    inotify: INotifyWatcher,
    /// What inotify has reported: its thread adds to it.
    events: watch::Sender<FileEvents>,
    any_event: watch::Receiver<FileEvents>,
    catalog: Catalog,
    removal_delay: Duration,
    /// Missing files, and when their objects are deleted.
    missing: BTreeMap<OsString, Instant>,
    /// Whether the directory is missing, or empty after it was replaced. The objects stay.
    lost: bool,
}

/// The objects in the text of a file.
#[cfg(feature = "testing")]
pub(crate) fn parse_text(text: &str, is_json: bool) -> Result<Vec<crate::object::ParsedObject>, String> {
    use document::{FileContents, ManifestFormat};
    let format = if is_json { ManifestFormat::Json } else { ManifestFormat::Yaml };
    FileContents::read(text, format).map(|contents| contents.objects.into_values().collect())
}

/// Delivers the objects in `directory` and their changes until the shutdown, or until the receiver is dropped. The
/// objects of a file are deleted when it has been missing for `removal_delay`.
pub(super) async fn run(
    directory: PathBuf,
    removal_delay: Duration,
    updates: mpsc::Sender<SourceUpdate>,
    mut shutdown: Shutdown,
) -> Result<()> {
    let watcher = DirectoryWatcher::new(&directory, removal_delay);
    let mut watcher = watcher.with_context(|| format!("manifests directory {}", directory.display()))?;
    let watch = async {
        let mut next = watcher.start().await?;
        loop {
            for update in next {
                if updates.send(update).await.is_err() {
                    // The receiver was dropped.
                    return Ok(());
                }
            }
            next = watcher.next().await?;
        }
    };
    tokio::select! {
        ended = watch => ended,
        () = shutdown.recv() => Ok(()),
        () = updates.closed() => Ok(()),
    }
}

// === impl DirectoryWatcher ===

impl DirectoryWatcher {
    fn new(directory: &Path, removal_delay: Duration) -> Result<Self> {
        let directory = path::absolute(directory)?;
        ensure!(fs::metadata(&directory)?.is_dir(), "not a directory");
        let events = watch::Sender::<FileEvents>::default();
        let handler = {
            let (directory, events) = (directory.clone(), events.clone());
            move |event| {
                events.send_if_modified(|events| events.collect(&directory, event));
            }
        };
        let mut watcher = Self {
            inotify: INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?,
            any_event: events.subscribe(),
            events,
            catalog: Catalog::new(directory.clone()),
            removal_delay,
            missing: BTreeMap::new(),
            lost: false,
            directory,
        };
        watcher.attach()?;
        Ok(watcher)
    }

    /// Watches the directory that is at the path now. First its parent, so that no replacement in between is missed.
    fn attach(&mut self) -> Result<()> {
        if let Some(parent) = self.directory.parent()
            && let Err(error) = reattach(&mut self.inotify, parent)
        {
            warn!(%error, "cannot watch the parent directory, a replaced manifests directory will not be detected");
        }
        reattach(&mut self.inotify, &self.directory).context("watch the directory")
    }

    /// All objects, one update for each kind.
    async fn start(&mut self) -> Result<Vec<SourceUpdate>> {
        let listed = self.refresh(RefreshScope::Everything).await?;
        listed.with_context(|| format!("list manifests directory {}", self.directory.display()))?;
        Ok(ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, self.catalog.objects(kind))).collect())
    }

    /// Waits for events, and returns the updates, perhaps none.
    async fn next(&mut self) -> Result<Vec<SourceUpdate>> {
        let next_removal = self.missing.values().min().copied();
        tokio::select! {
            // Fails only without the sender, which is here.
            _ = self.any_event.changed() => sleep(DEBOUNCE).await,
            () = sleep_until(next_removal.unwrap_or_else(Instant::now)), if next_removal.is_some() => {}
            () = sleep(DIRECTORY_CHECK_INTERVAL), if self.lost => {}
        }
        let mut events = FileEvents::default();
        self.events.send_if_modified(|collected| {
            events = mem::take(collected);
            false
        });
        let everything = events.rescan || events.directory || self.lost;
        if events.directory || self.lost {
            self.find_directory();
        }
        let files = self.files(events);
        if self.lost {
            return Ok(Vec::new());
        }
        let updates = self.refresh(if everything { RefreshScope::Everything } else { files }).await?;
        Ok(updates.unwrap_or_else(|error| {
            warn!(%error, directory = ?self.directory, "cannot list the manifests directory");
            self.lose();
            Vec::new()
        }))
    }

    /// Which files to read after events. A missing file is removed after `removal_delay`.
    fn files(&mut self, events: FileEvents) -> RefreshScope {
        let now = Instant::now();
        let FileEvents { mut changed, removed, touched, .. } = events;
        self.missing.retain(|name, _| !changed.contains(name));
        let removed_files = self.missing.extract_if(.., |_, due| *due <= now).map(|(name, _)| name).collect();
        self.missing.extend(removed.into_iter().map(|name| (name, now + self.removal_delay)));
        changed.extend(touched.into_iter().filter(|name| self.catalog.is_unreadable(name)));
        RefreshScope::Files { changed, removed: removed_files }
    }

    /// Watches the directory if it exists. A new one that is still empty is about to be filled, and counts as missing.
    fn find_directory(&mut self) {
        let found = self.directory.is_dir() && self.attach().is_ok();
        let usable = found && (self.catalog.is_empty() || self.catalog.any_manifest().unwrap_or(false));
        if !usable && !self.lost {
            self.lose();
        } else if usable && self.lost {
            info!(directory = ?self.directory, "manifests directory found again");
            self.lost = false;
        }
    }

    fn lose(&mut self) {
        error!(directory = ?self.directory, "manifests directory missing or empty, keeping its last objects");
        self.lost = true;
    }

    /// Reads files and logs what has changed. The inner error: the directory cannot be listed.
    async fn refresh(&mut self, scope: RefreshScope) -> Result<io::Result<Vec<SourceUpdate>>> {
        let mut catalog = mem::take(&mut self.catalog);
        let refresh = spawn_blocking(move || {
            let refreshed = catalog.refresh(scope);
            (catalog, refreshed)
        });
        let (catalog, refreshed) = refresh.await.context("read manifests")?;
        self.catalog = catalog;
        Ok(refreshed.map(|RefreshResult { updates, notices, read }| {
            notices.iter().for_each(FileNotice::log);
            debug!(files = read, updates = updates.len(), "read manifests");
            updates
        }))
    }
}

fn reattach(inotify: &mut INotifyWatcher, path: &Path) -> notify::Result<()> {
    if let Err(error) = inotify.unwatch(path) {
        debug!(?path, %error, "directory was not watched");
    }
    inotify.watch(path, RecursiveMode::NonRecursive)
}

#[cfg(test)]
mod tests;
