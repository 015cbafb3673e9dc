//! The last committed state in a file, so that a node starts with it while no frontend is reachable, and resumes its
//! stream.
//!
//! The file is a stream as a frontend would send it: a snapshot, then the commits since, in the bytes that were
//! received. A commit is appended, at a cost proportional to the change; when the commits outgrow the snapshot, the
//! file is rewritten. Neither a failure of the disk nor a disk that hangs stops the backend: a [`FileWriter`] writes in
//! a thread of its own, and commits that do not fit into its queue are replaced by one rewrite.

mod boot;
pub(crate) mod frame;

use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future;
use proto::{
    encoded::{EncodedMessage, ReceivedMessage},
    model::{Epoch, KindVersions, Operation, Revision, SourceVersion},
};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    NodeState,
    disk::{self, FileWrite, FileWriter, LocalFile, OnWriteError, Storage, WriterProgress},
};
use boot::BootRecord;
use frame::{Loaded, load};

/// The default path of the state file.
pub const DEFAULT_STATE_FILE: &str = "/var/lib/fairlead/state";

/// Commits are appended until they exceed the snapshot, but at least up to this size.
const MIN_APPENDED_BYTES: u64 = 1 << 20;

/// The delay after a failed write: the retry rewrites the file, which costs as much as the whole state.
const RETRY: Duration = Duration::from_secs(60);

/// Without a finished write for this long, the disk is reported to hang.
const HUNG: Duration = Duration::from_secs(10);

/// Writes the state file.
#[derive(Debug)]
pub struct Store {
    storage: Arc<dyn Storage>,
    writer: FileWriter,
    /// The file, once everything that was submitted is written.
    file: StateFile,
    /// Received batches whose commit has not arrived.
    uncommitted: Vec<EncodedMessage>,
    /// Whether batches of that commit are missing in `uncommitted`, because there was no file to append to.
    is_incomplete: bool,
    /// Frames of commits that are not written yet.
    unwritten: Vec<u8>,
    /// The revision at the end of the file and `unwritten`.
    written: Option<(Epoch, Revision)>,
    /// The version of the cluster that the last commit reflects.
    source_version: SourceVersion,
    kind_versions: KindVersions,
    /// The boot in which a frontend confirmed the content.
    boot: BootRecord,
    /// The number of successful writes.
    succeeded: u64,
    /// Since when the writer has been busy without a successful write.
    busy_since: Option<Instant>,
    write_failures: Repeated,
    error: Option<String>,
}

/// Where a [`Store`] keeps its files.
#[derive(Clone, Debug)]
pub struct StateFiles {
    /// The state file.
    pub state: Arc<dyn Storage>,
    /// The file with the boot of its content.
    pub boot: Arc<dyn Storage>,
    /// Identifies the current boot of the node; `None`: unknown.
    pub boot_id: Option<String>,
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
    /// The version of each kind.
    pub kind_versions: KindVersions,
}

#[derive(Debug)]
enum StateFile {
    /// There is no file to append to.
    Absent,
    /// Writing failed at that time.
    Failed(Instant),
    Open {
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

impl StateFiles {
    /// Files on a disk of this machine.
    pub(crate) fn local(path: &Path) -> Self {
        let file = |path| -> Arc<dyn Storage> { Arc::new(LocalFile { path, on_error: OnWriteError::Remove }) };
        Self { state: file(path.to_owned()), boot: file(boot::path(path)), boot_id: boot::current() }
    }
}

impl Store {
    /// The files of a store at this path: the state file, that with the boot of its content, and the successor of each
    /// while that is written.
    #[must_use]
    pub fn files(path: &Path) -> [PathBuf; 4] {
        let boot = boot::path(path);
        [path.to_owned(), disk::successor(path), boot.clone(), disk::successor(&boot)]
    }

    /// Opens and reads the state file of a node, as [`Self::open`] does. Blocks for at most [`disk::READ_TIMEOUT`].
    #[cfg(test)]
    pub(crate) fn open_file(path: &Path, node: &str) -> (Self, Option<StoredState>) {
        let read = disk::read(path, disk::READ_TIMEOUT);
        let recorded_boot = disk::read(&boot::path(path), disk::READ_TIMEOUT);
        Self::of(StateFiles::local(path), read, recorded_boot, node)
    }

    /// Opens and reads the state file of a node. A file that cannot be read in time, is damaged, or is of another
    /// version or node is logged and will be replaced.
    pub(crate) async fn open(files: StateFiles, node: &str) -> (Self, Option<StoredState>) {
        let read = files.state.read().await;
        let recorded_boot = files.boot.read().await;
        Self::of(files, read, recorded_boot, node)
    }

    fn of(
        StateFiles { state, boot, boot_id }: StateFiles,
        read: io::Result<Vec<u8>>,
        recorded_boot: io::Result<Vec<u8>>,
        node: &str,
    ) -> (Self, Option<StoredState>) {
        let mut store = Self {
            writer: FileWriter::start(&*state),
            boot: BootRecord::new(boot, boot_id, recorded_boot),
            storage: state,
            file: StateFile::Absent,
            uncommitted: Vec::new(),
            is_incomplete: false,
            unwritten: Vec::new(),
            written: None,
            source_version: SourceVersion::default(),
            kind_versions: KindVersions::default(),
            succeeded: 0,
            busy_since: None,
            write_failures: Repeated::default(),
            error: None,
        };
        let path = store.storage.name();
        let loaded = match read {
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
                store.writer.submit(FileWrite::Reopen(bytes, Vec::new()));
                store.file = StateFile::Open { snapshot_bytes, appended_bytes: bytes - snapshot_bytes };
                store.written = Some((stored.epoch, stored.revision));
                store.source_version = stored.source_version;
                store.kind_versions = stored.kind_versions;
                (store, Some(stored))
            }
            Err(error) => {
                warn!(%path, error = format!("{error:#}"), "ignored the state file, it will be replaced");
                (store, None)
            }
        }
    }

    /// Whether the node has restarted since a frontend confirmed the content: pods may have other addresses now.
    pub(crate) fn is_of_earlier_boot(&self) -> bool {
        self.boot.is_earlier()
    }

    /// A frontend has confirmed the content in this boot.
    pub(crate) fn confirmed(&mut self) {
        self.boot.confirmed();
    }

    /// Why the file is out of date; `None` while it is written.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Waits until everything is written, for at most `timeout`.
    pub(crate) async fn finish(&self, timeout: Duration) {
        let both = future::join(self.storage.wait(self.writer.queue(), timeout), self.boot.wait(timeout));
        if both.await != (true, true) {
            warn!(path = self.storage.name(), "the last commits are not in the state file: the disk does not answer");
        }
    }

    /// Adds a received batch to the next commit.
    pub fn stage(&mut self, batch: &ReceivedMessage) {
        self.stage_encoded(|| batch.encoded());
    }

    /// Adds operations that did not arrive in a batch to the next commit.
    pub(crate) fn stage_operations(&mut self, operations: Vec<Operation>) {
        self.stage_encoded(|| frame::batch_of(operations));
    }

    fn stage_encoded(&mut self, batch: impl FnOnce() -> EncodedMessage) {
        // Without a file to append to, the state is written as a whole.
        if matches!(self.file, StateFile::Open { .. }) {
            self.uncommitted.push(batch());
        } else {
            self.is_incomplete = true;
        }
    }

    /// Commits what was staged. Written at the next [`Self::flush`].
    pub(crate) fn commit(&mut self, epoch: Epoch, source_version: SourceVersion, kind_versions: KindVersions) {
        self.source_version = source_version;
        self.kind_versions = kind_versions;
        let batches = mem::take(&mut self.uncommitted);
        if mem::take(&mut self.is_incomplete) {
            // The file was rewritten between two batches of this commit.
            self.restart();
        } else if matches!(self.file, StateFile::Open { .. }) {
            self.put_epoch(epoch);
            batches.iter().for_each(|batch| frame::put(&mut self.unwritten, batch));
        }
    }

    /// Discards what was staged since the last commit.
    pub(crate) fn discard(&mut self) {
        self.uncommitted = Vec::new();
        self.is_incomplete = false;
    }

    /// Submits the commits to the writer. `state` is the state after the last one. To be called regularly: it also
    /// takes the results of earlier writes. Does not block.
    pub fn flush(&mut self, state: &NodeState, epoch: Epoch, revision: Revision) {
        let is_busy = self.check_writer();
        if self.written == Some((epoch, revision)) && self.unwritten.is_empty() {
            return;
        }
        match &self.file {
            StateFile::Failed(when) if when.elapsed() < RETRY => return,
            StateFile::Open { snapshot_bytes, appended_bytes }
                if is_busy || *appended_bytes <= MIN_APPENDED_BYTES.max(*snapshot_bytes) =>
            {
                self.put_epoch(epoch);
                frame::put_bookmark(&mut self.unwritten, revision, state.digests().total());
                if !self.append() {
                    return self.restart();
                }
            }
            // One copy of the whole state at a time.
            _ if is_busy => return,
            StateFile::Open { .. } | StateFile::Failed(_) | StateFile::Absent => self.rewrite(state, epoch, revision),
        }
        self.written = Some((epoch, revision));
    }

    /// Discards the commits that are not submitted. The next flush rewrites the file.
    pub(crate) fn restart(&mut self) {
        self.is_incomplete |= !self.uncommitted.is_empty();
        self.uncommitted = Vec::new();
        self.unwritten = Vec::new();
        self.written = None;
        if matches!(self.file, StateFile::Open { .. }) {
            self.file = StateFile::Absent;
        }
    }

    /// Handles what the writer has done since the last call. Returns whether it is busy.
    fn check_writer(&mut self) -> bool {
        let WriterProgress { is_busy, succeeded, error } = self.writer.progress();
        let has_failed = error.is_some();
        if let Some(error) = error {
            self.restart();
            self.file = StateFile::Failed(Instant::now());
            self.failed(error.to_string());
        }
        let has_succeeded = mem::replace(&mut self.succeeded, succeeded) != succeeded;
        if has_succeeded || !is_busy {
            self.busy_since = None;
        }
        if is_busy && self.busy_since.get_or_insert_with(Instant::now).elapsed() >= HUNG {
            self.failed(format!("no write has finished for {} s", HUNG.as_secs()));
        } else if has_succeeded && !has_failed {
            self.error = None;
            if let Some(Recovery { count, duration }) = self.write_failures.recovered() {
                let path = self.storage.name();
                let after_ms = duration.as_millis();
                info!(%path, failures = count, after_ms, "wrote the state file again");
            }
        }
        is_busy
    }

    fn failed(&mut self, error: String) {
        let path = self.storage.name();
        let retry_in_ms = RETRY.as_millis();
        let text = "cannot write the state file; a restart needs a frontend, or begins with an earlier state";
        warn_if_news!(self.write_failures.failed(&error), %path, %error, retry_in_ms, "{text}");
        self.error = Some(error);
    }

    fn put_epoch(&mut self, epoch: Epoch) {
        if let Some((written, revision)) = self.written
            && written != epoch
        {
            frame::put_welcome(&mut self.unwritten, epoch);
            self.written = Some((epoch, revision));
        }
    }

    /// Returns whether the writer accepts them.
    fn append(&mut self) -> bool {
        let frames = mem::take(&mut self.unwritten);
        if let StateFile::Open { appended_bytes, .. } = &mut self.file {
            *appended_bytes += frames.len() as u64;
        }
        self.writer.submit(FileWrite::Append(frames))
    }

    /// Replaces the file by one with a snapshot.
    fn rewrite(&mut self, state: &NodeState, epoch: Epoch, revision: Revision) {
        self.unwritten = Vec::new();
        let mut frames = Vec::new();
        frame::put_welcome(&mut frames, epoch);
        frame::put_snapshot(&mut frames, revision, self.source_version, self.kind_versions, state.snapshot().iter());
        frame::put_bookmark(&mut frames, revision, state.digests().total());
        self.file = StateFile::Open { snapshot_bytes: frames.len() as u64, appended_bytes: 0 };
        self.writer.submit(FileWrite::Replace(frames));
    }
}

#[cfg(test)]
mod tests;
