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
use runtime::{Shutdown, lock};
use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_blocking,
    time::sleep,
};
use tracing::{error, warn};

#[cfg(feature = "testing")]
pub(crate) use self::document::ManifestFormat;
use self::{
    catalog::{Catalog, Refreshed},
    events::FileEvents,
};
use super::Freshness;
use crate::object::{ObjectKind, ObjectProblem, ParsedObject, SourceUpdate};

/// How long to collect events that belong together, such as several files that one command writes.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// How long a file must be missing before its objects are deleted. Editors move the old file away before they write the
/// new one.
pub(super) const REMOVAL_DELAY: Duration = Duration::from_millis(50);

struct DirectoryWatcher {
    directory: PathBuf,
    /// Stops watching when it is dropped.
    _inotify: INotifyWatcher,
    /// What inotify has reported: its thread adds to it.
    events: Arc<Mutex<FileEvents>>,
    /// Notified when that is relevant.
    arrived: Arc<Notify>,
    catalog: Catalog,
    removal_delay: Duration,
    /// Where the problems of the files are reported.
    freshness: Freshness,
}

/// The objects in the text of a file.
#[cfg(feature = "testing")]
pub(crate) fn parse_text(text: &str, format: ManifestFormat) -> Result<Vec<ParsedObject>, String> {
    document::FileContents::read(text, format).map(|contents| contents.objects.into_values().collect())
}

/// The objects in documents, and which documents are not used, and why: also those that are ignored as a whole.
pub(crate) fn parse_documents(documents: Vec<Value>) -> (Vec<ParsedObject>, Vec<String>) {
    let numbered = documents.into_iter().enumerate().map(|(n, document)| (format!("document {}", n + 1), document));
    let document::FileContents { objects, problems: mut ignored } = document::FileContents::of(numbered);
    let mut used = Vec::with_capacity(objects.len());
    for parsed in objects.into_values() {
        let ParsedObject { kind, name, object, problems, .. } = &parsed;
        let is_ignored = object.is_none() && !problems.is_empty();
        if is_ignored {
            let fields = problems.iter().map(|ObjectProblem { field, message }| format!("{field}: {message}"));
            ignored.push(format!("{kind} {name}: {}", fields.collect::<Vec<_>>().join(", ")));
        }
        // The API server would reject such a Service. A slice of no Service it accepts: the one before is gone then.
        if !is_ignored || *kind == ObjectKind::EndpointSlice {
            used.push(parsed);
        }
    }
    (used, ignored)
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
    fn new(directory: &Path, removal_delay: Duration, freshness: Freshness) -> Result<Self> {
        let directory = path::absolute(directory)?;
        ensure!(fs::metadata(&directory)?.is_dir(), "not a directory");
        let (events, arrived) = (Arc::<Mutex<FileEvents>>::default(), Arc::<Notify>::default());
        let handler = {
            let (events, arrived) = (events.clone(), arrived.clone());
            move |event| {
                if lock(&events).collect(event) {
                    arrived.notify_one();
                }
            }
        };
        let mut inotify = INotifyWatcher::new(handler, notify::Config::default()).context("start inotify")?;
        inotify.watch(&directory, RecursiveMode::NonRecursive).context("watch the directory")?;
        let catalog = Catalog::new(directory.clone());
        Ok(Self { directory, _inotify: inotify, events, arrived, catalog, removal_delay, freshness })
    }

    /// All objects, one update for each kind.
    async fn start(&mut self) -> Result<Vec<SourceUpdate>> {
        let listed = self.refresh(None, BTreeSet::new()).await?;
        listed.with_context(|| format!("list manifests directory {}", self.directory.display()))?;
        Ok(ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, self.catalog.objects(kind))).collect())
    }

    /// Waits for events, and returns the updates, perhaps none.
    async fn next(&mut self) -> Result<Vec<SourceUpdate>> {
        self.arrived.notified().await;
        sleep(DEBOUNCE).await;
        let FileEvents { files, mut removed, rescan } = mem::take(&mut *lock(&self.events));
        if rescan {
            // Those that are missing were removed.
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
        Ok(self.refresh((!rescan).then_some(files), removed).await?.unwrap_or_else(|error| {
            warn!(%error, directory = ?self.directory, "cannot list the manifests directory, keeping its last objects");
            // With the next event.
            lock(&self.events).rescan = true;
            Vec::new()
        }))
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
        self.freshness.set_file_problems(self.catalog.problems());
        Ok(refreshed.map(|Refreshed { updates, problems }| {
            problems.iter().for_each(|(file, problem)| warn!(?file, %problem, "manifest not used, or in part"));
            updates
        }))
    }
}

#[cfg(test)]
mod tests;
