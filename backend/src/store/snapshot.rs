//! The format of the state file: a checksum, and the messages that a frontend would send to a node without state.
//!
//! ```text
//!   file:   magic (8 bytes) | xxh64 of the rest, seed 0 (8 bytes, little-endian) | chunk*
//!   chunk:  length (4 bytes, little-endian) | content
//!   chunks: the boot id, Welcome, Batch*, Bookmark
//! ```

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, BufMut as _, Bytes};
use proto::{
    encoded::{EncodedMessage, EncodedOperation},
    model::{Batch, Bookmark, NodeInfo, ServerMessage, SyncMode, Welcome},
};
use xxhash_rust::xxh64::xxh64;

use super::StoredState;
use crate::{NodeState, RejectedOperation, disk};

/// Identifies the format and, with its last byte, the version.
const MAGIC: &[u8; 8] = b"FlState1";

/// Magic and checksum.
const HEADER_BYTES: usize = MAGIC.len() + 8;

/// The number of operations in a batch, which is decoded as a whole.
const OPERATIONS_PER_BATCH: usize = 256;

impl StoredState {
    /// Reads the state file of a node without changing it.
    ///
    /// # Errors
    /// When the file cannot be read, is no regular file, too large or damaged, or is of another version or node.
    pub fn read(path: &Path, node: &str) -> Result<Self> {
        Self::decode(node, disk::read_bounded(path)?)
    }

    /// The content of a file with this state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { state, epoch, revision, source_version, kind_versions, boot, is_outdated } = self;
        let welcome = Welcome {
            epoch: *epoch,
            mode: SyncMode::Snapshot,
            source_version: *source_version,
            kind_versions: *kind_versions,
            is_outdated: *is_outdated,
        };

        let mut chunks = Vec::new();
        put(&mut chunks, boot.as_deref().unwrap_or_default().as_bytes());
        put_message(&mut chunks, &EncodedMessage::new(&ServerMessage::Welcome(welcome)));

        let mut operations = state.snapshot().map(|operation| EncodedOperation::new(&operation)).peekable();
        while operations.peek().is_some() {
            let part = operations.by_ref().take(OPERATIONS_PER_BATCH);
            put_message(&mut chunks, &EncodedMessage::batch(&Batch::default(), part));
        }

        let end = ServerMessage::Bookmark(Bookmark::new(*revision, state.digests().total()));
        put_message(&mut chunks, &EncodedMessage::new(&end));
        file(&chunks)
    }

    /// The state in a file.
    ///
    /// # Errors
    /// When the file is damaged, or of another version or node.
    pub(crate) fn decode(node: &str, bytes: Vec<u8>) -> Result<Self> {
        let mut file = Bytes::from(bytes);
        ensure!(!file.is_empty(), "it is empty");
        ensure!(!is_of_another_version(&file), "it is a state file of another version");
        ensure!(file.starts_with(MAGIC), "it is not a state file");
        ensure!(file.len() >= HEADER_BYTES, "it is truncated");
        file.advance(MAGIC.len());
        let checksum = file.get_u64_le();
        ensure!(xxh64(&file, 0) == checksum, "its checksum is wrong");

        let boot = String::from_utf8(take(&mut file)?.into()).context("the boot id is invalid")?;
        let ServerMessage::Welcome(welcome) = take_message(&mut file)? else { bail!("the Welcome is missing") };

        let mut state = NodeState::new(NodeInfo::unknown(node));
        let mut rejected = Vec::new();
        let revision = loop {
            match take_message(&mut file)? {
                ServerMessage::Batch(batch) => rejected.append(&mut state.apply(batch.operations)),
                ServerMessage::Bookmark(Bookmark { revision, digest, .. }) => {
                    if let Some(RejectedOperation::OtherNode(name)) = rejected.first() {
                        bail!("it is the state file of node {name}, and this is node {node}");
                    }
                    let reason = rejected.first().map(|first| format!(": {first}")).unwrap_or_default();
                    ensure!(state.digests().total() == digest, "the state differs from its digest{reason}");
                    break revision;
                }
                _ => bail!("it contains an unexpected message"),
            }
        };
        ensure!(file.is_empty(), "it has data after the last message");

        let Welcome { epoch, source_version, kind_versions, is_outdated, mode: _ } = welcome;
        let boot = Some(boot.into()).filter(|boot: &Arc<str>| !boot.is_empty());
        Ok(Self { state, epoch, revision, source_version, kind_versions, boot, is_outdated })
    }
}

/// Whether it is a state file, but not one that is decoded here.
pub(super) fn is_of_another_version(file: &[u8]) -> bool {
    file.starts_with(&MAGIC[..MAGIC.len() - 1]) && !file.starts_with(MAGIC)
}

/// The content of a file with these chunks.
pub(crate) fn file(chunks: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_BYTES + chunks.len());
    file.extend_from_slice(MAGIC);
    file.put_u64_le(xxh64(chunks, 0));
    file.extend_from_slice(chunks);
    file
}

/// Appends a chunk.
pub(crate) fn put(chunks: &mut Vec<u8>, content: &[u8]) {
    // Batches are far below 4 GiB; a wrong length would only invalidate the file.
    chunks.put_u32_le(u32::try_from(content.len()).unwrap_or(u32::MAX));
    chunks.extend_from_slice(content);
}

fn put_message(chunks: &mut Vec<u8>, message: &EncodedMessage) {
    put(chunks, &message.to_bytes());
}

/// Takes the first chunk.
fn take(chunks: &mut Bytes) -> Result<Bytes> {
    let length = chunks.try_get_u32_le().context("a chunk is missing")? as usize;
    ensure!(chunks.len() >= length, "a chunk is truncated");
    Ok(chunks.split_to(length))
}

fn take_message(chunks: &mut Bytes) -> Result<ServerMessage> {
    ServerMessage::try_from(EncodedMessage::from_bytes(take(chunks)?)).context("a chunk is not a valid message")
}
