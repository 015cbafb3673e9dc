//! The call `Drains`: a node follows how far its pods are drained, for as long as something on it waits for that.
//!
//! A message is made when something that concerns the node has changed, and is sent if it differs from the last one.
//! What a commit changes notifies the stream. Acks do not, because all streams would look at each of them: a pod that
//! waits for nodes is looked at again after [`PAUSE`], everything else after [`IDLE_PAUSE`].

use std::{sync::Arc, time::Duration};

use proto::{model::SourceVersion, v1};
use runtime::Shutdown;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::require_ready;
use crate::{
    context::FrontendContext,
    drains::{NodeChange, levels::ListedPod},
    session::jittered,
};

/// The least between two messages: a pod that ends may be in use again at any time.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at a node of which a pod waits for other nodes.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at a node of which no pod does: for the sets of nodes, and for pods whose entries name no node.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// The messages for a node, until another stream for the same node starts, or the shutdown. `held` is dropped
/// when they end.
pub(crate) fn drains(
    context: Arc<FrontendContext>,
    node: Arc<str>,
    held: impl Send + 'static,
    shutdown: Shutdown,
) -> Result<impl Stream<Item = v1::DrainLevels>, Status> {
    require_ready(&context.cluster)?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _held = held;
        follow(&context, &node, &sender, shutdown).await;
        drop(sender);
        context.cluster.ending_pods().unfollow(&node);
    });
    Ok(ReceiverStream::new(receiver))
}

async fn follow(
    context: &FrontendContext,
    node: &Arc<str>,
    messages: &mpsc::Sender<v1::DrainLevels>,
    mut shutdown: Shutdown,
) {
    let mut changes = context.cluster.ending_pods().follow(node);
    let mut seen: Option<NodeChange> = None;
    let mut listed = Vec::new();
    let mut last = None;
    let age = context.config.max_stream_age.map(jittered);
    let too_old = runtime::sleep_until(age.map(|age| Instant::now() + age));
    tokio::pin!(too_old);

    loop {
        let change = *changes.borrow_and_update();
        if seen.is_none_or(|seen| seen.entries != change.entries) {
            listed = ListedPod::of(context.cluster.index().entries_on(node));
        }
        seen = Some(change);

        let (message, has_undrained) = look(context, node, &listed);
        if last.as_ref() != Some(&message) {
            last = Some(message.clone());
            if messages.send(message).await.is_err() {
                return;
            }
        }

        sleep(MIN_PAUSE).await;
        let pause = if has_undrained { PAUSE } else { IDLE_PAUSE };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sleep(pause) => {}
            () = messages.closed() => return,
            () = &mut too_old => return,
            () = shutdown.recv() => return,
        }
    }
}

/// What a node is told now, and whether one of its pods waits for nodes.
fn look(context: &FrontendContext, node: &str, listed: &[ListedPod]) -> (v1::DrainLevels, bool) {
    let slices_version = SourceVersion(context.cluster.kind_versions().borrow().endpoint_slices);
    let pods = context.cluster.ending_pods();
    let epoch = context.cluster.epoch.0;
    context.streams.read(|fleet| {
        let message = pods.message(fleet, node, listed, slices_version);
        (v1::DrainLevels { epoch, ..message }, pods.has_undrained(fleet, node))
    })
}
