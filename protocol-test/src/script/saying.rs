//! What the scripted frontend says.

use std::{collections::BTreeSet, time::Duration};

use proto::{
    digest::INFO_ENTRY,
    encoded::EncodedMessage,
    model::{Ack, Batch, Hello, Operation, Revision, ServerMessage, SourceVersion, SyncMode},
};
use tokio::time::Instant;
use tonic::Status;

use super::{Played, Script, Stop};
use crate::{samples, state::State, wire};

/// How many operations are put into one batch of a snapshot.
const OPERATIONS: usize = 64;

/// A change in one batch, which commits.
pub(crate) fn batch(base: Revision, target: Revision, operations: &[Operation]) -> Batch {
    Batch {
        base,
        target,
        operations: operations.to_vec(),
        commit: true,
        oldest_trigger: None,
        source_version: SourceVersion::default(),
    }
}

impl Script<'_> {
    /// The usual beginning: a client that holds what the cluster has.
    pub(crate) async fn begin(&mut self) -> Played<Ack> {
        let hello = self.connect().await?;
        let target = State::new(&self.node).with(&samples::services());
        self.rebuild(&hello, target).await
    }

    /// Makes the client hold `target`, whatever it says that it holds: what differs for one with digests, otherwise everything.
    pub(crate) async fn rebuild(&mut self, hello: &Hello, target: State) -> Played<Ack> {
        let entries = target.differing(hello.digests.as_deref());
        let mode = if hello.digests.is_some() { SyncMode::Repair } else { SyncMode::Snapshot };
        self.welcome(mode).await;
        self.rebuild_entries(Revision(0), &entries, target).await
    }

    /// Sends everything on a stream that is under way.
    pub(crate) async fn rebuild_all(&mut self) -> Played<Ack> {
        let entries = (0..=INFO_ENTRY).collect();
        self.rebuild_entries(self.revision, &entries, self.state.clone()).await
    }

    /// Sends these buckets as `target` has them. `base` is what the batches say that they start from.
    pub(crate) async fn rebuild_entries(
        &mut self,
        base: Revision,
        entries: &BTreeSet<u8>,
        target: State,
    ) -> Played<Ack> {
        let operations = target.rebuild(entries);
        let mut parts: Vec<_> = operations.chunks(OPERATIONS).collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            self.say_batch(Batch { commit: false, ..batch(base, self.revision, part) }).await;
        }
        self.state = target;
        self.say_batch(batch(base, self.revision, last)).await;
        self.ack().await
    }

    /// The next change, committed and acked.
    pub(crate) async fn commit(&mut self, operations: &[Operation]) -> Played<Ack> {
        let base = self.advance(operations);
        self.say_batch(batch(base, self.revision, operations)).await;
        self.ack().await
    }

    /// The same with bytes that nobody knows, in the message at a path.
    pub(crate) async fn commit_with(
        &mut self,
        operations: &[Operation],
        path: wire::Path<'_>,
        extra: &[u8],
    ) -> Played<()> {
        let base = self.advance(operations);
        self.say_with(ServerMessage::Batch(batch(base, self.revision, operations)), path, extra).await
    }

    /// Nothing has happened, up to a later revision.
    pub(crate) async fn bookmark(&mut self) -> Played<Ack> {
        self.revision.0 += 1;
        self.sent = Instant::now();
        self.say(ServerMessage::Bookmark(self.revision, self.digest())).await;
        self.ack().await
    }

    /// The cluster is one change further. Gives the revision before.
    pub(crate) fn advance(&mut self, operations: &[Operation]) -> Revision {
        let base = self.revision;
        self.revision.0 += 1;
        operations.iter().for_each(|operation| self.state.apply(operation));
        base
    }

    pub(crate) async fn welcome(&mut self, mode: SyncMode) {
        self.say(ServerMessage::Welcome(self.present(mode))).await;
    }

    pub(crate) async fn drain(&mut self, delay: Duration) {
        self.say(ServerMessage::Drain(delay)).await;
    }

    pub(crate) async fn say_batch(&mut self, batch: Batch) {
        let source_version = if batch.commit { self.source_version() } else { SourceVersion::default() };
        self.sent = Instant::now();
        self.say(ServerMessage::Batch(Batch { source_version, ..batch })).await;
    }

    pub(crate) async fn say(&mut self, event: ServerMessage) {
        self.say_encoded(EncodedMessage::new(&event)).await;
    }

    /// Says something with bytes that nobody knows, in the message at a path.
    pub(crate) async fn say_with(&mut self, event: ServerMessage, path: wire::Path<'_>, extra: &[u8]) -> Played<()> {
        let bytes = wire::append(&EncodedMessage::new(&event).to_bytes(), path, extra);
        let bytes = bytes.map_err(|error| Stop::Broken(format!("the scenario itself is wrong: {error:#}")))?;
        self.sent = Instant::now();
        self.say_encoded(EncodedMessage::from_bytes(bytes.into())).await;
        Ok(())
    }

    async fn say_encoded(&mut self, message: EncodedMessage) {
        if let Some(peer) = &self.peer {
            peer.say(message).await;
        }
    }

    /// Ends the stream with an error, as a frontend that goes away does. Says when.
    pub(crate) async fn end(&mut self) -> Instant {
        if let Some(peer) = self.peer.take() {
            peer.fail(Status::unavailable("the scenario ends this stream")).await;
        }
        Instant::now()
    }
}
