//! The last committed state in a file, so that a node comes up with it while no frontend is there, and resumes where it stopped.
//!
//! The file is a stream as a frontend would have sent it: a snapshot, then the commits since. A commit costs what it is; when the
//! commits have outgrown the snapshot, a new file takes the place of the old one. Nothing that happens to the file stops the
//! agent.

mod frame;
mod load;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    mem,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::model::{Epoch, IpFamily, Operation, Pool, PoolClass, PoolId, Revision, SourceVersion};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::NodeState;
use load::{Loaded, load};

/// Where the state file is unless told otherwise.
pub const DEFAULT_STATE_FILE: &str = "/var/lib/fairlead/state";

/// Commits are appended until they are larger than the snapshot, but up to this many bytes in any case.
const MIN_APPENDED: u64 = 1 << 20;

/// After a failed write the file is left alone for so long: writing it anew costs what the whole state is.
const RETRY: Duration = Duration::from_secs(60);

/// Keeps the state file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: Current,
    /// Frames of commits that are not written yet.
    staged: Vec<u8>,
    /// What the file (or `staged`) says last.
    written: Option<(Epoch, Revision)>,
    /// What the last commit reflects.
    source_version: SourceVersion,
}

/// A state that was read back, and where the stream stopped.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredState {
    /// What was in force.
    pub state: NodeState,
    /// The frontend that it came from.
    pub epoch: Epoch,
    /// Its revision.
    pub revision: Revision,
    /// What that reflects.
    pub source_version: SourceVersion,
}

/// How much is staged at some point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    bytes: usize,
    written: Option<(Epoch, Revision)>,
    source_version: SourceVersion,
}

/// The file as it is now.
#[derive(Debug)]
enum Current {
    /// There is none that could be appended to.
    Absent,
    /// Writing failed at that time.
    Failed(Instant),
    Open {
        file: File,
        snapshot: u64,
        appended: u64,
    },
}

impl StoredState {
    /// Reads the state file of a node, and leaves it as it is.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, of another version or of another node.
    pub fn read(path: &Path, node: &str) -> anyhow::Result<Self> {
        Ok(load(node, fs::read(path)?)?.stored)
    }
}

impl Store {
    /// The files that a store at this path may have: the state, and the next one while it is being written.
    #[must_use]
    pub fn files(path: &Path) -> [PathBuf; 2] {
        [path.to_owned(), path.with_added_extension("new")]
    }

    /// Opens the state file of a node and reads what it holds. A file that cannot be read, is damaged, of another version or
    /// of another node is logged and will be replaced.
    #[must_use]
    pub fn open(path: impl Into<PathBuf>, node: &str) -> (Self, Option<StoredState>) {
        let mut store = Self {
            path: path.into(),
            file: Current::Absent,
            staged: Vec::new(),
            written: None,
            source_version: SourceVersion::default(),
        };
        let path = store.path.display();
        let loaded = match fs::read(&store.path) {
            Ok(bytes) => load(node, bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                info!(%path, "no state file, nothing is programmed before a frontend has been heard");
                return (store, None);
            }
            Err(error) => Err(error.into()),
        };
        match loaded {
            Ok(Loaded { stored, snapshot, len }) => {
                info!(%path, epoch = %stored.epoch, revision = %stored.revision,
                    services = stored.state.service_ports().len(), "state file read");
                store.file = reopen(&store.path, snapshot, len);
                store.written = Some((stored.epoch, stored.revision));
                store.source_version = stored.source_version;
                (store, Some(stored))
            }
            Err(error) => {
                warn!(%path, error = format!("{error:#}"), "state file ignored");
                (store, None)
            }
        }
    }

    /// Takes in a commit that leads from one revision to another. Written at the next [`Self::flush`].
    pub fn stage(
        &mut self,
        epoch: Epoch,
        revisions: (Revision, Revision),
        source_version: SourceVersion,
        operations: &[Operation],
    ) {
        self.source_version = source_version;
        if matches!(self.file, Current::Open { .. }) {
            self.put_epoch(epoch);
            frame::put_batches(&mut self.staged, revisions, source_version, operations.iter());
        }
    }

    /// How much is staged, for [`Self::unstage`].
    pub(crate) fn staged(&self) -> Staged {
        Staged { bytes: self.staged.len(), written: self.written, source_version: self.source_version }
    }

    /// Forgets what was staged since.
    pub(crate) fn unstage(&mut self, Staged { bytes, written, source_version }: Staged) {
        self.staged.truncate(bytes);
        self.written = written;
        self.source_version = source_version;
    }

    /// Writes what was staged. `state` is what it leads to, at this point of the stream.
    ///
    /// Blocks for as long as it takes to hand the bytes to the kernel, and for a disk only when the file is written anew.
    pub fn flush(&mut self, state: &NodeState, epoch: Epoch, revision: Revision) {
        if self.written == Some((epoch, revision)) && self.staged.is_empty() {
            return;
        }
        let result = match &mut self.file {
            Current::Failed(when) if when.elapsed() < RETRY => {
                return;
            }
            Current::Open { snapshot, appended, .. } if *appended <= MIN_APPENDED.max(*snapshot) => {
                self.put_epoch(epoch);
                frame::put_bookmark(&mut self.staged, revision, state.digests().total());
                self.append()
            }
            Current::Open { .. } | Current::Failed(_) | Current::Absent => self.rewrite(state, epoch, revision),
        };
        match result {
            Ok(()) => self.written = Some((epoch, revision)),
            Err(error) => {
                warn!(path = %self.path.display(), %error, retry_in = ?RETRY, "state file not written");
                self.file = Current::Failed(Instant::now());
                self.staged = Vec::new();
                // What it holds is not the last state any more. At the next start it would set a working kernel back to it.
                if let Err(error) = fs::remove_file(&self.path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    warn!(path = %self.path.display(), %error, "state file is out of date and cannot be removed");
                }
            }
        }
    }

    fn put_epoch(&mut self, epoch: Epoch) {
        if let Some((written, revision)) = self.written
            && written != epoch
        {
            frame::put_welcome(&mut self.staged, epoch);
            self.written = Some((epoch, revision));
        }
    }

    fn append(&mut self) -> io::Result<()> {
        let frames = mem::take(&mut self.staged);
        if let Current::Open { file, appended, .. } = &mut self.file {
            file.write_all(&frames)?;
            *appended += frames.len() as u64;
        }
        Ok(())
    }

    /// Writes a new file beside the old one and lets it take its place.
    fn rewrite(&mut self, state: &NodeState, epoch: Epoch, revision: Revision) -> io::Result<()> {
        self.staged = Vec::new();
        let mut frames = Vec::new();
        frame::put_welcome(&mut frames, epoch);
        let revisions = (Revision(0), revision);
        frame::put_batches(&mut frames, revisions, self.source_version, snapshot(state).iter());
        frame::put_bookmark(&mut frames, revision, state.digests().total());

        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let [_, new] = Self::files(&self.path);
        let mut file = File::create(&new)?;
        file.write_all(&frames)?;
        // A rename that reaches the disk before the bytes do would leave an empty file after a power loss.
        file.sync_data()?;
        fs::rename(&new, &self.path)?;
        self.file = Current::Open { file, snapshot: frames.len() as u64, appended: 0 };
        Ok(())
    }
}

/// For appending after the first `len` bytes, of which `snapshot` are the snapshot; the rest is cut off.
fn reopen(path: &Path, snapshot: u64, len: u64) -> Current {
    let file = OpenOptions::new().append(true).open(path).and_then(|file| {
        file.set_len(len)?;
        Ok(file)
    });
    match file {
        Ok(file) => Current::Open { file, snapshot, appended: len - snapshot },
        Err(error) => {
            warn!(path = %path.display(), %error, "state file cannot be appended to");
            Current::Absent
        }
    }
}

/// Everything that a state consists of.
fn snapshot(state: &NodeState) -> Vec<Operation> {
    let mut operations = vec![Operation::PutNode(state.node().clone()), Operation::PutCluster(state.cluster().clone())];
    for (key, service) in state.service_ports() {
        operations.push(Operation::PutServicePort(service.port.clone()));
        for class in [PoolClass::Cluster, PoolClass::Local] {
            for family in IpFamily::ALL {
                let endpoints: &Pool = service.pool(class, family);
                if !endpoints.is_empty() {
                    let pool = PoolId { key: key.clone(), class, family };
                    operations.push(Operation::ReplacePool { pool, endpoints: endpoints.clone() });
                }
            }
        }
    }
    operations
}

#[cfg(test)]
mod tests;
