//! A well-behaved client: it applies what it receives, and acknowledges it with its digest.

use proto::{
    model::{Batch, Bookmark, Operation, ServerMessage, SyncMode},
    v1::{self, client_message::Message as ClientMessage, server_message::Message},
};

use tonic::transport::Channel;

use super::{
    cluster::ack,
    fixture::{Server, Stream, hello},
    replica::Replica,
};

/// A well-behaved client.
pub(crate) struct Client {
    pub(crate) stream: Stream,
    pub(crate) state: Replica,
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) mode: SyncMode,
    node: String,
}

impl Client {
    /// Connects a node and brings it up to date.
    pub(crate) async fn join(server: &Server, node: &str) -> Self {
        let state = Replica::default();
        let mut good = Self::start(server.channel().await, hello(node), state).await;
        assert_eq!(good.mode, SyncMode::Snapshot);
        good.change().await;
        good
    }

    /// Reconnects to another server, with its state.
    pub(crate) async fn reconnect_to(self, server: &Server) -> Self {
        self.reconnect_over(server.channel().await).await
    }

    pub(crate) async fn reconnect_over(self, channel: Channel) -> Self {
        let Self { stream, state, epoch, revision, node, .. } = self;
        drop(stream);
        let hello = v1::Hello { epoch, revision, digests: state.digests().to_vec(), ..hello(&node) };
        Self::start(channel, hello, state).await
    }

    async fn start(channel: Channel, hello: v1::Hello, state: Replica) -> Self {
        let node = hello.node.clone();
        let stream = Stream::hello(channel, hello).await.unwrap();
        let mut good = Self { stream, state, epoch: 0, revision: 0, mode: SyncMode::Snapshot, node };
        match good.next().await {
            ServerMessage::Welcome(welcome) => (good.epoch, good.mode) = (welcome.epoch.0, welcome.mode),
            other => panic!("{other:?}"),
        }
        good
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> ServerMessage {
        let message = self.stream.next().await.unwrap().expect("the stream ended");
        ServerMessage::try_from(v1::ServerMessage { message: Some(message) }).unwrap()
    }

    /// Receives and acknowledges the next commit. Returns how many operations it has.
    pub(crate) async fn change(&mut self) -> usize {
        let operations = self.commit().await;
        self.ack(self.state.digests().total().0).await;
        operations.len()
    }

    /// Receives and applies the next commit without acknowledging it. Answers bookmarks and digest requests before it.
    pub(crate) async fn commit(&mut self) -> Vec<Operation> {
        let mut all = Vec::new();
        loop {
            match self.next().await {
                ServerMessage::Batch(Batch { operations, commit, target, .. }) => {
                    all.extend(operations);
                    if commit {
                        all.iter().cloned().for_each(|operation| self.state.apply(operation));
                        self.revision = target.0;
                        return all;
                    }
                }
                ServerMessage::Bookmark(Bookmark { revision, digest, .. }) => {
                    assert_eq!(digest, self.state.digests().total());
                    self.revision = revision.0;
                    self.ack(digest.0).await;
                }
                ServerMessage::DigestRequest => self.send_digests().await,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Acknowledges the last message with the given digest.
    pub(crate) async fn ack(&mut self, digest: u64) {
        let ack = v1::Ack { digest, ..ack(self.stream.number) };
        assert!(self.stream.send(ClientMessage::Ack(ack)).await, "the stream ended");
    }

    async fn send_digests(&self) {
        let digests = v1::DigestResponse { revision: self.revision, digests: self.state.digests().to_vec() };
        assert!(self.stream.send(ClientMessage::DigestResponse(digests)).await);
    }

    /// Waits for a Drain, and returns its maximum delay in milliseconds.
    pub(crate) async fn drained(&mut self) -> u32 {
        loop {
            match self.stream.next().await.unwrap().expect("the stream ended") {
                Message::Drain(drain) => return drain.max_delay_millis,
                Message::Bookmark(v1::Bookmark { revision, .. }) => {
                    self.revision = revision;
                    self.ack(self.state.digests().total().0).await;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
