//! Both halves with a fake backend and a frontend played by the test.

mod adoption;
mod backend;
mod disk;
mod facts;
mod health;
mod loss;
mod stream;
mod torn;
mod unfinished;

use std::{path::Path, sync::Mutex};

use anyhow::Result;
use proto::{
    digest::Digest,
    model::{
        Batch, Bookmark, ClientMessage, Epoch, FailureKind, Hello, KindVersions, Operation, Revision, ServerMessage,
        ServicePortFailure, ServicePortKey, SourceVersion, SyncMode, Welcome,
    },
};
use runtime::{Ready, Shutdown, Trigger};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    program::{ADOPTION, FIRST_ANSWER},
    *,
};
use crate::{
    Backend, ChangeCounts, NodeState, Progress, Runner, RunnerOptions, StateFile,
    testing::{Call, FakeKernel, NODE_NAME, TornWrite, mk_key, mk_state, operations_between},
};

const EPOCH: Epoch = Epoch(0xe1);

/// A running backend process.
struct Fixture {
    kernel: FakeKernel,
    sessions: mpsc::UnboundedReceiver<Peer>,
    progress: watch::Receiver<Progress>,
    ready: Ready,
    trigger: Trigger,
    runner: JoinHandle<Result<()>>,
}

/// The frontend's end of a session.
struct Peer {
    hello: Hello,
    messages: mpsc::Sender<ServerMessage>,
    replies: mpsc::Receiver<ClientMessage>,
    /// The revisions of the commits and bookmarks, in order.
    sent: Mutex<Vec<Revision>>,
}

/// An Ack, with the revisions of its commits or bookmarks in place of their numbers.
#[derive(Debug)]
struct AckOfRevision {
    received: Revision,
    /// 0: of none.
    programmed: Revision,
    digest: Option<Digest>,
    apply_time: Duration,
    failures: Vec<ServicePortFailure>,
    degraded: Vec<String>,
    unfinished_namespaces: BTreeSet<Arc<str>>,
}

fn start(kernel: &FakeKernel, state_file: Option<&Path>) -> Fixture {
    let (opened, sessions) = mpsc::unbounded_channel();
    let attach = move |hello| {
        let (messages, received) = mpsc::channel(64);
        let (replies, sent) = mpsc::channel(64);
        opened.send(Peer { hello, messages, replies: sent, sent: Mutex::default() }).unwrap();
        (replies, received)
    };
    let ready = Ready::default();
    let state_file = state_file.map(StateFile::local);
    let options = RunnerOptions { state_file, ..RunnerOptions::new(NODE_NAME) };
    let runner = Runner::new(options, kernel.backend(), attach).with_ready(ready.guard("first state"));
    let progress = runner.progress();
    let (trigger, shutdown) = Shutdown::channel();
    let runner = tokio::spawn(runner.run(shutdown));
    Fixture { kernel: kernel.clone(), sessions, progress, ready, trigger, runner }
}

impl Fixture {
    /// The next session.
    async fn session(&mut self) -> Peer {
        self.sessions.recv().await.unwrap()
    }

    /// A session whose snapshot is this state, acked.
    async fn following(&mut self, state: &NodeState) -> Peer {
        let mut peer = self.session().await;
        peer.welcome(EPOCH, SyncMode::Snapshot).await;
        peer.commit(0, 1, everything(state)).await;
        assert_eq!(peer.ack().await.received, Revision(1));
        peer
    }

    /// The programmed service ports.
    fn keys(&self) -> Vec<ServicePortKey> {
        self.kernel.service_ports().keys().cloned().collect()
    }

    async fn stop(self) {
        self.trigger.fire();
        self.runner.await.unwrap().unwrap();
    }
}

impl Peer {
    async fn send(&self, message: ServerMessage) {
        match &message {
            ServerMessage::Batch(Batch { commit: true, target, .. }) => self.sent.lock().unwrap().push(*target),
            ServerMessage::Bookmark(bookmark) => self.sent.lock().unwrap().push(bookmark.revision),
            _ => {}
        }
        self.messages.send(message).await.unwrap();
    }

    async fn welcome(&self, epoch: Epoch, mode: SyncMode) {
        self.send(ServerMessage::Welcome(mk_welcome(epoch, mode, 0))).await;
    }

    async fn part(&self, base: u64, target: u64, operations: Vec<Operation>) {
        self.send(batch(base, target, operations, false)).await;
    }

    async fn commit(&self, base: u64, target: u64, operations: Vec<Operation>) {
        self.send(batch(base, target, operations, true)).await;
    }

    async fn bookmark(&self, revision: u64, digest: Digest) {
        self.send(ServerMessage::Bookmark(Bookmark::new(Revision(revision), digest))).await;
    }

    async fn receive(&mut self) -> ClientMessage {
        self.replies.recv().await.unwrap()
    }

    async fn ack(&mut self) -> AckOfRevision {
        match self.receive().await {
            ClientMessage::Ack(ack) => {
                let sent = self.sent.lock().unwrap();
                let revision = |number: u64| number.checked_sub(1).map_or(Revision(0), |index| sent[index as usize]);
                AckOfRevision {
                    received: revision(ack.received_number),
                    programmed: revision(ack.programmed_number),
                    digest: ack.digest,
                    apply_time: ack.apply_time,
                    failures: ack.failures,
                    degraded: ack.degraded,
                    unfinished_namespaces: ack.unfinished_namespaces,
                }
            }
            other => panic!("expected an ack: {other:?}"),
        }
    }

    /// Waits until all earlier messages are handled. Returns the digest of the committed state.
    async fn barrier(&mut self) -> Digest {
        self.send(ServerMessage::DigestRequest).await;
        match self.receive().await {
            ClientMessage::DigestResponse(_, digests) => digests.total(),
            other => panic!("expected digests: {other:?}"),
        }
    }
}

fn batch(base: u64, target: u64, operations: Vec<Operation>, commit: bool) -> ServerMessage {
    let (base, target) = (Revision(base), Revision(target));
    ServerMessage::Batch(Batch { base, target, operations, commit, ..Batch::default() })
}

/// A commit that reflects this version of the cluster.
fn mk_batch(base: u64, target: u64, version: u64, operations: Vec<Operation>) -> ServerMessage {
    let (base, target, source_version) = (Revision(base), Revision(target), SourceVersion(version));
    ServerMessage::Batch(Batch { base, target, operations, commit: true, source_version, ..Batch::default() })
}

fn mk_welcome(epoch: Epoch, mode: SyncMode, version: u64) -> Welcome {
    let source_version = SourceVersion(version);
    Welcome { epoch, mode, source_version, kind_versions: KindVersions::default(), is_outdated: false }
}

/// The operations of a snapshot.
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
