//! The last committed state in a file, so that a node starts with it while no frontend is reachable, and resumes its
//! stream.
//!
//! ```text
//!   Replica ──▶ the newest state ──▶ task: one write at a time, none before its time ──▶ Storage: a thread ──▶ file
//! ```
//!
//! The file is a snapshot, and is replaced as a whole: a state that is not written yet gives way to a newer one. So
//! neither a failure of the disk nor a disk that hangs delays anything but the file. A file may therefore be older than
//! the kernel: see [`Backend::is_programmed`](crate::Backend::is_programmed).

pub(crate) mod snapshot;
mod storage;

use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use proto::model::{Epoch, KindVersions, Revision, SourceVersion};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::{
    sync::watch::{self, error::RecvError},
    task::JoinSet,
    time::timeout,
};
use tracing::{info, warn};

use crate::{NodeState, disk};
pub use storage::Storage;

/// The default path of the state file.
pub(crate) const DEFAULT_STATE_FILE: &str = "/var/lib/fairlead/state";

/// Where the kernel tells its boot: a UUID, the same in all namespaces.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The shortest time between two writes.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// The most bytes per second: 2.8 GB per day.
const MAX_BYTES_PER_SECOND: usize = 32 << 10;

/// The delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// How long a write may take until the disk is reported to hang.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the state file.
#[derive(Debug)]
pub(crate) struct Store {
    /// The state that the file is to contain.
    newest: watch::Sender<Option<StoredState>>,
    /// Why the file is out of date.
    error: watch::Receiver<Option<String>>,
    /// Writes the file. Ends after the last write when `newest` is dropped.
    writer: JoinSet<()>,
    /// The current boot of the node; `None`: unknown.
    current_boot: Option<Arc<str>>,
    /// The boot in which a frontend confirmed the content; `None`: unknown.
    confirmed_boot: Option<Arc<str>>,
}

/// Where the state file is kept.
#[derive(Clone, Debug)]
pub struct StateFile {
    /// The file.
    pub storage: Arc<dyn Storage>,
    /// Identifies the current boot of the node; `None`: unknown.
    pub boot: Option<Arc<str>>,
}

/// The content of a state file: a state, and its position in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredState {
    /// The revision of the state.
    pub revision: Revision,
    /// The frontend's epoch.
    pub epoch: Epoch,
    /// The version of the cluster that it reflects.
    pub source_version: SourceVersion,
    /// The version of each kind.
    pub kind_versions: KindVersions,
    /// The boot of the node in which a frontend confirmed it; `None`: unknown.
    pub boot: Option<Arc<str>>,
    /// Whether a newer state was committed, which has a loss that is withheld.
    pub is_outdated: bool,
    /// The last committed state, or the last one before a loss that is withheld.
    pub state: NodeState,
}

impl StoredState {
    /// Whether only the position differs, which also advances without a change: after a restart with the earlier
    /// position a frontend has nothing to send.
    fn differs_by_position(&self, other: &Self) -> bool {
        let Self { revision, epoch, .. } = *other;
        Self { revision, epoch, ..self.clone() } == *other
    }

    /// Whether it is to be written without waiting for the interval, because the file alone has something: the last
    /// facts of a Node object that is gone, the last addresses of a Node object that has none, or the endpoints of
    /// Services whose loss is withheld.
    fn is_urgent_after(&self, written: &Self) -> bool {
        let before = &written.state;
        let after = &self.state;
        let withholds = self.is_outdated && !written.is_outdated;
        let has_lost_node = after.retains_node() && !before.retains_node();
        let has_lost_addresses = after.retains_addresses() && !before.retains_addresses();
        withholds || has_lost_node || has_lost_addresses
    }
}

impl StateFile {
    /// The files at this path: the state file, and its successor while that is written.
    #[must_use]
    pub fn files(path: &Path) -> [PathBuf; 2] {
        [path.to_owned(), disk::successor(path)]
    }

    /// A file on a disk of this machine.
    #[must_use]
    pub fn local(path: &Path) -> Self {
        let boot = fs::read_to_string(BOOT_ID)
            .inspect_err(|error| warn!(path = BOOT_ID, %error, "cannot read the boot id"))
            .map(|boot| boot.trim().into());
        Self { storage: Arc::new(storage::LocalFile(path.to_owned())), boot: boot.ok() }
    }
}

impl Store {
    /// Opens and reads the state file of a node. A file that cannot be read in time, is damaged, or is of another
    /// version or node is logged and will be replaced.
    pub(crate) async fn open(StateFile { storage, boot }: StateFile, node: &str) -> (Self, Option<StoredState>) {
        let stored = read_stored(&*storage, node).await;
        let (newest, to_write) = watch::channel(stored.clone());
        let (report, error) = watch::channel(None);
        let writer =
            Writer { storage, newest: to_write, written: stored.clone(), report, failures: Repeated::default() };
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.run());

        let confirmed_boot = stored.as_ref().and_then(|stored| stored.boot.clone());
        (Self { newest, error, writer: tasks, current_boot: boot, confirmed_boot }, stored)
    }

    /// Whether the node has restarted since a frontend confirmed the content: pods may have other addresses now.
    pub(crate) fn is_of_earlier_boot(&self) -> bool {
        let both = self.confirmed_boot.as_ref().zip(self.current_boot.as_ref());
        both.is_some_and(|(confirmed, current)| confirmed != current)
    }

    /// A frontend has confirmed the content in this boot.
    pub(crate) fn confirmed(&mut self) {
        if self.is_of_earlier_boot() {
            info!("a frontend has confirmed the state after a restart of the node");
        }
        self.confirmed_boot.clone_from(&self.current_boot);
    }

    /// The file is to contain this state, confirmed in the boot that is known here. Does not block.
    pub(crate) fn put(&self, stored: StoredState) {
        let stored = Some(StoredState { boot: self.confirmed_boot.clone(), ..stored });
        self.newest.send_if_modified(|newest| {
            let before = mem::replace(newest, stored);
            before != *newest
        });
    }

    /// A newer state is committed, but has a loss that is withheld: the file is to contain the one before at once, so
    /// that a restart, even after a kill, withholds it further. Does not block.
    pub(crate) fn mark_outdated(&self) {
        self.newest.send_if_modified(|newest| {
            newest.as_mut().is_some_and(|stored| !mem::replace(&mut stored.is_outdated, true))
        });
    }

    /// Why the file is out of date; `None` while it is written.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// Writes the newest state, within `limit`.
    pub(crate) async fn finish(self, limit: Duration) {
        let Self { newest, mut writer, .. } = self;
        drop(newest);
        if timeout(limit, writer.join_next()).await.is_err() {
            warn!("the state file lacks the last commits: the disk is not responding");
        }
    }
}

/// The content of the state file of a node; `None`, with a log line, if there is none that can be used.
async fn read_stored(storage: &dyn Storage, node: &str) -> Option<StoredState> {
    let path = storage.name();
    let bytes = match storage.read().await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            info!(%path, "no state file, the kernel is left unchanged until the first commit");
            return None;
        }
        Err(error) => {
            warn!(%path, %error, "cannot read the state file, it will be replaced");
            return None;
        }
    };
    if snapshot::is_of_another_version(&bytes) {
        info!(%path, "ignored a state file of another version, a frontend sends the state");
        return None;
    }

    match StoredState::decode(node, bytes) {
        Ok(stored) => {
            let StoredState { epoch, revision, state, .. } = &stored;
            info!(%path, %epoch, %revision, service_ports = state.service_ports().len(), "read the state file");
            Some(stored)
        }
        Err(error) => {
            warn!(%path, error = format!("{error:#}"), "ignored the state file, it will be replaced");
            None
        }
    }
}

/// Writes the newest state whenever that is due.
struct Writer {
    storage: Arc<dyn Storage>,
    newest: watch::Receiver<Option<StoredState>>,
    /// The content of the file; `None`: unknown, or there is no file.
    written: Option<StoredState>,
    report: watch::Sender<Option<String>>,
    failures: Repeated,
}

impl Writer {
    /// Ends after the last write when the sender of the newest state is dropped.
    async fn run(mut self) {
        loop {
            let is_last = self.newest.changed().await.is_err();
            let newest = self.newest.borrow_and_update().clone();
            if let Some(newest) = newest.filter(|newest| self.is_due(newest, is_last)) {
                let interval = self.write(newest).await;
                let has_ended = self.pause(interval).await.is_err();
                if self.written.is_none() && !has_ended {
                    self.newest.mark_changed();
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn is_due(&self, newest: &StoredState, is_last: bool) -> bool {
        match &self.written {
            Some(written) if is_last => written != newest,
            Some(written) => !written.differs_by_position(newest),
            None => true,
        }
    }

    /// Waits for the interval, or until the newest state is urgent. Fails when the sender of the newest state is
    /// dropped.
    async fn pause(&self, interval: Duration) -> Result<(), RecvError> {
        let is_urgent = |newest: &Option<StoredState>| match (newest, &self.written) {
            (Some(newest), Some(written)) => newest.is_urgent_after(written),
            _ => false,
        };
        let mut newest = self.newest.clone();
        match timeout(interval, newest.wait_for(is_urgent)).await {
            Ok(Err(ended)) => Err(ended),
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }

    /// Returns the time until the next write may begin.
    async fn write(&mut self, stored: StoredState) -> Duration {
        let mut write = self.storage.replace(stored.clone());
        let result = match timeout(WRITE_TIMEOUT, &mut write).await {
            Ok(result) => result,
            Err(_) => {
                self.failed(format!("no write has finished for {} s", WRITE_TIMEOUT.as_secs()));
                write.await
            }
        };

        match result {
            Ok(bytes) => {
                self.written = Some(stored);
                self.report.send_replace(None);
                if let Some(Recovery { count: failures, duration }) = self.failures.recovered() {
                    let after_ms = duration.as_millis();
                    info!(path = %self.storage.name(), failures, after_ms, "wrote the state file again");
                }
                interval(bytes)
            }
            Err(error) => {
                self.written = None;
                self.failed(error.to_string());
                RETRY_DELAY
            }
        }
    }

    fn failed(&mut self, error: String) {
        let path = self.storage.name();
        let retry_in_ms = RETRY_DELAY.as_millis();
        warn_if_news!(
            self.failures.failed(&error), %path, %error, retry_in_ms,
            "cannot write the state file; a restart needs a frontend, or begins with an earlier state"
        );
        self.report.send_replace(Some(error));
    }
}

/// The time between two writes of a file of this size.
fn interval(bytes: usize) -> Duration {
    Duration::from_secs((bytes / MAX_BYTES_PER_SECOND) as u64).max(MIN_INTERVAL)
}

#[cfg(test)]
mod tests;
