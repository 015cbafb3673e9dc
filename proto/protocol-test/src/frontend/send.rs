//! The messages of the scripted frontend.

use std::{collections::BTreeSet, time::Duration};

use proto::{
    digest::INFO_ENTRY,
    encoded::EncodedMessage,
    model::{Ack, Batch, Bookmark, Hello, Operation, Revision, ServerMessage, SourceVersion, SyncMode},
    state::NodeState,
};
use tokio::time::Instant;
use tonic::Status;

use super::{Deviation, Outcome, ScriptedFrontend};
use crate::{samples, state, wire};

/// The number of operations in a batch of a repair or snapshot.
const OPERATIONS_PER_BATCH: usize = 64;

/// A change in a single batch.
pub(crate) fn batch(base: Revision, target: Revision, operations: &[Operation]) -> Batch {
    Batch { base, target, operations: operations.to_vec(), commit: true, ..Batch::default() }
}

/// How a client begins that does not resume.
pub(crate) fn sync_mode(hello: &Hello) -> SyncMode {
    if hello.digests.is_some() { SyncMode::Repair } else { SyncMode::Snapshot }
}

impl ScriptedFrontend<'_> {
    /// Waits for a client, and brings it up to date with the sample cluster.
    pub(crate) async fn sync_samples(&mut self) -> Outcome<Ack> {
        let hello = self.expect_hello().await?;
        let target = samples::state(&self.node, &samples::initial_operations());
        self.sync(&hello, target).await
    }

    /// Brings a client to the state `target`: with a repair if its Hello has digests, otherwise with a snapshot.
    pub(crate) async fn sync(&mut self, hello: &Hello, target: NodeState) -> Outcome<Ack> {
        let entries = state::differing(&target, hello.digests.as_deref());
        self.send_welcome(sync_mode(hello)).await;
        self.repair(Revision(0), &entries, target).await
    }

    /// Brings a client that has reconnected up to date, without a change of the state.
    pub(crate) async fn resync(&mut self, hello: &Hello) -> Outcome<()> {
        if self.resumes(hello) {
            self.send_welcome(SyncMode::Resume).await;
            self.bookmark().await?;
        } else {
            self.sync(hello, self.state.clone()).await?;
        }
        Ok(())
    }

    /// Sends the whole state again on the open stream.
    pub(crate) async fn send_snapshot(&mut self) -> Outcome<Ack> {
        let entries = (0..=INFO_ENTRY).collect();
        self.repair(self.revision, &entries, self.state.clone()).await
    }

    /// Sends these digest entries of `target`, and waits for the Ack.
    pub(crate) async fn repair(&mut self, base: Revision, entries: &BTreeSet<u8>, target: NodeState) -> Outcome<Ack> {
        let operations = state::repair(&target, entries);
        let mut batches: Vec<_> = operations.chunks(OPERATIONS_PER_BATCH).collect();
        let last = batches.pop().unwrap_or_default();
        for operations in batches {
            self.send_batch(Batch { commit: false, ..batch(base, self.revision, operations) }).await;
        }

        self.state = target;
        self.send_batch(batch(base, self.revision, last)).await;
        self.expect_ack().await
    }

    /// Sends a change in one batch, and waits for the Ack.
    pub(crate) async fn commit(&mut self, operations: &[Operation]) -> Outcome<Ack> {
        let base = self.advance(operations);
        self.send_batch(batch(base, self.revision, operations)).await;
        self.expect_ack().await
    }

    /// Sends a change in one batch, with `extra` bytes appended to the messages at a path.
    pub(crate) async fn send_commit_with(
        &mut self,
        operations: &[Operation],
        path: wire::MessagePath<'_>,
        extra: &[u8],
    ) -> Outcome<()> {
        let base = self.advance(operations);
        self.send_with(ServerMessage::Batch(batch(base, self.revision, operations)), path, extra).await
    }

    /// Sends a bookmark for the next revision, and waits for the Ack.
    pub(crate) async fn bookmark(&mut self) -> Outcome<Ack> {
        self.revision.0 += 1;
        self.sent_at = Instant::now();
        self.send(ServerMessage::Bookmark(Bookmark::new(self.revision, self.digest()))).await;
        self.expect_ack().await
    }

    /// Applies operations to the state of the frontend, and returns the revision before.
    pub(crate) fn advance(&mut self, operations: &[Operation]) -> Revision {
        let base = self.revision;
        self.revision.0 += 1;
        self.state.apply(operations.iter().cloned());
        base
    }

    pub(crate) async fn send_welcome(&mut self, mode: SyncMode) {
        self.send(ServerMessage::Welcome(self.welcome(mode))).await;
    }

    pub(crate) async fn send_drain(&mut self, max_delay: Duration) {
        self.send(ServerMessage::Drain(max_delay)).await;
    }

    pub(crate) async fn send_batch(&mut self, batch: Batch) {
        let source_version = if batch.commit { self.source_version() } else { SourceVersion::default() };
        self.sent_at = Instant::now();
        self.send(ServerMessage::Batch(Batch { source_version, ..batch })).await;
    }

    pub(crate) async fn send(&mut self, message: ServerMessage) {
        self.send_encoded(EncodedMessage::new(&message)).await;
    }

    /// Sends a message with `extra` bytes appended to the messages at a path.
    pub(crate) async fn send_with(
        &mut self,
        message: ServerMessage,
        path: wire::MessagePath<'_>,
        extra: &[u8],
    ) -> Outcome<()> {
        let bytes = wire::append(&EncodedMessage::new(&message).to_bytes(), path, extra);
        let bytes = bytes.map_err(|error| Deviation::Violation(format!("got an invalid scenario: {error:#}")))?;
        self.sent_at = Instant::now();
        self.send_encoded(EncodedMessage::from_bytes(bytes.into())).await;
        Ok(())
    }

    async fn send_encoded(&mut self, message: EncodedMessage) {
        if let Some(stream) = &self.stream {
            stream.send(message).await;
        }
    }

    /// Ends the stream with an error, as a frontend that stops. Returns the time.
    pub(crate) async fn end_stream(&mut self) -> Instant {
        if let Some(stream) = self.stream.take() {
            stream.fail(Status::unavailable("the scenario ends this stream")).await;
        }
        Instant::now()
    }
}
