//! A frontend with a source that the test plays, and a client that does as it should unless it is told otherwise.

use std::{sync::Arc, time::Duration};

use proto::{
    digest::Digest,
    model::{
        Ack, Batch, ClientMessage, Epoch, Hello, Revision, Role, ServerMessage, ServicePortFailure, SourceVersion,
        SyncMode, Welcome,
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
    Config, Frontend, OutgoingMessage,
    identity::Identity,
    log::tests::mirror::Mirror,
    object::{ClusterObject, SourceUpdate},
    session::{self, SessionError},
    testing::initial,
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
    pub(super) mirror: Mirror,
    /// The largest message so far, in bytes.
    pub(super) largest: usize,
    epoch: Epoch,
    /// What the next batch must start from.
    base: Revision,
    events: mpsc::Sender<Result<ClientMessage, SessionError>>,
    frames: mpsc::Receiver<OutgoingMessage>,
    session: JoinHandle<Result<(), SessionError>>,
}

/// A node that holds nothing.
pub(in crate::session) fn hello(node: &str) -> Hello {
    Hello {
        node: node.into(),
        role: Role::Backend,
        backend: "nft".to_owned(),
        backend_version: "1.2.3".to_owned(),
        resume: None,
        digests: None,
        source_version: SourceVersion(0),
        started: None,
    }
}

impl Fixture {
    /// A frontend that knows nothing yet.
    pub(super) fn new(config: Config) -> Self {
        let frontend = Frontend::new(config);
        let (trigger, shutdown) = Shutdown::channel();
        let (updates, receiver) = mpsc::channel(16);
        let ready = Ready::new();
        let guard = ready.guard("cluster");
        let running = (frontend.clone(), shutdown.clone());
        tokio::spawn(async move { running.0.run(receiver, guard, running.1).await });
        let revisions = frontend.cluster.revisions();
        Self { frontend, ready, shutdown, updates, trigger, revisions }
    }

    /// A frontend that knows these objects.
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
        // Quiet for long enough that the next change is committed at once.
        tokio::time::advance(Duration::from_secs(1)).await;
        fixture
    }

    pub(super) async fn update(&self, update: SourceUpdate) {
        self.updates.send(update).await.unwrap();
    }

    pub(super) fn revision(&self) -> Revision {
        self.frontend.cluster.log().revision()
    }

    /// Waits for the commit of what has been sent, and until the next can follow at once.
    pub(super) async fn committed(&self) -> Revision {
        let before = *self.revisions.borrow();
        let mut revisions = self.frontend.cluster.revisions();
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
        let client = self.connect_silently(&hello.node.clone());
        client.say(ClientMessage::Hello(hello)).await;
        client
    }

    /// A stream without a Hello.
    pub(super) fn connect_silently(&self, node: &str) -> Client {
        let (events, receiver) = mpsc::channel(16);
        let (sender, frames) = mpsc::channel(1);
        let shared = self.frontend.sessions.clone();
        let session =
            session::run(shared, Identity::Trusted, ReceiverStream::new(receiver), sender, self.shutdown.clone());
        let session = tokio::spawn(session);
        Client { mirror: Mirror::new(node), largest: 0, epoch: Epoch(0), base: Revision(0), events, frames, session }
    }

    /// A node that holds everything.
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
    pub(super) fn mirror_of(node: &str) -> Mirror {
        Mirror::new(node)
    }

    /// Holds what another stream was told before.
    pub(super) fn holding(self, mirror: Mirror) -> Self {
        Self { mirror, ..self }
    }

    /// Ends the stream, and gives the Hello with which to come back.
    pub(super) fn resume(&self) -> Hello {
        self.session.abort();
        Hello {
            resume: Some((self.epoch, self.mirror.revision)),
            digests: Some(Box::new(self.mirror.digests())),
            ..hello(&self.mirror.name)
        }
    }

    pub(super) async fn say(&self, event: ClientMessage) {
        self.events.send(Ok(event)).await.unwrap();
    }

    pub(super) async fn say_unreadable(&self, error: SessionError) {
        self.events.send(Err(error)).await.unwrap();
    }

    pub(super) async fn event(&mut self) -> ServerMessage {
        let frame = timeout(Duration::from_secs(3600), self.frames.recv()).await;
        let frame = frame.expect("nothing comes").expect("the stream has ended");
        let encoded = frame.encode(&crate::log::EncodingCounters::default());
        self.largest = self.largest.max(encoded.len());
        let decoded = ServerMessage::try_from(encoded.decode().unwrap()).unwrap();
        let event = frame.into_message();
        assert_eq!(decoded, event, "the bytes say something else than the values");
        event
    }

    pub(super) async fn hears_nothing(&mut self, within: Duration) {
        let frame = timeout(within, self.frames.recv()).await;
        assert!(frame.is_err(), "{frame:?}");
    }

    pub(super) async fn welcome(&mut self) -> SyncMode {
        let event = self.event().await;
        let ServerMessage::Welcome(Welcome { epoch, mode, .. }) = event else { panic!("{event:?}") };
        self.epoch = epoch;
        self.base = if mode == SyncMode::Resume { self.mirror.revision } else { Revision(0) };
        mode
    }

    /// Receives up to a commit and holds it, but does not acknowledge it.
    pub(super) async fn batches(&mut self) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        while batches.last().is_none_or(|batch| !batch.commit) {
            match self.event().await {
                ServerMessage::Batch(batch) => batches.push(batch),
                event => panic!("{event:?}"),
            }
        }
        for batch in &batches {
            assert_eq!(batch.base, self.base, "{batch:?}");
            batch.operations.iter().for_each(|operation| self.mirror.operate(operation.clone()));
        }
        self.mirror.revision = batches.last().unwrap().target;
        self.base = self.mirror.revision;
        batches
    }

    /// Receives a commit and acknowledges it.
    pub(super) async fn commit(&mut self) {
        self.batches().await;
        self.ack().await;
    }

    pub(super) async fn bookmark(&mut self) -> (Revision, Digest) {
        let event = self.event().await;
        let ServerMessage::Bookmark(revision, digest) = event else { panic!("{event:?}") };
        self.mirror.revision = revision;
        self.base = revision;
        (revision, digest)
    }

    pub(super) async fn ack(&self) {
        self.ack_with(Vec::new()).await;
    }

    pub(super) async fn ack_with(&self, failures: Vec<ServicePortFailure>) {
        let digest = Some(self.mirror.digests().total());
        self.say(ClientMessage::Ack(self.ack_of(digest, failures))).await;
    }

    /// An ack of what the mirror holds, with a digest of one's own.
    pub(super) fn ack_of(&self, digest: Option<Digest>, failures: Vec<ServicePortFailure>) -> Ack {
        Ack { revision: self.mirror.revision, digest, apply_time: Duration::from_millis(1), failures }
    }

    /// Everything has been acknowledged, and nothing more is to be said but that.
    pub(super) async fn settles(&mut self) {
        let digest = self.bookmark().await.1;
        assert_eq!(digest, self.mirror.digests().total());
        self.ack().await;
    }

    /// How the stream ends when the client does not leave.
    pub(super) async fn ends(self) -> Result<(), SessionError> {
        let _held = (self.events, self.frames);
        timeout(Duration::from_secs(3600), self.session).await.expect("the stream goes on").unwrap()
    }

    /// How the stream ends, within this time, when the client neither leaves nor reads.
    pub(super) async fn ends_after(self, within: Duration) -> Result<(), SessionError> {
        timeout(within + Duration::from_millis(1), self.ends()).await.expect("the stream goes on")
    }

    /// How the stream ends when the client leaves.
    pub(super) async fn leaves(self) -> Result<(), SessionError> {
        drop(self.events);
        timeout(Duration::from_millis(1), self.session).await.expect("the stream goes on").unwrap()
    }

    /// The first chunk of a batch.
    pub(super) fn shared_chunk(frame: &OutgoingMessage) -> Option<Arc<crate::log::EncodedChunk>> {
        match frame {
            OutgoingMessage::Batch { chunks, .. } => chunks.first().cloned(),
            OutgoingMessage::Plain(_) => None,
        }
    }

    pub(super) async fn frame(&mut self) -> OutgoingMessage {
        self.frames.recv().await.expect("the stream has ended")
    }
}
