//! A frontend whose object source is the test, and a client that keeps to the protocol.

use std::{sync::Arc, time::Duration};

use proto::{
    digest::Digest,
    model::{
        Ack, Batch, Bookmark, ClientMessage, Epoch, Hello, Revision, ServerMessage, ServicePortFailure, SyncMode,
        Welcome,
    },
};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    Config, Frontend,
    identity::Identity,
    log::tests::node_replica::NodeReplica,
    object::{ClusterObject, SourceUpdate},
    session::{self, OutgoingMessage, SessionError},
    testing::{hello, initial},
};

pub(super) struct Fixture {
    pub(super) frontend: Frontend,
    pub(super) ready: Ready,
    pub(super) shutdown: Shutdown,
    updates: mpsc::Sender<SourceUpdate>,
    trigger: Trigger,
    revisions: watch::Receiver<Option<Revision>>,
}

pub(super) struct Client {
    pub(super) replica: NodeReplica,
    /// The largest message so far, in bytes.
    pub(super) largest: usize,
    epoch: Epoch,
    /// The expected base of the next batch.
    base: Revision,
    /// The revisions of the commits and bookmarks of the stream, in order.
    received: Vec<Revision>,
    to_session: mpsc::Sender<Result<ClientMessage, SessionError>>,
    from_session: mpsc::Receiver<OutgoingMessage>,
    session: JoinHandle<Result<(), SessionError>>,
}

impl Fixture {
    /// A frontend that has not listed any objects.
    pub(super) fn new(config: Config) -> Self {
        let frontend = Frontend::new(config);
        let (trigger, shutdown) = Shutdown::channel();
        let (updates, receiver) = mpsc::channel(16);
        let ready = Ready::default();
        let guard = ready.guard("cluster");
        let running = (frontend.clone(), shutdown.clone());
        tokio::spawn(async move { running.0.run(receiver, guard, running.1).await });
        let revisions = frontend.context.cluster.revisions();
        Self { frontend, ready, shutdown, updates, trigger, revisions }
    }

    /// A frontend with these objects.
    pub(super) async fn of(objects: Vec<ClusterObject>) -> Self {
        Self::with(Config::default(), objects).await
    }

    pub(super) async fn with(config: Config, objects: Vec<ClusterObject>) -> Self {
        let mut fixture = Self::new(config);
        for update in initial(objects) {
            fixture.update(update).await;
        }
        fixture.ready.wait().await;
        fixture.revisions.borrow_and_update();
        // So that the next change is committed at once.
        tokio::time::advance(Duration::from_secs(1)).await;
        fixture
    }

    pub(super) async fn update(&self, update: SourceUpdate) {
        self.updates.send(update).await.unwrap();
    }

    /// The revision that all connected nodes have programmed, after all messages of clients are handled.
    pub(super) async fn programmed(&self) -> Revision {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.frontend.context.streams.programmed().borrow().unwrap()
    }

    pub(super) fn revision(&self) -> Revision {
        self.frontend.context.cluster.log().revision()
    }

    /// Waits until all updates are committed and the next commit can follow at once.
    pub(super) async fn committed(&self) -> Revision {
        let before = *self.revisions.borrow();
        let mut revisions = self.frontend.context.cluster.revisions();
        while self.updates.capacity() < self.updates.max_capacity() {
            tokio::task::yield_now().await;
        }
        let mut tries = 0;
        while *revisions.borrow_and_update() == before && tries < 100 {
            tries += 1;
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.revision()
    }

    pub(super) async fn connect(&self, hello: Hello) -> Client {
        let client = self.connect_without_hello(&hello.node.clone());
        client.send(ClientMessage::Hello(hello)).await;
        client
    }

    /// A stream without a Hello.
    pub(super) fn connect_without_hello(&self, node: &str) -> Client {
        self.connect_as(Identity::Trusted, node)
    }

    /// A stream of a client with this identity, without a Hello.
    pub(super) fn connect_as(&self, identity: Identity, node: &str) -> Client {
        let (to_session, receiver) = mpsc::channel(16);
        let (sender, from_session) = mpsc::channel(1);
        let shared = self.frontend.context.clone();
        let session = session::run(shared, identity, ReceiverStream::new(receiver), sender, self.shutdown.clone());
        let session = tokio::spawn(session);
        Client {
            replica: NodeReplica::new(node),
            largest: 0,
            epoch: Epoch(0),
            base: Revision(0),
            received: Vec::new(),
            to_session,
            from_session,
            session,
        }
    }

    /// Connects a node and brings it up to date.
    pub(super) async fn joined(&self, node: &str) -> Client {
        let mut client = self.connect(hello(node)).await;
        assert_eq!(client.welcome().await, SyncMode::Snapshot);
        client.commit().await;
        client
    }

    pub(super) fn stop(&self) {
        self.trigger.fire();
    }
}

impl Client {
    pub(super) fn replica_of(node: &str) -> NodeReplica {
        NodeReplica::new(node)
    }

    /// Takes the state of an earlier stream.
    pub(super) fn with_state(self, replica: NodeReplica) -> Self {
        Self { replica, ..self }
    }

    /// Ends the stream, and returns the Hello for resuming it.
    pub(super) fn resume(&self) -> Hello {
        self.session.abort();
        Hello {
            resume: Some((self.epoch, self.replica.revision)),
            digests: Some(Box::new(self.replica.state.digests())),
            ..hello(&self.replica.name)
        }
    }

    pub(super) async fn send(&self, message: ClientMessage) {
        self.to_session.send(Ok(message)).await.unwrap();
    }

    pub(super) async fn send_invalid(&self, error: SessionError) {
        self.to_session.send(Err(error)).await.unwrap();
    }

    pub(super) async fn message(&mut self) -> ServerMessage {
        let outgoing = timeout(Duration::from_secs(3600), self.from_session.recv()).await;
        let outgoing = outgoing.expect("no message received").expect("the stream ended");
        let encoded = outgoing.encode(&crate::metrics::Metrics::default());
        self.largest = self.largest.max(encoded.size());
        let decoded = ServerMessage::try_from(encoded.decode().unwrap()).unwrap();
        let message = outgoing.into_message();
        assert_eq!(decoded, message, "encoded message differs from its value");
        message
    }

    pub(super) async fn receives_nothing(&mut self, within: Duration) {
        let outgoing = timeout(within, self.from_session.recv()).await;
        assert!(outgoing.is_err(), "{outgoing:?}");
    }

    pub(super) async fn welcome(&mut self) -> SyncMode {
        let message = self.message().await;
        let ServerMessage::Welcome(Welcome { epoch, mode, .. }) = message else { panic!("{message:?}") };
        self.epoch = epoch;
        self.base = if mode == SyncMode::Resume { self.replica.revision } else { Revision(0) };
        mode
    }

    /// Receives and applies batches up to a commit, without acknowledging it.
    pub(super) async fn batches(&mut self) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        while batches.last().is_none_or(|batch| !batch.commit) {
            match self.message().await {
                ServerMessage::Batch(batch) => batches.push(batch),
                message => panic!("{message:?}"),
            }
        }
        for batch in &batches {
            assert_eq!(batch.base, self.base, "{batch:?}");
            batch.operations.iter().for_each(|operation| self.replica.state.apply(operation.clone()));
        }
        self.received_up_to(batches.last().unwrap().target);
        batches
    }

    /// Receives a commit and acknowledges it.
    pub(super) async fn commit(&mut self) {
        self.batches().await;
        self.ack().await;
    }

    pub(super) async fn bookmark(&mut self) -> Bookmark {
        self.commit_or_bookmark().await.expect("a bookmark")
    }

    /// Receives and applies a commit of one batch, or returns the bookmark that comes instead.
    pub(super) async fn commit_or_bookmark(&mut self) -> Option<Bookmark> {
        let (revision, bookmark) = match self.message().await {
            ServerMessage::Bookmark(bookmark) => (bookmark.revision, Some(bookmark)),
            ServerMessage::Batch(Batch { target, operations, commit: true, .. }) => {
                operations.into_iter().for_each(|operation| self.replica.state.apply(operation));
                (target, None)
            }
            message => panic!("{message:?}"),
        };
        self.received_up_to(revision);
        bookmark
    }

    /// A commit or bookmark has this revision.
    pub(super) fn received_up_to(&mut self, revision: Revision) {
        self.replica.revision = revision;
        self.base = revision;
        self.received.push(revision);
    }

    pub(super) async fn ack(&self) {
        self.ack_with(Vec::new()).await;
    }

    pub(super) async fn ack_with(&self, failures: Vec<ServicePortFailure>) {
        let digest = Some(self.replica.state.digests().total());
        self.send(ClientMessage::Ack(self.ack_of(digest, failures))).await;
    }

    /// Acknowledges the last commit or bookmark, when only those up to this revision are programmed.
    pub(super) async fn ack_programmed(&self, programmed: Revision) {
        let ack = self.ack_of(Some(self.replica.state.digests().total()), Vec::new());
        let programmed_number = self.number_of(programmed);
        self.send(ClientMessage::Ack(Ack { programmed_number, ..ack })).await;
    }

    /// The number of the last commit or bookmark up to a revision.
    pub(super) fn number_of(&self, revision: Revision) -> u64 {
        self.received.partition_point(|received| *received <= revision) as u64
    }

    /// An Ack of the last commit or bookmark with the given digest.
    pub(super) fn ack_of(&self, digest: Option<Digest>, failures: Vec<ServicePortFailure>) -> Ack {
        let number = self.received.len() as u64;
        Ack { apply_time: Duration::from_millis(1), failures, ..Ack::complete(number, digest) }
    }

    /// Receives a bookmark with the expected digest, and acknowledges it.
    pub(super) async fn is_up_to_date(&mut self) {
        let digest = self.bookmark().await.digest;
        assert_eq!(digest, self.replica.state.digests().total());
        self.ack().await;
    }

    /// The result of the session while the client stays connected.
    pub(super) async fn ends(self) -> Result<(), SessionError> {
        let _held = (self.to_session, self.from_session);
        timeout(Duration::from_secs(3600), self.session).await.expect("the session has not ended").unwrap()
    }

    /// The result of the session within this time, while the client stays connected and does not read.
    pub(super) async fn ends_after(self, within: Duration) -> Result<(), SessionError> {
        timeout(within + Duration::from_millis(1), self.ends()).await.expect("the session has not ended")
    }

    /// Disconnects, and returns the result of the session.
    pub(super) async fn disconnects(self) -> Result<(), SessionError> {
        drop(self.to_session);
        timeout(Duration::from_millis(1), self.session).await.expect("the session has not ended").unwrap()
    }

    /// The first chunk of a batch.
    pub(super) fn shared_chunk(outgoing: &OutgoingMessage) -> Option<Arc<crate::log::EncodedChunk>> {
        match outgoing {
            OutgoingMessage::Batch { chunks, .. } => chunks.first().cloned(),
            OutgoingMessage::Plain(_) => None,
        }
    }

    pub(super) async fn outgoing(&mut self) -> OutgoingMessage {
        self.from_session.recv().await.expect("the stream ended")
    }
}
