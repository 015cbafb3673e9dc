//! What a new frontend without faults decides for a node.

use std::sync::Arc;

use fake_api_server::ApiServer;
use frontend::Frontend;
use proto::model::{Hello, KindVersions, Role, ServerMessage, SourceVersion};
use runtime::Shutdown;
use tokio::{sync::watch, task::JoinHandle};

use crate::{objects::node_name, oracle::MirroredState, processes::spawn_frontend};

/// The state of a node, from a frontend that has just started.
pub(crate) async fn state_of(api: &ApiServer, node: usize) -> MirroredState {
    let (_trigger, shutdown) = Shutdown::channel();
    let (frontend, tasks) = spawn_frontend(api, &watch::channel(true).1, &shutdown);
    let state = view(&frontend, node, shutdown).await;
    tasks.iter().for_each(JoinHandle::abort);
    state
}

/// What a frontend decides for a node.
pub(crate) async fn view(frontend: &Frontend, node: usize, shutdown: Shutdown) -> MirroredState {
    let node: Arc<str> = node_name(node).into();
    let hello = Hello {
        version: proto::PROTOCOL_VERSION,
        node: node.clone(),
        role: Role::Observer,
        backend: "probe".to_owned(),
        backend_version: String::new(),
        resume: None,
        digests: None,
        source_version: SourceVersion::default(),
        kind_versions: KindVersions::default(),
        started: None,
    };
    let (_replies, mut messages) = frontend.attach(hello, shutdown);
    let mut state = MirroredState::empty(&node);
    while let Some(message) = messages.recv().await {
        if let ServerMessage::Batch(batch) = message {
            batch.operations.into_iter().for_each(|operation| state.apply(operation));
            if batch.commit {
                break;
            }
        }
    }
    state
}
