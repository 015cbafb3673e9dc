//! The last committed state in a file, so that a node starts with it while no frontend is reachable, and resumes its
//! stream.
//!
//! The file is a stream as a frontend would send it: a snapshot, then the commits since, in the bytes that were
//! received. A commit is appended, at a cost proportional to the change; when the commits outgrow the snapshot, the
//! file is rewritten. No failure of the file stops the backend.

mod frame;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    mem,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::{
    encoded::{EncodedMessage, ReceivedMessage},
    model::{Epoch, Operation, PoolId, Revision, SourceVersion},
};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::NodeState;
use frame::{Loaded, load};

/// The default path of the state file.
pub const DEFAULT_STATE_FILE: &str = "/var/lib/fairlead/state";

/// Commits are appended until they exceed the snapshot, but at least up to this size.
const MIN_APPENDED_BYTES: u64 = 1 << 20;

/// The delay after a failed write: the retry rewrites the file, which costs as much as the whole state.
const RETRY: Duration = Duration::from_secs(60);

/// Writes the state file.
#[derive(Debug, Default)]
pub struct Store {
    path: PathBuf,
    file: StateFile,
    /// Received batches whose commit has not arrived.
    uncommitted: Vec<EncodedMessage>,
    /// Frames of commits that are not written yet.
    unwritten: Vec<u8>,
    /// The revision at the end of the file and `unwritten`.
    written: Option<(Epoch, Revision)>,
    /// The version of the cluster that the last commit reflects.
    source_version: SourceVersion,
    write_failures: Repeated,
}

/// A state that was read from a file, and its position in the stream.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredState {
    /// The last committed state.
    pub state: NodeState,
    /// The frontend's epoch.
    pub epoch: Epoch,
    /// The revision of the state.
    pub revision: Revision,
    /// The version of the cluster that it reflects.
    pub source_version: SourceVersion,
}

#[derive(Debug, Default)]
enum StateFile {
    /// There is no file to append to.
    #[default]
    Absent,
    /// Writing failed at that time.
    Failed(Instant),
    Open {
        file: File,
        snapshot_bytes: u64,
        appended_bytes: u64,
    },
}

impl StoredState {
    /// Reads the state file of a node without changing it.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or is of another version or node.
    pub fn read(path: &Path, node: &str) -> anyhow::Result<Self> {
        Ok(load(node, fs::read(path)?)?.stored)
    }
}

impl Store {
    /// The files of a store at this path: the state file, and its successor while that is written.
    #[must_use]
    pub fn files(path: &Path) -> [PathBuf; 2] {
        [path.to_owned(), path.with_added_extension("new")]
    }

    /// Opens and reads the state file of a node. A file that cannot be read, is damaged, or is of another version or
    /// node is logged and will be replaced.
    #[must_use]
    pub fn open(path: impl Into<PathBuf>, node: &str) -> (Self, Option<StoredState>) {
        let mut store = Self { path: path.into(), ..Self::default() };
        let path = store.path.display();
        let loaded = match fs::read(&store.path) {
            Ok(bytes) => load(node, bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                info!(%path, "no state file, the kernel is left unchanged until the first commit");
                return (store, None);
            }
            Err(error) => Err(error.into()),
        };
        match loaded {
            Ok(Loaded { stored, snapshot_bytes, bytes }) => {
                info!(%path, epoch = %stored.epoch, revision = %stored.revision,
                    service_ports = stored.state.service_ports().len(), "read the state file");
                store.file = reopen(&store.path, snapshot_bytes, bytes);
                store.written = Some((stored.epoch, stored.revision));
                store.source_version = stored.source_version;
                (store, Some(stored))
            }
            Err(error) => {
                warn!(%path, error = format!("{error:#}"), "ignored the state file, it will be replaced");
                (store, None)
            }
        }
    }

    /// Adds a received batch to the next commit.
    pub fn stage(&mut self, batch: &ReceivedMessage) {
        // Without a file to append to, the state is written as a whole.
        if matches!(self.file, StateFile::Open { .. }) {
            self.uncommitted.push(batch.encoded());
        }
    }

    /// Adds operations that did not arrive in a batch to the next commit.
    pub(crate) fn stage_operations(&mut self, operations: Vec<Operation>) {
        if matches!(self.file, StateFile::Open { .. }) {
            self.uncommitted.push(frame::batch_of(operations));
        }
    }

    /// Commits what was staged. Written at the next [`Self::flush`].
    pub fn commit(&mut self, epoch: Epoch, source_version: SourceVersion) {
        self.source_version = source_version;
        let batches = mem::take(&mut self.uncommitted);
        if matches!(self.file, StateFile::Open { .. }) {
            self.put_epoch(epoch);
            batches.iter().for_each(|batch| frame::put(&mut self.unwritten, batch));
        }
    }

    /// Discards what was staged since the last commit.
    pub(crate) fn discard(&mut self) {
        self.uncommitted = Vec::new();
    }

    /// Writes the commits. `state` is the state after the last one.
    ///
    /// Blocks until the kernel has the bytes, and for the disk only when the file is rewritten.
    pub fn flush(&mut self, state: &NodeState, epoch: Epoch, revision: Revision) {
        if self.written == Some((epoch, revision)) && self.unwritten.is_empty() {
            return;
        }
        let result = match &mut self.file {
            StateFile::Failed(when) if when.elapsed() < RETRY => return,
            StateFile::Open { snapshot_bytes, appended_bytes, .. }
                if *appended_bytes <= MIN_APPENDED_BYTES.max(*snapshot_bytes) =>
            {
                self.put_epoch(epoch);
                frame::put_bookmark(&mut self.unwritten, revision, state.digests().total());
                self.append()
            }
            StateFile::Open { .. } | StateFile::Failed(_) | StateFile::Absent => self.rewrite(state, epoch, revision),
        };
        match result {
            Ok(()) => {
                self.written = Some((epoch, revision));
                if let Some(Recovery { count, duration }) = self.write_failures.recovered() {
                    let (path, after_ms) = (self.path.display(), duration.as_millis());
                    info!(%path, failures = count, after_ms, "wrote the state file again");
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &io::Error) {
        let (path, retry_in_ms) = (self.path.display(), RETRY.as_millis());
        let occurrence = self.write_failures.failed(&error.to_string());
        let text = "cannot write the state file; without it, a restart needs a frontend";
        warn_if_news!(occurrence, %path, %error, retry_in_ms, "{text}");
        self.file = StateFile::Failed(Instant::now());
        (self.uncommitted, self.unwritten) = (Vec::new(), Vec::new());
        // The old file is out of date: at the next start it would roll the kernel back.
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(path = %self.path.display(), %error, "cannot remove the outdated state file");
        }
    }

    fn put_epoch(&mut self, epoch: Epoch) {
        if let Some((written, revision)) = self.written
            && written != epoch
        {
            frame::put_welcome(&mut self.unwritten, epoch);
            self.written = Some((epoch, revision));
        }
    }

    fn append(&mut self) -> io::Result<()> {
        let frames = mem::take(&mut self.unwritten);
        if let StateFile::Open { file, appended_bytes, .. } = &mut self.file {
            file.write_all(&frames)?;
            *appended_bytes += frames.len() as u64;
        }
        Ok(())
    }

    /// Writes a new file and renames it over the old one.
    fn rewrite(&mut self, state: &NodeState, epoch: Epoch, revision: Revision) -> io::Result<()> {
        self.unwritten = Vec::new();
        let mut frames = Vec::new();
        frame::put_welcome(&mut frames, epoch);
        frame::put_snapshot(&mut frames, revision, self.source_version, snapshot(state).iter());
        frame::put_bookmark(&mut frames, revision, state.digests().total());

        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let [_, new] = Self::files(&self.path);
        let mut file = File::create(&new)?;
        file.write_all(&frames)?;
        // Without it, a power loss after the rename could leave an empty file.
        file.sync_data()?;
        fs::rename(&new, &self.path)?;
        self.file = StateFile::Open { file, snapshot_bytes: frames.len() as u64, appended_bytes: 0 };
        Ok(())
    }
}

/// Opens the file to append after its first `bytes` bytes, of which `snapshot_bytes` are the snapshot. The rest is cut
/// off.
fn reopen(path: &Path, snapshot_bytes: u64, bytes: u64) -> StateFile {
    let file = OpenOptions::new().append(true).open(path).and_then(|file| {
        file.set_len(bytes)?;
        Ok(file)
    });
    match file {
        Ok(file) => StateFile::Open { file, snapshot_bytes, appended_bytes: bytes - snapshot_bytes },
        Err(error) => {
            warn!(path = %path.display(), %error, "cannot append to the state file, it will be rewritten");
            StateFile::Absent
        }
    }
}

/// The operations that create a state.
fn snapshot(state: &NodeState) -> Vec<Operation> {
    let mut operations = vec![Operation::PutNode(state.node().clone()), Operation::PutCluster(state.cluster().clone())];
    for (key, service) in state.service_ports() {
        operations.push(Operation::PutServicePort(service.port.clone()));
        for (class, family, endpoints) in service.pools().filter(|(.., endpoints)| !endpoints.is_empty()) {
            let pool = PoolId { key: key.clone(), class, family };
            operations.push(Operation::ReplacePool { pool, endpoints: endpoints.clone() });
        }
    }
    operations
}

#[cfg(test)]
mod tests;
