//! The frontend's side of the loop: the stream, the replica that it feeds, and the file that stores the replica.

use std::sync::Arc;

use proto::encoded::ReceivedMessage;

use crate::{
    Connect, NodeState, Store,
    observe::BackendIdentity,
    replica::{Reaction, Replica, Violation},
    stream::{IdleTimeout, StreamEvent, StreamFollower},
};

/// The stream, the replica and the store.
pub(crate) struct Upstream<C> {
    pub(crate) stream: StreamFollower<C>,
    pub(crate) replica: Replica,
    pub(crate) store: Option<Store>,
    pub(crate) identity: Arc<BackendIdentity>,
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
        self.stream.next(idle_timeout, || self.replica.hello(self.identity)).await
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

    pub(super) fn handle(&mut self, received: ReceivedMessage) -> Result<Reaction, Violation> {
        self.replica.handle(received, self.store.as_mut())
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
