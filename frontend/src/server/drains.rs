//! The call `Drains`: a node follows how far its pods are drained, for as long as something on it waits for that.
//!
//! A message is made when something that concerns the node has changed, and is sent if it differs from the last one. A
//! commit notifies the stream, and so does the Ack with which the last node has programmed what a pod waits for. Other
//! Acks do not, because all streams would have to look at each Ack: the names of nodes that are behind, and the effects
//! of failures and of time, are computed again after [`CHECK_INTERVAL`].

use std::{sync::Arc, time::Duration};

use proto::{
    model::{Revision, SourceVersion},
    v1,
};
use runtime::Shutdown;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tonic::Status;

use super::require_ready;
use crate::{
    context::FrontendContext,
    drains::{NodeChange, levels::ListedPod},
    session::jittered,
};

/// The shortest time between two messages: a pod that ends may be in use again at any time.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// How often the levels are compared with those that were sent while nothing notifies the stream, and the shortest time
/// between two lists of the slices that name the node, which any tenant can write.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The messages for a node, until another stream for the same node starts, or the shutdown. `held` is dropped
/// when they end. Only the newest one waits for a client that does not read, because each one says everything; it does
/// not keep the stream from ending, and is dropped then.
pub(crate) fn drains(
    context: Arc<FrontendContext>,
    node: Arc<str>,
    held: impl Send + 'static,
    shutdown: Shutdown,
) -> Result<impl Stream<Item = v1::DrainLevels>, Status> {
    require_ready(&context.cluster)?;
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let _held = held;
        follow(&context, &node, &sender, shutdown).await;
        sender.send_replace(None);
        drop(sender);
        context.cluster.ending_pods().unfollow(&node);
    });
    Ok(WatchStream::from_changes(receiver).map_while(|message| message))
}

async fn follow(
    context: &FrontendContext,
    node: &Arc<str>,
    messages: &watch::Sender<Option<v1::DrainLevels>>,
    mut shutdown: Shutdown,
) {
    let mut changes = context.cluster.ending_pods().follow(node);
    let mut programmed = context.streams.programmed();
    let mut listed = Vec::new();
    let mut listed_as_of: Option<(NodeChange, Instant)> = None;

    let age = context.config.max_stream_age.map(jittered);
    let too_old = runtime::sleep_until(age.map(|age| Instant::now() + age));
    tokio::pin!(too_old);

    loop {
        let change = *changes.borrow_and_update();
        // A new list costs all slices that name the node.
        let is_due =
            listed_as_of.is_none_or(|(seen, at)| seen.entries != change.entries && at.elapsed() >= CHECK_INTERVAL);
        if is_due {
            listed = ListedPod::of(context.cluster.index().entries_on(node));
            listed_as_of = Some((change, Instant::now()));
        }

        let (message, waits_for) = message(context, node, &listed);
        messages.send_if_modified(|last| {
            let has_changed = last.as_ref() != Some(&message);
            *last = Some(message);
            has_changed
        });

        sleep(MIN_INTERVAL).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = reached(&mut programmed, waits_for) => {}
            () = sleep(CHECK_INTERVAL) => {}
            () = messages.closed() => return,
            () = &mut too_old => return,
            () = shutdown.recv() => return,
        }
    }
}

/// The message for a node as of now, and the first revision that one of its pods waits for.
fn message(context: &FrontendContext, node: &str, listed: &[ListedPod]) -> (v1::DrainLevels, Option<Revision>) {
    let slices_version = SourceVersion(context.cluster.kind_versions().borrow().endpoint_slices);
    let pods = context.cluster.ending_pods();
    let epoch = context.cluster.epoch.0;
    context.streams.read(|fleet| {
        let (message, waits_for) = pods.message(fleet, node, listed, slices_version);
        (v1::DrainLevels { epoch, ..message }, waits_for)
    })
}

/// Ends when all connected nodes have programmed a revision.
async fn reached(programmed: &mut watch::Receiver<Option<Revision>>, revision: Option<Revision>) {
    let Some(revision) = revision else { return std::future::pending().await };
    // Fails only after the streams have been dropped.
    let _ = programmed.wait_for(|current| current.is_none_or(|current| current >= revision)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config,
        testing::{endpoint, initial, put, service, slice, take_steps},
    };

    const NODE: &str = "node-9";

    /// The Services `web` and `api`, without slices.
    fn context() -> Arc<FrontendContext> {
        let context = Arc::new(FrontendContext::new(Config::default()));
        let services = [service("web", "10.96.0.1").into(), service("api", "10.96.0.2").into()];
        initial(services).into_iter().for_each(|update| context.cluster.index().apply(update));
        commit(&context);
        context
    }

    /// Writes the slice of a Service, with these pods of the node.
    fn write(context: &FrontendContext, service: &str, pods: impl Iterator<Item = u16>) {
        let pods = pods.map(|pod| endpoint(&format!("10.0.{}.{}", pod / 256, pod % 256), NODE));
        context.cluster.index().apply(put(slice(service, service, pods.collect())));
        commit(context);
    }

    fn commit(context: &FrontendContext) {
        let commit = context.cluster.commit(|_| ()).unwrap();
        context.cluster.publish(commit.revision, commit.kind_versions);
    }

    /// The attack: a backend opens streams and does not read them.
    #[tokio::test(start_paused = true)]
    async fn stream_that_is_not_read_ends_with_the_next_one() {
        let context = context();
        let held = Arc::new(());
        let (_trigger, shutdown) = Shutdown::channel();
        let mut unread = drains(context.clone(), NODE.into(), held.clone(), shutdown.clone()).unwrap();
        for pod in 1..5 {
            write(&context, "web", pod..pod + 1);
            sleep(CHECK_INTERVAL * 2).await;
        }
        assert_eq!(Arc::strong_count(&held), 2);

        let mut next = drains(context.clone(), NODE.into(), (), shutdown).unwrap();
        assert!(next.next().await.is_some());
        sleep(CHECK_INTERVAL).await;
        assert_eq!(Arc::strong_count(&held), 1, "the task of the first one has ended");
        assert_eq!(unread.next().await, None, "and keeps no message");
    }

    /// The attack: a tenant writes the name of a node into large slices, and changes one of them all the time.
    #[tokio::test(start_paused = true)]
    async fn slices_that_name_a_node_are_read_once_a_second() {
        const PODS: u16 = 10_000;
        let context = context();
        let (_trigger, shutdown) = Shutdown::channel();
        let _levels = drains(context.clone(), NODE.into(), (), shutdown).unwrap();
        write(&context, "web", 0..PODS);
        sleep(CHECK_INTERVAL * 2).await;

        take_steps();
        for pod in 0..90 {
            write(&context, "api", PODS + pod..PODS + pod + 1);
            sleep(MIN_INTERVAL * 2).await;
        }
        let steps = take_steps();
        assert!(steps <= 3 * usize::from(PODS), "{steps} steps");
    }
}
