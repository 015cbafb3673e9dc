//! For fuzz targets: a node's side of the stream, and its state file.

// A panic is how a fuzz target fails.
#![allow(clippy::missing_panics_doc)]

use std::{sync::Arc, time::UNIX_EPOCH};

use bytes::Bytes;
use proto::{
    digest::Digest,
    encoded::EncodedMessage,
    model::{Bookmark, Epoch, KindVersions, NodeInfo, Operation, Revision, Role, ServerMessage, SourceVersion},
};

use crate::{
    LossLimit, NodeState, StoredState,
    backend::BackendIdentity,
    loss::LossGuard,
    replica::{Reaction, Replica},
    store::snapshot,
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
    let losses = LossGuard::new(LossLimit::default());
    let mut replica = Replica::new(Arc::new(identity), None, None, losses, Role::Backend);
    for bytes in messages {
        let Ok(mut message) = ServerMessage::try_from(EncodedMessage::from_bytes(Bytes::copy_from_slice(bytes))) else {
            continue;
        };

        let committed = replica.committed().map(|(_, revision)| revision);
        match &mut message {
            ServerMessage::Batch(batch) if batch.base.0 % 2 == 0 => batch.base = committed.unwrap_or_default(),
            ServerMessage::Bookmark(Bookmark { digest, .. }) if digest.0 % 2 == 0 => {
                *digest = replica.state().digests().total()
            }
            _ => {}
        }

        match replica.handle(message) {
            Err(violation) => {
                let _ = violation.to_string();
                replica.session_ended();
            }
            Ok(Reaction::Commit(..)) => check(replica.state()),
            Ok(Reaction::None | Reaction::Reply(_)) => {}
        }
        let _ = replica.hello();
    }
}

/// Reads a state file with these bytes, and a state file with chunks of them, a valid checksum and, where the digest is
/// even, a valid digest. A state that is read is the same after it is written and read again.
pub fn state_file(bytes: &[u8]) {
    let _ = StoredState::decode(NODE, bytes.to_vec());

    let mut chunks = Vec::new();
    let mut state = NodeState::new(NodeInfo::unknown(NODE));
    let mut rest = bytes;
    while let Some((length, content)) = rest.split_first_chunk::<2>() {
        let (chunk, others) = content.split_at(usize::from(u16::from_le_bytes(*length)).min(content.len()));
        rest = others;
        let encoded = EncodedMessage::from_bytes(Bytes::copy_from_slice(chunk));
        match ServerMessage::try_from(encoded) {
            Ok(ServerMessage::Bookmark(Bookmark { revision, digest, .. })) if digest.0 % 2 == 0 => {
                let end = ServerMessage::Bookmark(Bookmark::new(revision, state.digests().total()));
                snapshot::put(&mut chunks, &EncodedMessage::new(&end).to_bytes());
            }
            Ok(ServerMessage::Batch(batch)) => {
                state.apply(batch.operations);
                snapshot::put(&mut chunks, chunk);
            }
            _ => snapshot::put(&mut chunks, chunk),
        }
    }

    let Ok(stored) = StoredState::decode(NODE, snapshot::file(&chunks)) else { return };
    check(&stored.state);
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
    let operations: Vec<_> = state.snapshot().take(MAX_WRITTEN + 1).collect();
    if operations.len() > MAX_WRITTEN {
        return;
    }

    let stored = StoredState {
        revision: Revision(1),
        epoch: Epoch(1),
        source_version: SourceVersion::default(),
        kind_versions: KindVersions::default(),
        boot: None,
        is_outdated: false,
        state: state.clone(),
    };

    match StoredState::decode(NODE, stored.encode()) {
        Ok(read) => assert!(read == stored, "{stored:?}\n is read as\n{read:?}"),
        Err(error) => panic!("what was written cannot be read: {error:#}: {operations:?}"),
    }
}
