//! The view of a node: opens a stream as an observer, which programs nothing.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use backend::{Connect as _, NodeState, Session};
use proto::model::{Ack, Batch, ClientMessage, Hello, NodeInfo, Revision, Role, ServerMessage, SourceVersion, Welcome};
use tokio::time::timeout;

use crate::cli::FrontendAddressArgs;

/// How long a frontend may take to connect and send its first commit.
const FIRST_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream of the role observer, and the state that it has committed.
pub(crate) struct View {
    session: Session,
    /// Includes what is not committed yet.
    staged: NodeState,
    pub(crate) state: NodeState,
}

/// A message of the frontend.
pub(crate) enum Event {
    Welcome(Welcome),
    /// A batch. If it commits, the state contains it.
    Batch(Batch),
    Bookmark(Revision),
    Drain(Duration),
}

/// The first state that a frontend commits.
pub(crate) async fn committed(frontend: &FrontendAddressArgs, node: &str) -> Result<NodeState> {
    let first = async {
        let mut view = View::open(frontend, node).await?;
        while !matches!(view.next().await?, Event::Batch(batch) if batch.commit) {}
        anyhow::Ok(view.state)
    };
    let committed = timeout(FIRST_COMMIT_TIMEOUT, first).await;
    committed.with_context(|| format!("the frontend sent no state within {FIRST_COMMIT_TIMEOUT:?}")).flatten()
}

impl View {
    /// Opens a stream for a node.
    pub(crate) async fn open(frontend: &FrontendAddressArgs, node: &str) -> Result<Self> {
        let mut grpc = frontend.grpc(None)?;
        let hello = Hello {
            version: proto::PROTOCOL_VERSION,
            node: node.into(),
            role: Role::Observer,
            backend: "fairlead".to_owned(),
            backend_version: env!("CARGO_PKG_VERSION").to_owned(),
            resume: None,
            digests: None,
            source_version: SourceVersion::default(),
            kind_versions: proto::model::KindVersions::default(),
            started: None,
        };
        let session = grpc.connect(hello).await.with_context(|| {
            let addresses = frontend.addresses.join(", ");
            format!("cannot open a stream to a frontend at {addresses}: check that one runs there, and --frontend")
        })?;
        let state = NodeState::new(NodeInfo::unknown(node));
        Ok(Self { session, staged: state.clone(), state })
    }

    /// The next message. Acknowledges commits and bookmarks, and answers digest requests.
    pub(crate) async fn next(&mut self) -> Result<Event> {
        loop {
            let Some(message) = self.session.messages.recv().await else {
                bail!("the frontend ended the stream");
            };
            match message {
                ServerMessage::Welcome(welcome) => return Ok(Event::Welcome(welcome)),
                ServerMessage::Batch(batch) => {
                    self.staged.apply(batch.operations.iter().cloned());
                    if batch.commit {
                        self.state = self.staged.clone();
                        self.ack(batch.target).await?;
                    }
                    return Ok(Event::Batch(batch));
                }
                ServerMessage::Bookmark(revision, _) => {
                    self.ack(revision).await?;
                    return Ok(Event::Bookmark(revision));
                }
                ServerMessage::Drain(within) => return Ok(Event::Drain(within)),
                ServerMessage::DigestRequest => {
                    let digests = Box::new(self.state.digests().clone());
                    self.reply(ClientMessage::DigestResponse(Revision::default(), digests)).await?;
                }
            }
        }
    }

    async fn ack(&mut self, revision: Revision) -> Result<()> {
        let digest = Some(self.state.digests().total());
        let ack = Ack::complete(revision, digest);
        self.reply(ClientMessage::Ack(ack)).await
    }

    async fn reply(&mut self, event: ClientMessage) -> Result<()> {
        self.session.replies.send(event).await.context("the frontend ended the stream")
    }
}
