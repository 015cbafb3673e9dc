//! The bytes of a stream: for a snapshot, for one change, for a reconnect. The frontend runs in this process, so that
//! each message can be measured in its encoded form; gRPC and HTTP/2 add 14 bytes of frame headers to each.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use backend::NodeState;
use frontend::{Config, Frontend, source::Source};
use proto::{
    encoded::EncodedMessage,
    model::{
        Ack, Bookmark, ClientMessage, Epoch, Hello, NodeInfo, Revision, Role, ServerMessage, SourceVersion, SyncMode,
    },
};
use runtime::{Ready, Shutdown};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    lab::DEADLINE,
    manifests::{Manifests, NODE},
    report::{Goal, Report},
};

const SERVICES: u32 = 10_000;
/// The number of edits of whose sizes the mean is reported.
const EDITS: u32 = 20;
/// Capacity of the queue of updates.
const UPDATES: usize = 1_024;
/// Short, because a bookmark completes a reconnect.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(200);

/// The client of a stream, with the committed state.
struct Client {
    replies: mpsc::Sender<ClientMessage>,
    events: mpsc::Receiver<ServerMessage>,
    state: NodeState,
    epoch: Epoch,
    revision: Revision,
    /// The number of the last commit or bookmark.
    number: u64,
    mode: Option<SyncMode>,
}

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for (each, goal) in [(10, Goal::None), (25, Goal::AtMost(3.0))] {
        Report::progress(&format!("streaming {SERVICES} x {each}"));
        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let manifests = Manifests::write(directory.path(), SERVICES, each)?;
        runtime.block_on(stream(report, &manifests, &format!("10,000 x {each}"), goal))?;
    }
    Ok(())
}

async fn stream(report: &mut Report, manifests: &Manifests, size: &str, goal: Goal) -> Result<()> {
    // Dropping the trigger would start the shutdown.
    let (_trigger, shutdown) = Shutdown::channel();
    let frontend = start(manifests, &shutdown);
    let mut client = Client::attach(&frontend, &shutdown, None);
    let bytes = client.commit().await?;
    report.add(&format!("snapshot, {size}"), bytes as f64 / 1e6, "MB", goal);

    let mut bytes = 0;
    for number in 0..EDITS {
        manifests.stage(number)?.apply()?;
        bytes += client.commit().await?;
    }
    let each = bytes as f64 / f64::from(EDITS);
    report.add(&format!("one endpoint replaced, {size}"), each, "bytes", Goal::AtMost(100.0));

    let mut again = Client::attach(&frontend, &shutdown, Some(&client));
    let bytes = again.bookmark().await?;
    ensure!(again.mode == Some(SyncMode::Resume), "the stream started with {:?}", again.mode);
    report.add(&format!("reconnect, nothing changed, {size}"), bytes as f64, "bytes", Goal::AtMost(4096.0));

    let restarted = start(manifests, &shutdown);
    let mut again = Client::attach(&restarted, &shutdown, Some(&client));
    let bytes = again.bookmark().await? + client.state.digests().to_vec().len() * 8;
    ensure!(again.mode == Some(SyncMode::Repair), "the stream started with {:?}", again.mode);
    let what = format!("reconnect to a restarted frontend, including the digests sent, {size}");
    report.add(&what, bytes as f64, "bytes", Goal::AtMost(4096.0));
    Ok(())
}

/// Starts a frontend on the manifests; it ends with the runtime.
fn start(manifests: &Manifests, shutdown: &Shutdown) -> Frontend {
    let config = Config { bookmark_interval: BOOKMARK_INTERVAL, ..Config::default() };
    let (frontend, ready) = (Frontend::new(config), Ready::default());
    let (updates, receiver) = mpsc::channel(UPDATES);
    let source = Source::Manifests(manifests.directory().to_owned());
    tokio::spawn(source.run(updates, frontend.freshness(), shutdown.clone()));
    let (engine, listed, shutdown) = (frontend.clone(), ready.guard("list"), shutdown.clone());
    tokio::spawn(async move { engine.run(receiver, listed, shutdown).await });
    frontend
}

impl Client {
    /// Opens a stream, as a new client or with the state of `before`.
    fn attach(frontend: &Frontend, shutdown: &Shutdown, before: Option<&Self>) -> Self {
        let hello = Hello {
            version: proto::PROTOCOL_VERSION,
            node: NODE.into(),
            role: Role::Observer,
            backend: "bench".to_owned(),
            backend_version: env!("CARGO_PKG_VERSION").to_owned(),
            resume: before.map(|client| (client.epoch, client.revision)),
            digests: before.map(|client| Box::new(client.state.digests().clone())),
            source_version: SourceVersion(0),
            kind_versions: proto::model::KindVersions::default(),
            started: None,
        };
        let (replies, events) = frontend.attach(hello, shutdown.clone());
        Self {
            replies,
            events,
            state: NodeState::new(NodeInfo::unknown(NODE)),
            epoch: Epoch::default(),
            revision: Revision::default(),
            number: 0,
            mode: None,
        }
    }

    /// Receives messages up to the next commit, and returns their size.
    async fn commit(&mut self) -> Result<usize> {
        let mut bytes = 0;
        loop {
            let event = self.event().await?;
            // A bookmark is not part of the change.
            if !matches!(event, ServerMessage::Bookmark(..)) {
                bytes += EncodedMessage::new(&event).size();
            }
            if matches!(event, ServerMessage::Batch(batch) if batch.commit) {
                return Ok(bytes);
            }
        }
    }

    /// Receives messages up to the next bookmark, and returns their size.
    async fn bookmark(&mut self) -> Result<usize> {
        let mut bytes = 0;
        loop {
            let event = self.event().await?;
            bytes += EncodedMessage::new(&event).size();
            if matches!(event, ServerMessage::Bookmark(..)) {
                return Ok(bytes);
            }
        }
    }

    async fn event(&mut self) -> Result<ServerMessage> {
        let event = timeout(DEADLINE, self.events.recv()).await.context("the stream is silent")?;
        let event = event.context("the stream has ended")?;
        match &event {
            ServerMessage::Welcome(welcome) => (self.epoch, self.mode) = (welcome.epoch, Some(welcome.mode)),
            ServerMessage::Batch(batch) => {
                self.state.apply(batch.operations.iter().cloned());
                if batch.commit {
                    self.ack(batch.target).await?;
                }
            }
            ServerMessage::Bookmark(Bookmark { revision, .. }) => self.ack(*revision).await?,
            other => bail!("unexpected: {other:?}"),
        }
        Ok(event)
    }

    async fn ack(&mut self, revision: Revision) -> Result<()> {
        self.revision = revision;
        self.number += 1;
        let ack = Ack::complete(self.number, None);
        self.replies.send(ClientMessage::Ack(ack)).await.context("the stream has ended")
    }
}
