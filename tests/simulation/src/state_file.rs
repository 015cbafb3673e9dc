//! Reads the position in the stream from a state file, with none of the code that writes it.

use bytes::Bytes;
use proto::{
    encoded::EncodedMessage,
    model::{Epoch, Revision, ServerMessage},
};
use xxhash_rust::xxh64::xxh64;

/// Length and checksum.
const HEADER: usize = 4 + 8;

/// The position of the last complete commit; `None` if there is none.
pub(crate) fn position(file: &[u8]) -> Option<(Epoch, Revision)> {
    let (mut epoch, mut last, mut rest) = (None, None, file);
    while rest.len() >= HEADER {
        let length = u32::from_le_bytes(rest[..4].try_into().ok()?) as usize;
        let checksum = u64::from_le_bytes(rest[4..HEADER].try_into().ok()?);
        let Some(message) = rest.get(HEADER..HEADER + length).filter(|message| xxh64(message, 0) == checksum) else {
            break;
        };
        rest = &rest[HEADER + length..];
        let message = EncodedMessage::from_bytes(Bytes::copy_from_slice(message)).decode().ok()?;
        match ServerMessage::try_from(message).ok()? {
            ServerMessage::Welcome(welcome) => epoch = Some(welcome.epoch),
            ServerMessage::Bookmark(revision, _) => last = Some((epoch?, revision)),
            _ => {}
        }
    }
    last
}
