//! The call `Drains`: a node follows how far its pods are drained, for as long as something on it waits for that.
//!
//! A message is made when something that concerns the node has changed, and is sent if it differs from the last one. A
//! commit notifies the stream, and so does the Ack with which the last node has programmed what a pod waits for. Other
//! Acks do not, because all streams would look at each of them: the names of nodes that are behind, and what follows
//! from failures and from time, are looked at again after [`IDLE_PAUSE`].

use std::{sync::Arc, time::Duration};

use proto::{
    model::{Revision, SourceVersion},
    v1,
};
use runtime::Shutdown;
use tokio::{
    sync::{mpsc, watch},
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
/// Between two looks while nothing notifies the stream.
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
    let mut programmed = context.streams.programmed();
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

        let (message, waits_for) = look(context, node, &listed);
        if last.as_ref() != Some(&message) {
            last = Some(message.clone());
            if messages.send(message).await.is_err() {
                return;
            }
        }

        sleep(MIN_PAUSE).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = reached(&mut programmed, waits_for) => {}
            () = sleep(IDLE_PAUSE) => {}
            () = messages.closed() => return,
            () = &mut too_old => return,
            () = shutdown.recv() => return,
        }
    }
}

/// What a node is told now, and the first revision that one of its pods waits for.
fn look(context: &FrontendContext, node: &str, listed: &[ListedPod]) -> (v1::DrainLevels, Option<Revision>) {
    let slices_version = SourceVersion(context.cluster.kind_versions().borrow().endpoint_slices);
    let pods = context.cluster.ending_pods();
    let epoch = context.cluster.epoch.0;
    context.streams.read(|fleet| {
        let message = pods.message(fleet, node, listed, slices_version);
        (v1::DrainLevels { epoch, ..message }, pods.waits_for(fleet, node))
    })
}

/// Ends when all connected nodes have programmed a revision.
async fn reached(programmed: &mut watch::Receiver<Option<Revision>>, revision: Option<Revision>) {
    let Some(revision) = revision else { return std::future::pending().await };
    // Fails only after the streams have been dropped.
    let _ = programmed.wait_for(|current| current.is_none_or(|current| current >= revision)).await;
}
