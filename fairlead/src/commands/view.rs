//! The view of a node: opens a stream as an observer, which programs nothing.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use backend::{Connect as _, NodeState, Session};
use proto::model::{Ack, ClientMessage, Hello, KindVersions, NodeInfo, Revision, Role, ServerMessage, SourceVersion};
use tokio::time::timeout;

use crate::{cli::FrontendAddressArgs, running_backend::RunningBackend};

/// How long a frontend may take to connect and answer a question of a command, or send its first commit. Longer than a
/// frontend works on a plan, so that its own error is shown.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A stream of the role observer, and the state that it has committed.
pub(crate) struct NodeView {
    session: Session,
    /// The number of the last commit or bookmark.
    number: u64,
    /// The state with the operations that are not committed yet.
    staged: NodeState,
    pub(crate) state: NodeState,
}

/// The first state that a frontend commits.
pub(crate) async fn committed(frontend: &FrontendAddressArgs, node: &str) -> Result<NodeState> {
    let committed = timeout(RESPONSE_TIMEOUT, first_commit(frontend, node)).await;
    committed.with_context(|| format!("the frontend sent no state within {RESPONSE_TIMEOUT:?}")).flatten()
}

async fn first_commit(frontend: &FrontendAddressArgs, node: &str) -> Result<NodeState> {
    let mut view = NodeView::open(frontend, node).await?;
    while !matches!(view.next().await?, ServerMessage::Batch(batch) if batch.commit) {}
    Ok(view.state)
}

/// The first state that a frontend commits for the node of this machine.
///
/// # Errors
/// Also for an unknown node, because the frontend would send the state of any other node.
pub(crate) async fn of_this_node(
    frontend: &FrontendAddressArgs,
    node: &str,
    running: Option<&RunningBackend>,
) -> Result<NodeState> {
    let state = committed(frontend, node).await?;
    if is_unknown(&state, running) {
        bail!(
            "the frontend knows no Node {node}, and no backend that runs as this node answers at --backend-address: \
             set --node to the name of this machine's Node, see `kubectl get nodes`"
        );
    }
    Ok(state)
}

/// Whether there is no Node object, and no backend runs here under this name either.
pub(crate) fn is_unknown(state: &NodeState, running: Option<&RunningBackend>) -> bool {
    let node = state.node();
    node.is_unknown() && running.is_none_or(|running| running.node != *node.name)
}

impl NodeView {
    /// Opens a stream for a node.
    pub(crate) async fn open(frontend: &FrontendAddressArgs, node: &str) -> Result<Self> {
        let mut grpc = frontend.grpc()?;
        let hello = Hello {
            version: proto::PROTOCOL_VERSION,
            node: node.into(),
            role: Role::Observer,
            backend: "fairlead".to_owned(),
            backend_version: env!("CARGO_PKG_VERSION").to_owned(),
            resume: None,
            digests: None,
            source_version: SourceVersion::default(),
            kind_versions: KindVersions::default(),
            started: None,
        };
        let session = grpc.connect(hello).await.with_context(|| {
            let addresses = frontend.addresses.join(", ");
            format!("cannot open a stream to a frontend at {addresses}")
        })?;
        let state = NodeState::new(NodeInfo::unknown(node));
        Ok(Self { session, number: 0, staged: state.clone(), state })
    }

    /// The next message; a batch that commits is in the state. Acknowledges commits and bookmarks, and answers digest
    /// requests.
    pub(crate) async fn next(&mut self) -> Result<ServerMessage> {
        let message = self.session.messages.recv().await.context("the frontend ended the stream")?;
        match &message {
            ServerMessage::Batch(batch) => {
                self.staged.apply(batch.operations.iter().cloned());
                if batch.commit {
                    self.state = self.staged.clone();
                    self.ack().await?;
                }
            }
            ServerMessage::Bookmark(_) => self.ack().await?,
            ServerMessage::DigestRequest => {
                let digests = Box::new(self.state.digests().clone());
                self.reply(ClientMessage::DigestResponse(Revision::default(), digests)).await?;
            }
            ServerMessage::Welcome(_) | ServerMessage::Drain(_) => {}
        }
        Ok(message)
    }

    async fn ack(&mut self) -> Result<()> {
        self.number += 1;
        let digest = Some(self.state.digests().total());
        self.reply(ClientMessage::Ack(Ack::complete(self.number, digest))).await
    }

    async fn reply(&mut self, event: ClientMessage) -> Result<()> {
        self.session.replies.send(event).await.context("the frontend ended the stream")
    }
}
