//! The boot of the node in which a frontend last confirmed the stored state, in a file beside it. After a restart of
//! the node, its pods have other addresses than in the stored state.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tracing::{info, warn};

use crate::disk::{FileWrite, FileWriter, Storage};

/// Where the kernel tells its boot: a UUID, the same in all namespaces.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file with the boot id.
#[derive(Debug)]
pub(super) struct BootRecord {
    storage: Arc<dyn Storage>,
    /// A wrong boot would make a restart of the process look like one of the node, so it is removed.
    writer: FileWriter,
    /// `None`: unknown.
    current: Option<String>,
    /// `None`: never recorded.
    recorded: Option<String>,
}

/// The path of the file beside this state file.
pub(super) fn path(state_file: &Path) -> PathBuf {
    state_file.with_added_extension("boot")
}

/// The current boot of this machine, if it is known.
pub(super) fn current() -> Option<String> {
    let current = fs::read(BOOT_ID).map(text);
    current.inspect_err(|error| warn!(path = BOOT_ID, %error, "cannot read the boot id")).ok()
}

impl BootRecord {
    /// Starts with what was read from the file.
    pub(super) fn new(storage: Arc<dyn Storage>, current: Option<String>, read: io::Result<Vec<u8>>) -> Self {
        let recorded = read.map(text).inspect_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(path = storage.name(), %error, "cannot read the boot of the stored state");
            }
        });
        Self { writer: FileWriter::start(&*storage), storage, current, recorded: recorded.ok() }
    }

    /// Whether the recorded boot is known to be another one than the current.
    pub(super) fn is_earlier(&self) -> bool {
        matches!((&self.recorded, &self.current), (Some(recorded), Some(current)) if recorded != current)
    }

    /// Records the current boot.
    pub(super) fn confirmed(&mut self) {
        if let Some(error) = self.writer.progress().error {
            warn!(path = self.storage.name(), %error, "cannot write the boot of the stored state");
        }
        let Some(current) = self.current.clone().filter(|current| self.recorded.as_ref() != Some(current)) else {
            return;
        };
        if self.is_earlier() {
            info!("a frontend has confirmed the state after a restart of the node");
        }
        self.writer.submit(FileWrite::Replace(format!("{current}\n").into_bytes()));
        self.recorded = Some(current);
    }

    /// Waits until it is written, for at most `timeout`.
    pub(super) async fn wait(&self, timeout: Duration) -> bool {
        self.storage.wait(self.writer.queue(), timeout).await
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{LocalFile, OnWriteError};

    fn open(path: &Path) -> BootRecord {
        let storage = LocalFile { path: path.to_owned(), on_error: OnWriteError::Remove };
        BootRecord::new(Arc::new(storage), current(), fs::read(path))
    }

    #[tokio::test]
    async fn another_boot_is_noticed_until_it_is_confirmed() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(&directory.path().join("state"));
        let mut fresh = open(&path);
        assert!(!fresh.is_earlier(), "a state of an older version has no record");
        fresh.confirmed();
        assert!(fresh.wait(Duration::from_secs(20)).await);
        assert!(!open(&path).is_earlier(), "only the process has restarted");

        fs::write(&path, "an-earlier-boot\n").unwrap();
        let mut restarted = open(&path);
        assert!(restarted.is_earlier());
        restarted.confirmed();
        assert!(!restarted.is_earlier() && restarted.wait(Duration::from_secs(20)).await);
        assert!(!open(&path).is_earlier());
    }
}
