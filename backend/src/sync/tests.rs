//! Tests of the loop: a fake backend, and a frontend that the test plays itself.

mod backend;
mod health;
mod loss;
mod stream;

use std::path::Path;

use proto::{
    digest::Digest,
    model::{
        Ack, Batch, Epoch, FailureKind, Hello, Operation, Revision, ServerMessage, ServicePortKey, SourceVersion,
        SyncMode, Welcome,
    },
};
use runtime::{Ready, Trigger};
use tokio::{sync::mpsc, task::JoinHandle};

use super::*;
use crate::{
    InProcess, NodeState, Runner, RunnerOptions,
    testing::{Call, FakeKernel, NODE_NAME, mk_key, mk_state, operations_between},
};

const EPOCH: Epoch = Epoch(0xe1);

/// An agent that runs, and all that the test sees of it.
struct World {
    kernel: FakeKernel,
    sessions: mpsc::UnboundedReceiver<Peer>,
    progress: watch::Receiver<Progress>,
    ready: Ready,
    trigger: Trigger,
    agent: JoinHandle<Result<()>>,
}

/// The frontend's end of a session.
struct Peer {
    hello: Hello,
    events: mpsc::Sender<ServerMessage>,
    replies: mpsc::Receiver<ClientMessage>,
}

fn start(kernel: &FakeKernel, state_file: Option<&Path>) -> World {
    let (opened, sessions) = mpsc::unbounded_channel();
    let attach = InProcess(move |hello| {
        let (events, received) = mpsc::channel(64);
        let (replies, heard) = mpsc::channel(64);
        opened.send(Peer { hello, events, replies: heard }).unwrap();
        (replies, received)
    });
    let ready = Ready::new();
    let state_file = state_file.map(Into::into);
    let options = RunnerOptions { state_file, ..RunnerOptions::new(NODE_NAME) };
    let agent = Runner::new(options, kernel.backend(), attach).with_ready(ready.guard("first state"));
    let progress = agent.progress();
    let (trigger, shutdown) = Shutdown::channel();
    let agent = tokio::spawn(agent.run(shutdown));
    World { kernel: kernel.clone(), sessions, progress, ready, trigger, agent }
}

impl World {
    /// The next session that the agent begins.
    async fn session(&mut self) -> Peer {
        self.sessions.recv().await.unwrap()
    }

    /// A session with this state as the snapshot, acked.
    async fn following(&mut self, state: &NodeState) -> Peer {
        let mut peer = self.session().await;
        peer.welcome(EPOCH, SyncMode::Snapshot).await;
        peer.commit(0, 1, everything(state)).await;
        assert_eq!(peer.ack().await.revision, Revision(1));
        peer
    }

    /// What is programmed.
    fn keys(&self) -> Vec<ServicePortKey> {
        self.kernel.services().into_keys().collect()
    }

    async fn stop(self) {
        self.trigger.fire();
        self.agent.await.unwrap().unwrap();
    }
}

impl Peer {
    async fn say(&self, event: ServerMessage) {
        self.events.send(event).await.unwrap();
    }

    async fn welcome(&self, epoch: Epoch, mode: SyncMode) {
        self.say(ServerMessage::Welcome(Welcome { epoch, mode, source_version: SourceVersion(0) })).await;
    }

    async fn part(&self, base: u64, target: u64, operations: Vec<Operation>) {
        self.say(batch(base, target, operations, false)).await;
    }

    async fn commit(&self, base: u64, target: u64, operations: Vec<Operation>) {
        self.say(batch(base, target, operations, true)).await;
    }

    async fn bookmark(&self, revision: u64, digest: Digest) {
        self.say(ServerMessage::Bookmark(Revision(revision), digest)).await;
    }

    async fn hear(&mut self) -> ClientMessage {
        self.replies.recv().await.unwrap()
    }

    async fn ack(&mut self) -> Ack {
        match self.hear().await {
            ClientMessage::Ack(ack) => ack,
            other => panic!("expected an ack: {other:?}"),
        }
    }

    /// Returns when all that was said before has been taken in; gives back what the agent says it holds.
    async fn barrier(&mut self) -> Digest {
        self.say(ServerMessage::DigestRequest).await;
        match self.hear().await {
            ClientMessage::DigestResponse(_, digests) => digests.total(),
            other => panic!("expected digests: {other:?}"),
        }
    }
}

fn batch(base: u64, target: u64, operations: Vec<Operation>, commit: bool) -> ServerMessage {
    let (base, target) = (Revision(base), Revision(target));
    let source_version = SourceVersion(0);
    ServerMessage::Batch(Batch { base, target, operations, commit, oldest_trigger: None, source_version })
}

/// A commit that reflects this version.
fn mk_batch(base: u64, target: u64, version: u64, operations: Vec<Operation>) -> ServerMessage {
    let (base, target, source_version) = (Revision(base), Revision(target), SourceVersion(version));
    ServerMessage::Batch(Batch { base, target, operations, commit: true, oldest_trigger: None, source_version })
}

fn mk_welcome(epoch: Epoch, mode: SyncMode, version: u64) -> Welcome {
    Welcome { epoch, mode, source_version: SourceVersion(version) }
}

/// What a snapshot of a state consists of.
fn everything(state: &NodeState) -> Vec<Operation> {
    operations_between(&NodeState::new(proto::model::NodeInfo::unknown(NODE_NAME)), state)
}

fn total(state: &NodeState) -> Digest {
    state.digests().total()
}

/// Services with one endpoint each.
fn mk_services(names: &[&str]) -> NodeState {
    let state = names.iter().enumerate().fold(mk_state(), |state, (n, name)| {
        state.service(name, |service| service.cluster_ip(&format!("10.96.0.{}", n + 1)).endpoints(["10.244.1.1:8080"]))
    });
    state.build()
}
