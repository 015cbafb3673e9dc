//! For fuzz targets: a node's side of the stream, and its state file.

// A panic is how a fuzz target fails.
#![allow(clippy::missing_panics_doc)]

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use proto::{
    digest::Digest,
    encoded::{EncodedMessage, ReceivedMessage},
    model::{KindVersions, NodeInfo, Operation, Revision, ServerMessage, SourceVersion},
};

use crate::{
    LossLimit, NodeState, RunMode,
    identity::BackendIdentity,
    loss::LossGuard,
    replica::{Reaction, Replica},
    store::frame,
};

/// The node of the fuzz targets.
pub const NODE: &str = "node-0";

/// The most operations of a state that is written and read again: more would only take time.
const MAX_WRITTEN: usize = 64;

/// Messages of a frontend, one after the other, to a node without state. A violation of the protocol ends a session,
/// and the next one begins. An even `base` becomes the committed revision, and an even digest the one that is expected:
/// random ones would end each session.
///
/// After each commit the state is the one that its own operations lead to.
pub fn server_messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) {
    let identity = BackendIdentity { node: NODE.into(), backend: "fuzz", version: String::new(), started: UNIX_EPOCH };
    let losses = LossGuard::new(LossLimit::default(), Duration::from_secs(60));
    let mut replica = Replica::new(Arc::new(identity), None, None, losses, RunMode::Program);
    for bytes in messages {
        let Ok(mut received) = ReceivedMessage::decode(EncodedMessage::from_bytes(Bytes::copy_from_slice(bytes)))
        else {
            continue;
        };
        let committed = replica.committed().map(|(_, revision)| revision);
        match &mut received.message {
            ServerMessage::Batch(batch) if batch.base.0 % 2 == 0 => batch.base = committed.unwrap_or_default(),
            ServerMessage::Bookmark(_, digest) if digest.0 % 2 == 0 => *digest = replica.state().digests().total(),
            _ => {}
        }
        match replica.handle(received) {
            Err(violation) => {
                let _ = violation.to_string();
                replica.lost();
            }
            Ok(Reaction::Commit(..)) => check(replica.state()),
            Ok(Reaction::None | Reaction::Reply(_)) => {}
        }
        let _ = replica.hello();
    }
}

/// A state file with these bytes, and one with the same messages, valid checksums and, where they are even, valid
/// digests. What is read is the same after it is written and read again.
pub fn state_file(bytes: &[u8]) {
    let _ = frame::load(NODE, bytes.to_vec());
    let mut frames = Vec::new();
    let mut state = NodeState::new(NodeInfo::unknown(NODE));
    let mut rest = bytes;
    while let Some((header, content)) = rest.split_at_checked(frame::HEADER_BYTES) {
        let length = usize::from(u16::from_le_bytes([header[0], header[1]]));
        let (message, others) = content.split_at(length.min(content.len()));
        rest = others;
        let encoded = EncodedMessage::from_bytes(Bytes::copy_from_slice(message));
        let encoded = match ReceivedMessage::decode(encoded.clone()).map(|received| received.message) {
            Ok(ServerMessage::Batch(batch)) => {
                state.apply(batch.operations);
                encoded
            }
            Ok(ServerMessage::Bookmark(revision, digest)) if digest.0 % 2 == 0 => {
                EncodedMessage::new(&ServerMessage::Bookmark(revision, state.digests().total()))
            }
            _ => encoded,
        };
        frame::put(&mut frames, &encoded);
    }
    let Ok(loaded) = frame::load(NODE, frames) else { return };
    check(&loaded.stored.state);
}

/// Applies the operations of an update to a node without state, and compares the digest.
pub fn apply(operations: Vec<Operation>, digest: Digest) {
    let mut state = NodeState::new(NodeInfo::unknown(NODE));
    let rejected = state.apply(operations);
    assert!(rejected.is_empty(), "a frontend sends what a node rejects: {rejected:?}");
    assert_eq!(state.digests().total(), digest, "the frontend and the node have different states");
    check(&state);
}

/// The state is the same after it is written to a file and read again.
fn check(state: &NodeState) {
    let operations = state.snapshot();
    if operations.len() > MAX_WRITTEN {
        return;
    }
    let mut frames = Vec::new();
    frame::put_welcome(&mut frames, proto::model::Epoch(1));
    let source_version = SourceVersion::default();
    let kind_versions = KindVersions::default();
    frame::put_snapshot(&mut frames, Revision(1), source_version, kind_versions, operations.iter());
    frame::put_bookmark(&mut frames, Revision(1), state.digests().total());
    let bytes = frames.len() as u64;
    match frame::load(NODE, frames) {
        Ok(loaded) => {
            assert_eq!((loaded.bytes, loaded.snapshot_bytes), (bytes, bytes));
            assert!(loaded.stored.state == *state, "{:?}\n is read as\n{:?}", state, loaded.stored.state);
        }
        Err(error) => panic!("what was written cannot be read: {error:#}: {operations:?}"),
    }
}
