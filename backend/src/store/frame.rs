//! Length-delimited frames with a checksum, and which events a state file consists of.
//!
//! ```text
//!   frame:  length (4 bytes, little-endian) | xxh64 of the message, seed 0 (8 bytes, little-endian) | ServerMessage
//!   file:   Welcome  Batch*  Bookmark  { [Welcome]  Batch*  Bookmark }*
//! ```

use bytes::{Buf as _, BufMut as _, Bytes};
use proto::{
    digest::Digest,
    encoded::{EncodedMessage, EncodedOperation},
    model::{Batch, Epoch, Operation, Revision, ServerMessage, SourceVersion, SyncMode, Welcome},
};
use xxhash_rust::xxh64::xxh64;

/// Length and checksum.
const HEADER: usize = 4 + 8;

/// The operations in one batch are about this many bytes at most, so that no frame is larger than a message may be.
const BATCH_BYTES: usize = 256 << 10;

/// Appends a frame.
fn put(frames: &mut Vec<u8>, message: &EncodedMessage) {
    let message = message.to_bytes();
    // A message is far below 4 GiB (see `BATCH_BYTES`); a wrong length would only make the file invalid.
    frames.put_u32_le(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frames.put_u64_le(xxh64(&message, 0));
    frames.extend_from_slice(&message);
}

/// From here on, revisions belong to this epoch.
pub(super) fn put_welcome(frames: &mut Vec<u8>, epoch: Epoch) {
    put(
        frames,
        &EncodedMessage::new(&ServerMessage::Welcome(Welcome {
            epoch,
            mode: SyncMode::Snapshot,
            source_version: SourceVersion::default(),
        })),
    );
}

/// The operations of one commit, as several batches if they are many.
pub(super) fn put_batches<'a>(
    frames: &mut Vec<u8>,
    (base, target): (Revision, Revision),
    source_version: SourceVersion,
    operations: impl Iterator<Item = &'a Operation>,
) {
    let batch = |commit| Batch { base, target, operations: Vec::new(), commit, oldest_trigger: None, source_version };
    let (mut part, mut len) = (Vec::new(), 0);
    for operation in operations.map(EncodedOperation::new) {
        if len + operation.len() > BATCH_BYTES && !part.is_empty() {
            put(frames, &EncodedMessage::batch(&batch(false), part.drain(..)));
            len = 0;
        }
        len += operation.len();
        part.push(operation);
    }
    put(frames, &EncodedMessage::batch(&batch(true), part));
}

/// Ends a commit: everything before is one state, which has this digest.
pub(super) fn put_bookmark(frames: &mut Vec<u8>, revision: Revision, digest: Digest) {
    put(frames, &EncodedMessage::new(&ServerMessage::Bookmark(revision, digest)));
}

/// Takes the first frame off. `None` when it is torn, or does not hold what its checksum says.
pub(super) fn take(frames: &mut Bytes) -> Option<EncodedMessage> {
    let mut rest = frames.clone();
    if rest.len() < HEADER {
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
