//! The frontend's side of the loop: the stream, the replica that it feeds, and the file that stores the replica.

use std::time::{Duration, SystemTime};

use proto::{
    encoded::ReceivedMessage,
    model::{ClientMessage, Epoch, Revision},
};

use crate::{
    Connect, NodeState, Store,
    replica::{ProtocolCounters, Reaction, Replica, Violation},
    stream::{IdleTimeout, StreamEvent, StreamFollower},
};

/// The stream, the replica and the store.
pub(crate) struct Upstream<C> {
    pub(crate) stream: StreamFollower<C>,
    pub(crate) replica: Replica,
    pub(crate) store: Option<Store>,
    pub(crate) identity: BackendIdentity,
}

/// The identity of this process in the hello.
pub(crate) struct BackendIdentity {
    /// [`Backend::NAME`](crate::Backend::NAME).
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) started: SystemTime,
}

/// The stream while the state is borrowed.
pub(super) struct StreamReader<'a, C> {
    stream: &'a mut StreamFollower<C>,
    replica: &'a Replica,
    identity: &'a BackendIdentity,
}

impl<C: Connect> StreamReader<'_, C> {
    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self, idle_timeout: IdleTimeout) -> StreamEvent {
        let Self { stream, replica, identity: BackendIdentity { name, version, started } } = self;
        stream.next(idle_timeout, || replica.hello(name, version, *started)).await
    }
}

impl<C: Connect> Upstream<C> {
    /// The state, and the stream to read meanwhile.
    pub(super) fn split(&mut self) -> (&NodeState, StreamReader<'_, C>) {
        let Self { stream, replica, identity, .. } = self;
        (replica.state(), StreamReader { stream, replica, identity })
    }

    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self, idle_timeout: IdleTimeout) -> StreamEvent {
        self.split().1.next(idle_timeout).await
    }

    pub(super) fn state(&self) -> &NodeState {
        self.replica.state()
    }

    pub(super) fn committed(&self) -> Option<(Epoch, Revision)> {
        self.replica.committed()
    }

    pub(super) fn counters(&self) -> ProtocolCounters {
        self.replica.counters
    }

    pub(super) fn handle(&mut self, received: ReceivedMessage) -> Result<Reaction, Violation> {
        self.replica.handle(received, self.store.as_mut())
    }

    pub(super) fn reply(&mut self, message: ClientMessage) {
        self.stream.reply(message);
    }

    pub(super) fn end_session(&mut self, reason: &str) {
        self.stream.end_session(reason);
    }

    pub(super) fn end_session_after_loss(&mut self) -> Duration {
        self.stream.end_session_after_loss()
    }

    pub(super) fn lost(&mut self) {
        self.replica.lost(self.store.as_mut());
    }

    /// Writes the committed state to its file.
    pub(super) fn flush(&mut self) {
        if let (Some(store), Some((epoch, revision))) = (&mut self.store, self.replica.committed()) {
            store.flush(self.replica.state(), epoch, revision);
        }
    }
}
