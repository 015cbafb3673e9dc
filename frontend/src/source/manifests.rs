//! A directory of Kubernetes manifests as a source, for development, tests and `fairlead local`: read once, then
//! watched with inotify.
//!
//! ```text
//!   inotify ─▶ FileEvents ─▶ catalog (reads these files, compares their objects) ─▶ SourceUpdate
//! ```
//!
//! Files may be symbolic links: their targets are read, but only changes in the directory itself are detected. If it is
//! a symbolic link that is replaced, or is removed and created again, the new one is read within two seconds.

mod catalog;
mod document;
mod events;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io, mem,
    os::unix::fs::MetadataExt as _,
    path::{self, Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use notify::{INotifyWatcher, RecursiveMode, Watcher as _};
use runtime::{Shutdown, failure::Repeated, lock, warn_if_news};
use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval, sleep},
};
use tracing::{error, info, warn};

#[cfg(feature = "testing")]
pub(crate) use self::document::ManifestFormat;
use self::{
    catalog::{Catalog, Refreshed},
    events::FileEvents,
};
use crate::object::{ObjectKind, ParsedObject, SourceUpdate};

/// How long to collect events that belong together, such as several files that one command writes.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// How long a file must be missing before its objects are deleted. Editors move the old file away before they write the
/// new one.
pub(super) const REMOVAL_DELAY: Duration = Duration::from_millis(50);

/// How often files that could not be read, and a directory that could not be listed or was replaced, are read again.
const RETRY: Duration = Duration::from_secs(1);

struct DirectoryWatcher {
    directory: PathBuf,
    inotify: INotifyWatcher,
    /// The device and inode of the directory that is watched; `None`: it was removed.
    watched: Option<(u64, u64)>,
    /// What inotify has reported: its thread adds to it.
    events: Arc<Mutex<FileEvents>>,
    /// Notified when that is relevant.
    arrived: Arc<Notify>,
    catalog: Catalog,
    removal_delay: Duration,
    retries: Interval,
    /// Of watching and listing the directory.
    failures: Repeated,
}

/// The objects in the text of a file.
#[cfg(feature = "testing")]
pub(crate) fn parse_text(text: &str, format: ManifestFormat) -> Result<Vec<ParsedObject>, String> {
    document::FileContents::read(text, format).map(|contents| contents.objects.into_values().collect())
}

/// The objects in documents, and which documents are not used, and why.
pub(crate) fn parse_documents(documents: Vec<Value>) -> (Vec<ParsedObject>, Vec<String>) {
    let numbered = documents.into_iter().enumerate().map(|(n, document)| (format!("document {}", n + 1), document));
    let document::FileContents { objects, problems } = document::FileContents::of(numbered);
    (objects.into_values().collect(), problems)
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

impl DirectoryWatcher {
    fn new(directory: &Path, removal_delay: Duration) -> Result<Self> {
        let directory = path::absolute(directory)?;
        let metadata = fs::metadata(&directory)?;
        ensure!(metadata.is_dir(), "not a directory");
        let watched = Some((metadata.dev(), metadata.ino()));
        let (events, arrived) = (Arc::<Mutex<FileEvents>>::default(), Arc::<Notify>::default());
        let handler = {
            let (directory, events, arrived) = (directory.clone(), events.clone(), arrived.clone());
            move |event| {
                if lock(&events).collect(&directory, event) {
                    arrived.notify_one();
                }
            }
        };
        let mut inotify = INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?;
        inotify.watch(&directory, RecursiveMode::NonRecursive).context("watch the directory")?;
        let mut retries = interval(RETRY);
        retries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            inotify,
            watched,
            events,
            arrived,
            catalog: Catalog::new(directory.clone()),
            removal_delay,
            retries,
            failures: Repeated::default(),
            directory,
        })
    }

    /// All objects, one update for each kind.
    async fn start(&mut self) -> Result<Vec<SourceUpdate>> {
        let listed = self.refresh(None, BTreeSet::new()).await?;
        listed.with_context(|| format!("list manifests directory {}", self.directory.display()))?;
        Ok(ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, self.catalog.objects(kind))).collect())
    }

    /// Waits for events, and returns the updates, perhaps none.
    async fn next(&mut self) -> Result<Vec<SourceUpdate>> {
        tokio::select! {
            () = self.arrived.notified() => sleep(DEBOUNCE).await,
            _ = self.retries.tick() => {
                self.follow();
                lock(&self.events).files.extend(self.catalog.unreadable.iter().cloned());
            }
        }
        if self.is_any_missing() {
            sleep(self.removal_delay).await;
        }
        let mut events = mem::take(&mut *lock(&self.events));
        self.add_missing(&mut events);
        if events.is_gone || !self.directory.exists() {
            if self.watched.take().is_some() {
                let removed = "manifests directory removed, keeping its last objects until it is back";
                error!(directory = ?self.directory, "{removed}");
                // Fails if it is not watched any more.
                let _ = self.inotify.unwatch(&self.directory);
            }
            return Ok(Vec::new());
        }
        let removed = self.take_aged(events.removed);
        if !events.rescan && events.files.is_empty() && removed.is_empty() {
            return Ok(Vec::new());
        }
        match self.refresh((!events.rescan).then_some(events.files), removed).await? {
            Ok(updates) => {
                if self.failures.recovered().is_some() {
                    info!(directory = ?self.directory, "manifests directory is listed again");
                }
                Ok(updates)
            }
            Err(error) => {
                // For the next turn, which this does not begin.
                lock(&self.events).rescan = true;
                let occurrence = self.failures.failed(&error.to_string());
                let failing = "cannot list the manifests directory, keeping its last objects and retrying";
                warn_if_news!(occurrence, %error, directory = ?self.directory, "{failing}");
                Ok(Vec::new())
            }
        }
    }

    /// Watches and reads the directory that is at the path now, if that is another one.
    fn follow(&mut self) {
        let Ok(metadata) = fs::metadata(&self.directory) else { return };
        let now = Some((metadata.dev(), metadata.ino()));
        if self.watched == now {
            return;
        }
        // Fails if it was removed.
        let _ = self.inotify.unwatch(&self.directory);
        match self.inotify.watch(&self.directory, RecursiveMode::NonRecursive) {
            Ok(()) => {
                info!(directory = ?self.directory, "manifests directory replaced, reading all files again");
                self.watched = now;
                // It may still be filled.
                let filled_by = Instant::now() + RETRY;
                let mut events = lock(&self.events);
                events.rescan = true;
                events.removed.extend(self.missing().map(|name| (name.clone(), filled_by)));
            }
            Err(error) => {
                let occurrence = self.failures.failed(&error.to_string());
                let failing = "cannot watch the manifests directory, retrying";
                warn_if_news!(occurrence, %error, directory = ?self.directory, "{failing}");
            }
        }
    }

    /// Whether a file that was removed is missing. What was removed before all files are read again is not known: all
    /// that are missing.
    fn is_any_missing(&self) -> bool {
        let mut events = lock(&self.events);
        self.add_missing(&mut events);
        events.removed.keys().any(|name| self.catalog.is_missing(name))
    }

    /// Before all files are read again: those that are missing were removed.
    fn add_missing(&self, events: &mut FileEvents) {
        if events.rescan {
            for name in self.missing() {
                events.removed.entry(name.clone()).or_insert_with(Instant::now);
            }
        }
    }

    fn missing(&self) -> impl Iterator<Item = &OsString> {
        self.catalog.names().filter(|name| self.catalog.is_missing(name))
    }

    /// The files that were removed long enough ago. Others that are missing wait for the next turn.
    fn take_aged(&self, removed: BTreeMap<OsString, Instant>) -> BTreeSet<OsString> {
        let (aged, young): (BTreeMap<_, _>, BTreeMap<_, _>) =
            removed.into_iter().partition(|(_, at)| at.elapsed() >= self.removal_delay);
        for (name, at) in young.into_iter().filter(|(name, _)| self.catalog.is_missing(name)) {
            lock(&self.events).removed.entry(name).or_insert(at);
            self.arrived.notify_one();
        }
        aged.into_keys().collect()
    }

    /// Reads files, all if there are no names, and logs their problems. The inner error: the directory cannot be
    /// listed.
    async fn refresh(
        &mut self,
        names: Option<BTreeSet<OsString>>,
        removed: BTreeSet<OsString>,
    ) -> Result<io::Result<Vec<SourceUpdate>>> {
        let mut catalog = mem::take(&mut self.catalog);
        let refresh = spawn_blocking(move || {
            let refreshed = catalog.refresh(names, &removed);
            (catalog, refreshed)
        });
        let (catalog, refreshed) = refresh.await.context("read manifests")?;
        self.catalog = catalog;
        Ok(refreshed.map(|Refreshed { updates, problems }| {
            problems.iter().for_each(|(file, problem)| warn!(?file, %problem, "manifest not used, or in part"));
            updates
        }))
    }
}

#[cfg(test)]
mod tests;
