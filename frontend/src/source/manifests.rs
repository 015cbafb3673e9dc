//! A directory of Kubernetes manifests as a source, for development, tests and `fairlead local`: read once, then
//! watched with inotify.
//!
//! ```text
//!   inotify ─▶ FileEvents ─▶ catalog (reads these files, compares their objects) ─▶ SourceUpdate
//! ```
//!
//! Files may be symbolic links: their targets are read, but only changes in the directory itself are detected. If the
//! directory is removed, its last objects stay; another one at its path is read after a restart.

mod catalog;
mod document;
mod events;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io, mem,
    path::{self, Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use notify::{INotifyWatcher, RecursiveMode, Watcher as _};
use proto::v1::Problem;
use runtime::{Shutdown, lock};
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
    time::sleep,
};
use tracing::{error, warn};

pub(crate) use self::document::parse_documents;
#[cfg(feature = "testing")]
pub(crate) use self::document::{ManifestFormat, parse_text};
use self::{
    catalog::{Catalog, FileProblem, new_problems},
    events::FileEvents,
};
use super::Freshness;
use crate::object::{ObjectKind, SourceUpdate};

/// How long to collect events that belong together, such as several files that one command writes.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// How long a file must be missing before its objects are deleted. Editors move the old file away before they write the
/// new one.
pub(super) const REMOVAL_DELAY: Duration = Duration::from_millis(50);

/// How many problems of files the status shows.
const MAX_LISTED: usize = 100;

struct DirectoryWatcher {
    directory: PathBuf,
    /// Stops watching when it is dropped.
    _inotify: INotifyWatcher,
    /// The events that the thread of inotify has collected.
    events: Arc<Mutex<FileEvents>>,
    /// Notified with each event after which files must be read.
    arrived: Arc<Notify>,
    catalog: Catalog,
    /// The problems of the files at the last refresh.
    problems: Vec<FileProblem>,
    removal_delay: Duration,
    /// Where the problems of the files are reported.
    freshness: Freshness,
}

/// Delivers the objects in `directory` and their changes until the shutdown, or until the receiver is dropped. The
/// objects of a file are deleted when it has been missing for `removal_delay`.
pub(super) async fn run(
    directory: PathBuf,
    removal_delay: Duration,
    updates: mpsc::Sender<SourceUpdate>,
    freshness: Freshness,
    mut shutdown: Shutdown,
) -> Result<()> {
    let watcher = DirectoryWatcher::new(&directory, removal_delay, freshness);
    let watcher = watcher.with_context(|| format!("manifests directory {}", directory.display()))?;
    tokio::select! {
        ended = watcher.deliver(&updates) => ended,
        () = shutdown.recv() => Ok(()),
        () = updates.closed() => Ok(()),
    }
}

impl DirectoryWatcher {
    fn new(directory: &Path, removal_delay: Duration, freshness: Freshness) -> Result<Self> {
        let directory = path::absolute(directory)?;
        ensure!(fs::metadata(&directory)?.is_dir(), "not a directory");

        let events = Arc::<Mutex<FileEvents>>::default();
        let arrived = Arc::<Notify>::default();
        let handler = collector(events.clone(), arrived.clone());
        let mut inotify = INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?;
        inotify.watch(&directory, RecursiveMode::NonRecursive).context("watch the directory")?;

        let catalog = Catalog::new(directory.clone());
        let problems = Vec::new();
        Ok(Self { directory, _inotify: inotify, events, arrived, catalog, problems, removal_delay, freshness })
    }

    /// Delivers all objects and then their changes, until the receiver is dropped.
    async fn deliver(mut self, updates: &mpsc::Sender<SourceUpdate>) -> Result<()> {
        let mut next = self.start().await?;
        loop {
            // Those of a file are of one commit, as far as the queue has room: a Service comes with its endpoints.
            let mut left = next.into_iter();
            while left.len() > 0 {
                let room = left.len().min(updates.max_capacity());
                let Ok(permits) = updates.reserve_many(room).await else { return Ok(()) };
                permits.zip(left.by_ref()).for_each(|(permit, update)| permit.send(update));
            }
            next = self.next().await?;
        }
    }

    /// All objects, one update for each kind.
    async fn start(&mut self) -> Result<Vec<SourceUpdate>> {
        let listed = self.list().await;
        let names = listed.with_context(|| format!("list manifests directory {}", self.directory.display()))?;
        self.refresh(names, BTreeSet::new()).await?;
        Ok(ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, self.catalog.objects(kind))).collect())
    }

    /// Waits for events, and returns the updates, perhaps none.
    async fn next(&mut self) -> Result<Vec<SourceUpdate>> {
        self.arrived.notified().await;
        sleep(DEBOUNCE).await;
        let FileEvents { mut files, mut removed, rescan } = mem::take(&mut *lock(&self.events));

        if rescan {
            // Files may have been removed without an event.
            removed.extend(self.catalog.names().cloned());
        }
        removed.retain(|name| self.catalog.is_missing(name));
        if !removed.is_empty() {
            sleep(self.removal_delay).await;
        }

        if !self.directory.exists() {
            error!(directory = ?self.directory, "manifests directory removed, keeping its last objects");
            return Ok(Vec::new());
        }
        if rescan {
            match self.list().await {
                Ok(names) => files = names,
                Err(error) => {
                    let directory = &self.directory;
                    warn!(%error, ?directory, "cannot list the manifests directory, keeping its last objects");
                    // The next event tries again.
                    lock(&self.events).rescan = true;
                    return Ok(Vec::new());
                }
            }
        }
        self.refresh(files, removed).await
    }

    /// The names in the directory now.
    async fn list(&self) -> io::Result<BTreeSet<OsString>> {
        let mut entries = tokio::fs::read_dir(&self.directory).await?;
        let mut names = BTreeSet::new();
        while let Some(entry) = entries.next_entry().await? {
            names.insert(entry.file_name());
        }
        Ok(names)
    }

    /// Reads files, reports their problems, and returns the updates. An error ends the source: the task panicked.
    async fn refresh(&mut self, names: BTreeSet<OsString>, removed: BTreeSet<OsString>) -> Result<Vec<SourceUpdate>> {
        let mut catalog = mem::take(&mut self.catalog);
        let refresh = spawn_blocking(move || {
            let updates = catalog.refresh(&names, &removed);
            (catalog, updates)
        });
        let (catalog, updates) = refresh.await.context("read manifests")?;
        self.catalog = catalog;

        self.report_problems();
        Ok(updates)
    }

    /// Logs the problems that are new, and shows the first ones in the status.
    fn report_problems(&mut self) {
        let problems = self.catalog.problems();
        for (file, problem) in new_problems(&self.problems, &problems) {
            warn!(?file, %problem, "manifest is not used, or only in part");
        }
        self.freshness.set_file_problems(problems.iter().take(MAX_LISTED).map(as_problem).collect());
        self.problems = problems;
    }
}

fn as_problem((file, message): &FileProblem) -> Problem {
    let object = format!("manifest {}", file.display());
    Problem { object, field: String::new(), message: message.clone() }
}

/// Collects events in the thread of inotify.
fn collector(events: Arc<Mutex<FileEvents>>, arrived: Arc<Notify>) -> impl FnMut(notify::Result<notify::Event>) {
    move |event| {
        if lock(&events).collect(event) {
            arrived.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
