//! Reads a state file: plays it back, as far as it is whole.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use proto::model::{Epoch, NodeInfo, ServerMessage, SourceVersion};

use super::{StoredState, frame};
use crate::{NodeState, RejectedOperation, Stage};

/// What a file holds.
pub(super) struct Loaded {
    pub(super) stored: StoredState,
    /// How many bytes the snapshot at the beginning takes.
    pub(super) snapshot: u64,
    /// How many bytes led to it. What follows is torn.
    pub(super) len: u64,
}

/// The state after the last whole commit.
///
/// Fails when there is none, and when what is there cannot be this node's state.
pub(super) fn load(node: &str, bytes: Vec<u8>) -> Result<Loaded> {
    let mut frames = Bytes::from(bytes);
    let total = frames.len();
    let mut state = NodeState::new(NodeInfo::unknown(node));
    let mut stage = Stage::default();
    let (mut epoch, mut source_version) = (None, SourceVersion::default());
    let (mut first, mut last) = (None, None);
    // Left out again, as they were when they came; the digest says whether that leads to the same.
    let mut refused = Vec::new();
    while let Some(message) = frame::take(&mut frames) {
        let event = message.decode().context("a frame holds no message")?;
        match ServerMessage::try_from(event).context("a frame holds an invalid message")? {
            ServerMessage::Welcome(welcome) => epoch = Some(welcome.epoch),
            ServerMessage::Batch(batch) => {
                source_version = batch.source_version;
                stage.extend(batch.operations);
            }
            ServerMessage::Bookmark(revision, digest) => {
                refused.append(&mut stage.commit(&mut state).refused);
                let held = state.digests().total();
                ensure!(held == digest, "revision {revision} has not the digest it should have{}", why(&refused));
                let epoch: Epoch = epoch.context("there is no epoch")?;
                let len = total - frames.len();
                first.get_or_insert(len);
                last = Some((epoch, revision, source_version, len));
            }
            ServerMessage::Drain(_) | ServerMessage::DigestRequest => {
                bail!("a frame does not belong in a state file")
            }
        }
    }
    let (epoch, revision, source_version, len) = last.context("there is no whole commit")?;
    let snapshot = first.unwrap_or(len) as u64;
    Ok(Loaded { stored: StoredState { state, epoch, revision, source_version }, snapshot, len: len as u64 })
}

fn why(refused: &[RejectedOperation]) -> String {
    refused.first().map(|first| format!(": {first}")).unwrap_or_default()
}
