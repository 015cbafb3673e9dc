//! A directory of Kubernetes manifests as a source: read once, then watched with inotify.
//!
//! ```text
//!   watch (inotify) ─▶ FileEvents ─▶ catalog (stat, read changed files, compare) ─▶ SourceUpdate, FileNotice
//! ```
//!
//! Files may be symbolic links: their targets are read, but only changes in the directory itself are detected.

mod catalog;
mod document;
mod notice;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use runtime::Shutdown;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use self::catalog::{Catalog, RefreshResult, RefreshScope};
use self::notice::FileNotice;
use self::watch::{DirectoryWatch, FileEvents};
use crate::object::{ObjectKind, SourceUpdate};

/// How long to collect events that belong together, such as several files that one command writes.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// How long a file must be missing before its objects are deleted. Editors move the old file away before they write the
/// new one.
const REMOVAL_DELAY: Duration = Duration::from_millis(50);

/// How often to check for a missing directory: its parent may be missing as well, and then inotify reports nothing.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Watches one directory.
struct DirectoryWatcher {
    directory: PathBuf,
    watch: DirectoryWatch,
    catalog: Catalog,
    /// Missing files, and when their objects are deleted.
    missing: BTreeMap<OsString, Instant>,
    state: DirectoryState,
}

/// Whether the directory exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryState {
    Present,
    /// Missing, or empty after it was replaced. The objects stay.
    Lost,
}

/// Delivers the objects in `directory` and their changes until the shutdown, or until the receiver is dropped.
pub(super) async fn run(directory: PathBuf, updates: mpsc::Sender<SourceUpdate>, mut shutdown: Shutdown) -> Result<()> {
    let directory =
        std::path::absolute(&directory).with_context(|| format!("manifests directory {}", directory.display()))?;
    let mut watcher = DirectoryWatcher::new(directory)?;
    let watch = async {
        let mut next = watcher.start().await?;
        // `send` fails when the receiver has been dropped.
        while send(&updates, next).await.is_ok() {
            next = watcher.next().await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = watch => ended,
        () = shutdown.recv() => Ok(()),
        () = updates.closed() => Ok(()),
    }
}

async fn send(
    updates: &mpsc::Sender<SourceUpdate>,
    next: Vec<SourceUpdate>,
) -> Result<(), mpsc::error::SendError<SourceUpdate>> {
    for update in next {
        updates.send(update).await?;
    }
    Ok(())
}

// === impl DirectoryWatcher ===

impl DirectoryWatcher {
    fn new(directory: PathBuf) -> Result<Self> {
        let metadata = fs::metadata(&directory);
        let metadata = metadata.with_context(|| format!("manifests directory {}", directory.display()))?;
        ensure!(metadata.is_dir(), "manifests directory {}: not a directory", directory.display());
        Ok(Self {
            watch: DirectoryWatch::new(directory.clone())
                .with_context(|| format!("manifests directory {}", directory.display()))?,
            catalog: Catalog::new(directory.clone()),
            missing: BTreeMap::new(),
            state: DirectoryState::Present,
            directory,
        })
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
            () = self.watch.any() => sleep(DEBOUNCE).await,
            () = sleep_until(next_removal.unwrap_or_else(Instant::now)), if next_removal.is_some() => {}
            () = sleep(DIRECTORY_CHECK_INTERVAL), if self.state == DirectoryState::Lost => {}
        }
        let events = self.watch.take();
        let mut everything = events.rescan || events.directory;
        if events.directory || self.state == DirectoryState::Lost {
            everything |= self.state == DirectoryState::Lost;
            self.find_directory();
        }
        let files = self.files(events);
        match (self.state, everything) {
            (DirectoryState::Lost, _) => Ok(Vec::new()),
            (DirectoryState::Present, true) => self.refresh_or_lose(RefreshScope::Everything).await,
            (DirectoryState::Present, false) => self.refresh_or_lose(files).await,
        }
    }

    /// Which files to read after events. A missing file is removed after `REMOVAL_DELAY`.
    fn files(&mut self, events: FileEvents) -> RefreshScope {
        let now = Instant::now();
        let FileEvents { mut changed, removed, touched, .. } = events;
        self.missing.retain(|name, _| !changed.contains(name));
        let removed_files = self.missing.extract_if(.., |_, due| *due <= now).map(|(name, _)| name).collect();
        self.missing.extend(removed.into_iter().map(|name| (name, now + REMOVAL_DELAY)));
        changed.extend(touched.into_iter().filter(|name| self.catalog.is_unreadable(name)));
        RefreshScope::Files { changed, removed: removed_files }
    }

    /// Watches the directory if it exists. A new one that is still empty is about to be filled, and counts as missing.
    fn find_directory(&mut self) {
        let found = self.directory.is_dir() && self.watch.attach().is_ok();
        let usable = found && (self.catalog.is_empty() || self.catalog.any_manifest().unwrap_or(false));
        match (self.state, usable) {
            (DirectoryState::Present, false) => self.lose(),
            (DirectoryState::Lost, true) => {
                info!(directory = ?self.directory, "manifests directory found again");
                self.state = DirectoryState::Present;
            }
            _ => {}
        }
    }

    fn lose(&mut self) {
        error!(directory = ?self.directory, "manifests directory missing or empty, keeping its last objects");
        self.state = DirectoryState::Lost;
    }

    async fn refresh_or_lose(&mut self, scope: RefreshScope) -> Result<Vec<SourceUpdate>> {
        let updates = self.refresh(scope).await?;
        Ok(updates.unwrap_or_else(|error| {
            warn!(%error, directory = ?self.directory, "cannot list the manifests directory");
            self.lose();
            Vec::new()
        }))
    }

    async fn refresh(&mut self, scope: RefreshScope) -> Result<io::Result<Vec<SourceUpdate>>> {
        let mut catalog = std::mem::take(&mut self.catalog);
        let (catalog, refreshed) = spawn_blocking(move || {
            let refreshed = catalog.refresh(&scope);
            (catalog, refreshed)
        })
        .await
        .context("read manifests")?;
        self.catalog = catalog;
        Ok(refreshed.map(log_refresh))
    }
}

fn log_refresh(refreshed: RefreshResult) -> Vec<SourceUpdate> {
    refreshed.notices.iter().for_each(FileNotice::log);
    debug!(files = refreshed.read, updates = refreshed.updates.len(), "read manifests");
    refreshed.updates
}

#[cfg(test)]
mod tests;
