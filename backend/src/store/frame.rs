//! Length-delimited frames with a checksum, and the messages that a state file contains.
//!
//! ```text
//!   frame:  length (4 bytes, little-endian) | xxh64 of the message, seed 0 (8 bytes, little-endian) | ServerMessage
//!   file:   Welcome  Batch*  Bookmark  { [Welcome]  Batch*  Bookmark }*
//! ```
//!
//! Batches are stored as received; only a bookmark ends a commit. A Welcome marks the epoch of the revisions that
//! follow.

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, BufMut as _, Bytes};
use proto::{
    digest::Digest,
    encoded::{EncodedMessage, EncodedOperation},
    model::{
        Batch, Epoch, KindVersions, NodeInfo, Operation, Revision, ServerMessage, SourceVersion, SyncMode, Welcome,
    },
};
use xxhash_rust::xxh64::xxh64;

use super::StoredState;
use crate::NodeState;

/// Length and checksum.
pub(crate) const HEADER_BYTES: usize = 4 + 8;

/// The size of a batch in a snapshot, so that no frame exceeds the limit of a message.
const BATCH_BYTES: usize = 256 << 10;

/// Appends a frame.
pub(crate) fn put(frames: &mut Vec<u8>, message: &EncodedMessage) {
    let message = message.to_bytes();
    // Messages are far below 4 GiB; a wrong length would only invalidate the file.
    frames.put_u32_le(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frames.put_u64_le(xxh64(&message, 0));
    frames.extend_from_slice(&message);
}

/// Appends the epoch of the revisions that follow.
pub(crate) fn put_welcome(frames: &mut Vec<u8>, epoch: Epoch) {
    let welcome = Welcome {
        epoch,
        mode: SyncMode::Snapshot,
        source_version: SourceVersion::default(),
        kind_versions: KindVersions::default(),
    };
    put(frames, &EncodedMessage::new(&ServerMessage::Welcome(welcome)));
}

/// Appends the operations of a snapshot as batches of limited size.
pub(crate) fn put_snapshot<'a>(
    frames: &mut Vec<u8>,
    target: Revision,
    source_version: SourceVersion,
    kind_versions: KindVersions,
    operations: impl Iterator<Item = &'a Operation>,
) {
    let batch = |commit| Batch { target, commit, source_version, kind_versions, ..Batch::default() };
    let mut part = Vec::new();
    let mut bytes = 0;
    for operation in operations.map(EncodedOperation::new) {
        if bytes + operation.len() > BATCH_BYTES && !part.is_empty() {
            put(frames, &EncodedMessage::batch(&batch(false), part.drain(..)));
            bytes = 0;
        }
        bytes += operation.len();
        part.push(operation);
    }
    put(frames, &EncodedMessage::batch(&batch(true), part));
}

/// A batch that precedes those of a commit.
pub(crate) fn batch_of(operations: Vec<Operation>) -> EncodedMessage {
    EncodedMessage::new(&ServerMessage::Batch(Batch { operations, ..Batch::default() }))
}

/// Ends a commit: the batches before it lead to a state with this digest.
pub(crate) fn put_bookmark(frames: &mut Vec<u8>, revision: Revision, digest: Digest) {
    put(frames, &EncodedMessage::new(&ServerMessage::Bookmark(revision, digest)));
}

/// Takes the first frame; `None` when it is truncated or its checksum differs.
fn take(frames: &mut Bytes) -> Option<EncodedMessage> {
    let mut rest = frames.clone();
    if rest.len() < HEADER_BYTES {
        return None;
    }
    let length = rest.get_u32_le() as usize;
    let checksum = rest.get_u64_le();
    if rest.len() < length {
        return None;
    }
    let message = rest.split_to(length);
    if xxh64(&message, 0) != checksum {
        return None;
    }
    *frames = rest;
    Some(EncodedMessage::from_bytes(message))
}

/// The content of a file.
pub(crate) struct Loaded {
    pub(crate) stored: StoredState,
    /// The size of the snapshot at the beginning.
    pub(crate) snapshot_bytes: u64,
    /// The size up to the last complete commit. The rest of the file is truncated.
    pub(crate) bytes: u64,
}

/// The state after the last complete commit.
///
/// # Errors
/// When there is none, or the file cannot be this node's state.
pub(crate) fn load(node: &str, bytes: Vec<u8>) -> Result<Loaded> {
    let mut frames = Bytes::from(bytes);
    let total = frames.len();
    let mut staged = NodeState::new(NodeInfo::unknown(node));
    let mut epoch = None;
    let mut source_version = SourceVersion::default();
    let mut kind_versions = KindVersions::default();
    let mut first = None;
    let mut last = None;
    // They were also rejected when they were received; the digest shows whether the result is the same.
    let mut rejected = Vec::new();
    while let Some(message) = take(&mut frames) {
        let message = message.decode().context("a frame contains no message")?;
        match ServerMessage::try_from(message).context("a frame contains an invalid message")? {
            ServerMessage::Welcome(welcome) => epoch = Some(welcome.epoch),
            ServerMessage::Batch(batch) => {
                // A frontend that does not know the version leaves it as it is.
                if batch.source_version != SourceVersion::default() {
                    source_version = batch.source_version;
                    kind_versions = kind_versions.updated(batch.kind_versions);
                }
                rejected.append(&mut staged.apply(batch.operations));
            }
            ServerMessage::Bookmark(revision, digest) => {
                let matches = staged.digests().total() == digest;
                let reason = rejected.first().map(|first| format!(": {first}")).unwrap_or_default();
                ensure!(matches, "the state at revision {revision} differs from its digest{reason}");
                let epoch: Epoch = epoch.context("the file does not begin with a Welcome")?;
                let len = total - frames.len();
                first.get_or_insert(len);
                last = Some((staged.clone(), epoch, revision, (source_version, kind_versions), len));
            }
            ServerMessage::Drain(_) | ServerMessage::DigestRequest => {
                bail!("a frame contains a message that does not belong in a state file")
            }
        }
    }
    let (state, epoch, revision, (source_version, kind_versions), len) =
        last.context("the file contains no complete commit")?;
    let snapshot_bytes = first.unwrap_or(len) as u64;
    Ok(Loaded {
        stored: StoredState { state, epoch, revision, source_version, kind_versions },
        snapshot_bytes,
        bytes: len as u64,
    })
}
