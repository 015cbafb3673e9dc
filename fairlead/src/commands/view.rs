//! A node's view, followed without programming anything: what `watch` and `services` share.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use backend::{Connect as _, NodeState, Session, Stage};
use proto::model::{Ack, Batch, ClientMessage, Hello, NodeInfo, Revision, Role, ServerMessage, SourceVersion, Welcome};

use crate::cli::ViewArgs;

/// A stream of the role observer, and the state it has led to.
pub(crate) struct View {
    session: Session,
    stage: Stage,
    pub(crate) state: NodeState,
}

/// What happened on the stream.
pub(crate) enum Event {
    Welcome(Welcome),
    /// A batch; the state has taken it in when it commits.
    Batch(Batch),
    Bookmark(Revision),
    Drain(Duration),
}

impl View {
    /// Opens a stream for the node that the arguments name.
    pub(crate) async fn open(args: &ViewArgs) -> Result<Self> {
        let node = args.node_name()?;
        let mut grpc = args.frontend.grpc(None)?;
        let hello = Hello {
            node: node.as_str().into(),
            role: Role::Observer,
            backend: "fairlead".to_owned(),
            backend_version: env!("CARGO_PKG_VERSION").to_owned(),
            resume: None,
            digests: None,
            source_version: SourceVersion::default(),
            started: None,
        };
        let session = grpc.connect(hello).await.with_context(|| {
            let addresses = args.frontend.addresses.join(", ");
            format!("cannot follow a frontend at {addresses}; is one running, and is --frontend right?")
        })?;
        Ok(Self { session, stage: Stage::default(), state: NodeState::new(NodeInfo::unknown(node)) })
    }

    /// The next thing that happens; commits and bookmarks are acked.
    pub(crate) async fn next(&mut self) -> Result<Event> {
        loop {
            let Some(event) = self.session.messages.recv().await else {
                bail!("the frontend ended the stream");
            };
            match event.message {
                ServerMessage::Welcome(welcome) => return Ok(Event::Welcome(welcome)),
                ServerMessage::Batch(batch) => {
                    self.stage.extend(batch.operations.iter().cloned());
                    if batch.commit {
                        self.stage.commit(&mut self.state);
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
        let ack = Ack { revision, digest, apply_time: Duration::ZERO, failures: Vec::new() };
        self.reply(ClientMessage::Ack(ack)).await
    }

    async fn reply(&mut self, event: ClientMessage) -> Result<()> {
        self.session.replies.send(event).await.context("the frontend ended the stream")
    }
}
