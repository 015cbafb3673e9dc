//! A directory of Kubernetes manifests as a source: read once, then followed through inotify.
//!
//! ```text
//!   watch (inotify) ─▶ what happened ─▶ catalog (stat, read what changed, compare) ─▶ Update, Notice
//! ```
//!
//! Files may be symbolic links; what they lead to is read, but only what happens in the directory itself is noticed.

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

use self::catalog::{Catalog, Pass, Scope};
use self::notice::Notice;
use self::watch::{Happened, Watch};
use crate::object::{ObjectKind, SourceUpdate};

/// How long to gather what happens together, such as several files that one command writes.
const GATHER: Duration = Duration::from_millis(2);

/// How long a file must be gone before its objects are. Editors move the old file away before they write the new one.
const VANISH: Duration = Duration::from_millis(50);

/// How often to look for a directory that is gone: its parent may be gone as well, and with it whoever would say that it is back.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Follows one directory.
struct Follower {
    directory: PathBuf,
    watch: Watch,
    catalog: Catalog,
    /// Files that are gone, and when to believe it.
    vanishing: BTreeMap<OsString, Instant>,
    presence: Presence,
}

/// Whether the directory is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Present,
    /// What it held is kept.
    Lost,
}

/// Delivers what is in `directory` until the shutdown, or until nobody receives it.
pub(super) async fn run(directory: PathBuf, updates: mpsc::Sender<SourceUpdate>, mut shutdown: Shutdown) -> Result<()> {
    let directory =
        std::path::absolute(&directory).with_context(|| format!("manifests directory {}", directory.display()))?;
    let mut follower = Follower::new(directory)?;
    let follow = async {
        let mut next = follower.start().await?;
        // An error of `send` says that nobody receives any more.
        while send(&updates, next).await.is_ok() {
            next = follower.next().await?;
        }
        Ok(())
    };
    tokio::select! {
        followed = follow => followed,
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

// === impl Follower ===

impl Follower {
    fn new(directory: PathBuf) -> Result<Self> {
        let metadata = fs::metadata(&directory);
        let metadata = metadata.with_context(|| format!("manifests directory {}", directory.display()))?;
        ensure!(metadata.is_dir(), "manifests directory {}: not a directory", directory.display());
        Ok(Self {
            watch: Watch::new(directory.clone())
                .with_context(|| format!("manifests directory {}", directory.display()))?,
            catalog: Catalog::new(directory.clone()),
            vanishing: BTreeMap::new(),
            presence: Presence::Present,
            directory,
        })
    }

    /// Everything there is, one update for each kind.
    async fn start(&mut self) -> Result<Vec<SourceUpdate>> {
        let listed = self.refresh(Scope::Everything).await?;
        listed.with_context(|| format!("list manifests directory {}", self.directory.display()))?;
        Ok(ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, self.catalog.objects(kind))).collect())
    }

    /// Waits for the next changes. May be none that matter.
    async fn next(&mut self) -> Result<Vec<SourceUpdate>> {
        let vanished = self.vanishing.values().min().copied();
        tokio::select! {
            () = self.watch.any() => sleep(GATHER).await,
            () = sleep_until(vanished.unwrap_or_else(Instant::now)), if vanished.is_some() => {}
            () = sleep(LOOK_AGAIN), if self.presence == Presence::Lost => {}
        }
        let happened = self.watch.take();
        let mut everything = happened.anything || happened.directory;
        if happened.directory || self.presence == Presence::Lost {
            everything |= self.presence == Presence::Lost;
            self.find_directory();
        }
        let files = self.files(happened);
        match (self.presence, everything) {
            (Presence::Lost, _) => Ok(Vec::new()),
            (Presence::Present, true) => self.refresh_or_lose(Scope::Everything).await,
            (Presence::Present, false) => self.refresh_or_lose(files).await,
        }
    }

    /// Where to look after what has happened. A file that vanished is left alone until it has been gone for a while.
    fn files(&mut self, happened: Happened) -> Scope {
        let now = Instant::now();
        let Happened { mut changed, vanished, touched, .. } = happened;
        self.vanishing.retain(|name, _| !changed.contains(name));
        let gone = self.vanishing.extract_if(.., |_, believe| *believe <= now).map(|(name, _)| name).collect();
        self.vanishing.extend(vanished.into_iter().map(|name| (name, now + VANISH)));
        changed.extend(touched.into_iter().filter(|name| self.catalog.is_unreadable(name)));
        Scope::Files { changed, gone }
    }

    /// Attaches to the directory if there is one. One that has just been made is about to be filled: empty, it does not count.
    fn find_directory(&mut self) {
        let found = self.directory.is_dir() && self.watch.attach().is_ok();
        let usable = found && (self.catalog.is_empty() || self.catalog.any_manifest().unwrap_or(false));
        match (self.presence, usable) {
            (Presence::Present, false) => self.lose(),
            (Presence::Lost, true) => {
                info!(directory = ?self.directory, "manifests directory is back");
                self.presence = Presence::Present;
            }
            _ => {}
        }
    }

    fn lose(&mut self) {
        error!(directory = ?self.directory, "manifests directory is gone or empty, what it held stays in force");
        self.presence = Presence::Lost;
    }

    async fn refresh_or_lose(&mut self, scope: Scope) -> Result<Vec<SourceUpdate>> {
        let updates = self.refresh(scope).await?;
        Ok(updates.unwrap_or_else(|error| {
            warn!(%error, "cannot list the manifests directory");
            self.lose();
            Vec::new()
        }))
    }

    async fn refresh(&mut self, scope: Scope) -> Result<io::Result<Vec<SourceUpdate>>> {
        let mut catalog = std::mem::take(&mut self.catalog);
        let (catalog, pass) = spawn_blocking(move || {
            let pass = catalog.refresh(&scope);
            (catalog, pass)
        })
        .await
        .context("read manifests")?;
        self.catalog = catalog;
        Ok(pass.map(report))
    }
}

fn report(pass: Pass) -> Vec<SourceUpdate> {
    pass.notices.iter().for_each(Notice::log);
    debug!(files = pass.read, updates = pass.updates.len(), "read manifests");
    pass.updates
}

#[cfg(test)]
mod tests;
