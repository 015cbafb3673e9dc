//! Reads what a state file says about its state, with none of the code that writes it.

use bytes::Bytes;
use proto::{
    encoded::EncodedMessage,
    model::{Bookmark, Epoch, Revision, ServerMessage},
};
use xxhash_rust::xxh64::xxh64;

/// What a state file says about its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The position in the stream.
    pub(crate) position: (Epoch, Revision),
    /// The boot in which a frontend has confirmed it; empty: unknown.
    pub(crate) boot: String,
}

/// The header of a file; `None` if the file is not valid.
pub(crate) fn header(file: &[u8]) -> Option<Header> {
    let rest = file.strip_prefix(b"FlState1")?;
    let (checksum, mut rest) = rest.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*checksum) != xxh64(rest, 0) {
        return None;
    }
    let mut chunks = Vec::new();
    while let Some((length, others)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        chunks.push(others.get(..length)?);
        rest = &others[length..];
    }
    let message =
        |chunk: &[u8]| ServerMessage::try_from(EncodedMessage::from_bytes(Bytes::copy_from_slice(chunk))).ok();
    let [boot, welcome, .., bookmark] = &chunks[..] else { return None };
    let (ServerMessage::Welcome(welcome), ServerMessage::Bookmark(Bookmark { revision, .. })) =
        (message(welcome)?, message(bookmark)?)
    else {
        return None;
    };
    let boot = String::from_utf8(boot.to_vec()).ok()?;
    Some(Header { position: (welcome.epoch, revision), boot })
}
