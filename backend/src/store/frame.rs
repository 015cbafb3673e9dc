//! Length-delimited frames with a checksum, and the messages that a state file contains.
//!
//! ```text
//!   frame:  length (4 bytes, little-endian) | xxh64 of the message, seed 0 (8 bytes, little-endian) | ServerMessage
//!   file:   Welcome  Batch*  Bookmark  { [Welcome]  Batch*  Bookmark }*
//! ```
//!
//! Batches are stored as received; only a bookmark ends a commit. A Welcome marks the epoch of the revisions that
//! follow.

use bytes::{Buf as _, BufMut as _, Bytes};
use proto::{
    digest::Digest,
    encoded::{EncodedMessage, EncodedOperation},
    model::{Batch, Epoch, Operation, Revision, ServerMessage, SourceVersion, SyncMode, Welcome},
};
use xxhash_rust::xxh64::xxh64;

/// Length and checksum.
const HEADER_BYTES: usize = 4 + 8;

/// The size of a batch in a snapshot, so that no frame exceeds the limit of a message.
const BATCH_BYTES: usize = 256 << 10;

/// Appends a frame.
pub(super) fn put(frames: &mut Vec<u8>, message: &EncodedMessage) {
    let message = message.to_bytes();
    // Messages are far below 4 GiB; a wrong length would only invalidate the file.
    frames.put_u32_le(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frames.put_u64_le(xxh64(&message, 0));
    frames.extend_from_slice(&message);
}

/// Appends the epoch of the revisions that follow.
pub(super) fn put_welcome(frames: &mut Vec<u8>, epoch: Epoch) {
    let welcome = Welcome { epoch, mode: SyncMode::Snapshot, source_version: SourceVersion::default() };
    put(frames, &EncodedMessage::new(&ServerMessage::Welcome(welcome)));
}

/// Appends the operations of a snapshot as batches of limited size.
pub(super) fn put_snapshot<'a>(
    frames: &mut Vec<u8>,
    target: Revision,
    source_version: SourceVersion,
    operations: impl Iterator<Item = &'a Operation>,
) {
    let batch = |commit| Batch { target, commit, source_version, ..Batch::default() };
    let (mut part, mut bytes) = (Vec::new(), 0);
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
pub(super) fn batch_of(operations: Vec<Operation>) -> EncodedMessage {
    EncodedMessage::new(&ServerMessage::Batch(Batch { operations, ..Batch::default() }))
}

/// Ends a commit: the batches before it lead to a state with this digest.
pub(super) fn put_bookmark(frames: &mut Vec<u8>, revision: Revision, digest: Digest) {
    put(frames, &EncodedMessage::new(&ServerMessage::Bookmark(revision, digest)));
}

/// Takes the first frame. `None` when it is truncated or its checksum differs.
pub(super) fn take(frames: &mut Bytes) -> Option<EncodedMessage> {
    let mut rest = frames.clone();
    if rest.len() < HEADER_BYTES {
        return None;
    }
    let (length, checksum) = (rest.get_u32_le() as usize, rest.get_u64_le());
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
