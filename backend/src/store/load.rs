//! Reads a state file: replays it up to its last complete commit.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use proto::model::{Epoch, NodeInfo, ServerMessage, SourceVersion};

use super::{StoredState, frame};
use crate::{NodeState, RejectedOperation, Stage};

/// The content of a file.
pub(super) struct Loaded {
    pub(super) stored: StoredState,
    /// The size of the snapshot at the beginning.
    pub(super) snapshot_bytes: u64,
    /// The size up to the last complete commit. The rest of the file is truncated.
    pub(super) bytes: u64,
}

/// The state after the last complete commit.
///
/// # Errors
/// When there is none, or the file cannot be this node's state.
pub(super) fn load(node: &str, bytes: Vec<u8>) -> Result<Loaded> {
    let mut frames = Bytes::from(bytes);
    let total = frames.len();
    let mut state = NodeState::new(NodeInfo::unknown(node));
    let mut stage = Stage::default();
    let (mut epoch, mut source_version) = (None, SourceVersion::default());
    let (mut first, mut last) = (None, None);
    // They were rejected when they arrived, too; the digest tells whether the result is the same.
    let mut rejected = Vec::new();
    while let Some(message) = frame::take(&mut frames) {
        let message = message.decode().context("a frame contains no message")?;
        match ServerMessage::try_from(message).context("a frame contains an invalid message")? {
            ServerMessage::Welcome(welcome) => epoch = Some(welcome.epoch),
            ServerMessage::Batch(batch) => {
                // A frontend that does not know the version leaves it as it is.
                if batch.source_version != SourceVersion::default() {
                    source_version = batch.source_version;
                }
                stage.extend(batch.operations);
            }
            ServerMessage::Bookmark(revision, digest) => {
                rejected.append(&mut stage.commit(&mut state).rejected);
                let matches = state.digests().total() == digest;
                ensure!(matches, "the state at revision {revision} differs from its digest{}", first_reason(&rejected));
                let epoch: Epoch = epoch.context("the file does not begin with a Welcome")?;
                let len = total - frames.len();
                first.get_or_insert(len);
                last = Some((epoch, revision, source_version, len));
            }
            ServerMessage::Drain(_) | ServerMessage::DigestRequest => {
                bail!("a frame contains a message that does not belong in a state file")
            }
        }
    }
    let (epoch, revision, source_version, len) = last.context("the file contains no complete commit")?;
    let snapshot_bytes = first.unwrap_or(len) as u64;
    Ok(Loaded { stored: StoredState { state, epoch, revision, source_version }, snapshot_bytes, bytes: len as u64 })
}

fn first_reason(rejected: &[RejectedOperation]) -> String {
    rejected.first().map(|first| format!(": {first}")).unwrap_or_default()
}
