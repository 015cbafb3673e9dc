//! The handle to a frontend, and the one task that turns object updates into revisions.
//!
//! ```text
//!   source ──mpsc──▶ run ──▶ Index ──take_changes──▶ ChangeLog ──watch──▶ sessions: ChangeLog::commits_since
//! ```

mod queue;

use std::{iter, sync::Arc, time::Duration};

use runtime::{ReadyGuard, Shutdown, lock};
use tokio::{
    sync::mpsc,
    task,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    Config, cluster::Commit, context::FrontendContext, events::EventReport, object::SourceUpdate, source::Freshness,
};

use queue::UpdateQueue;

/// How many updates wait to be applied. Beyond it those of the source wait in its channel.
const QUEUED_UPDATES: usize = 4096;
/// After this time of applying updates, what has changed is committed, so that updates that take long, or come all the
/// time, do not delay commits for longer. One update may take longer.
const MAX_APPLY_TIME: Duration = Duration::from_millis(50);

/// A handle to a frontend. Clones share the same state. Nothing happens before [`Self::run`] is called.
#[derive(Clone, Debug)]
pub struct Frontend {
    pub(crate) context: Arc<FrontendContext>,
}

/// Counts of the work done for streams, and how many streams are waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// Clients that are being sent a snapshot or a repair, whatever the number of their streams.
    pub rebuilds_running: usize,
    /// Streams that wait for their turn to be sent one.
    pub rebuilds_waiting: usize,
    /// Snapshots and repairs built so far.
    pub rebuilds: u64,
    /// Chunks of operations encoded so far.
    pub chunks_encoded: u64,
    /// Chunks of operations sent so far, each counted once per stream.
    pub chunks_sent: u64,
    /// Streams that started although their client had a newer source version than this frontend.
    pub rollbacks: u64,
}

impl Frontend {
    /// A frontend without objects.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { context: Arc::new(FrontendContext::new(config)) }
    }

    /// When the API last confirmed each kind of object. The source writes it.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.context.freshness.clone()
    }

    /// Applies updates of the source and commits them, until the shutdown, and then until all streams are drained. Must
    /// run only once.
    ///
    /// Drops `ready` when every kind of object has been listed. No client is served before.
    pub async fn run(&self, mut updates: mpsc::Receiver<SourceUpdate>, ready: ReadyGuard, shutdown: Shutdown) {
        let stop = self.until_drained(shutdown.clone());
        tokio::pin!(stop);

        let mut ready = Some(ready);
        let mut received = Vec::new();
        let mut queue = UpdateQueue::default();
        let mut has_ended = false;
        let mut has_uncommitted = false;
        let mut commit_due = Instant::now();
        let mut notices_due = None;
        let mut refusals_due = None;

        loop {
            let has_room = queue.len() < QUEUED_UPDATES;
            tokio::select! {
                biased;
                () = &mut stop => break,
                // A timer would fire later than at once when the time has passed.
                () = async { if Instant::now() < commit_due { sleep_until(commit_due).await } }, if has_uncommitted => {
                    // What has been queued until now joins this commit.
                    let late = iter::from_fn(|| updates.try_recv().ok());
                    late.take(QUEUED_UPDATES.saturating_sub(queue.len())).for_each(|update| queue.push(update));
                    self.apply(&mut queue).await;
                    has_uncommitted = !queue.is_empty();
                    if self.commit() {
                        drop(ready.take());
                        notices_due = self.report_problems();
                        refusals_due = refusals_due.or_else(|| self.refusals_due());
                    }
                    commit_due = Instant::now() + self.interval();
                }
                () = runtime::sleep_until(refusals_due) => {
                    self.context.cluster.index().describe_refusals();
                    notices_due = self.report_problems();
                    refusals_due = self.refusals_due();
                }
                // When the last commit is long ago, all that is queued already joins the next one.
                count = updates.recv_many(&mut received, QUEUED_UPDATES), if !has_ended && has_room => {
                    received.drain(..).for_each(|update| queue.push(update));
                    self.apply(&mut queue).await;
                    has_uncommitted |= count > 0;
                    has_ended = count == 0;
                    if has_ended && !shutdown.is_triggered() {
                        warn!("object source ended, serving the last known state");
                    }
                }
                () = async {}, if !queue.is_empty() => {
                    self.apply(&mut queue).await;
                    has_uncommitted = true;
                }
                () = runtime::sleep_until(notices_due) => {
                    notices_due = self.report_problems();
                }
            }
        }
        let StreamStats { rebuilds, chunks_encoded, chunks_sent, .. } = self.stream_stats();
        info!(rebuilds, chunks_encoded, chunks_sent, "engine stopped, no more commits");
    }

    /// Applies what waits, for a limited time, after which other tasks have their turn.
    async fn apply(&self, queue: &mut UpdateQueue) {
        let begun = Instant::now();
        while let Some(update) = queue.pop() {
            self.context.cluster.index().apply(update);
            if begun.elapsed() >= MAX_APPLY_TIME {
                return task::yield_now().await;
            }
        }
    }

    /// When more refused claims are described.
    fn refusals_due(&self) -> Option<Instant> {
        let is_outdated = self.context.cluster.index().has_outdated_refusals();
        if is_outdated { Some(Instant::now() + self.interval()) } else { None }
    }

    /// Returns after the shutdown when all streams have been drained, or should have been.
    async fn until_drained(&self, mut shutdown: Shutdown) {
        shutdown.recv().await;
        let Config { max_drain_delay, .. } = self.context.config;
        // Fails when clients do not read.
        let _ = timeout(max_drain_delay, self.context.streams.wait_closed()).await;
    }

    /// Logs and reports problems of objects, at a limited rate. Returns when there may be more.
    fn report_problems(&self) -> Option<Instant> {
        let (notices, next) = self.context.cluster.index().problems.take_notices(Instant::now());
        for notice in notices {
            notice.log();
            self.context.events.report(EventReport::Problem(notice));
        }
        next
    }

    /// Counts of the work done for streams so far.
    #[must_use]
    pub fn stream_stats(&self) -> StreamStats {
        let FrontendContext { rebuild_queue, metrics, .. } = &*self.context;
        StreamStats {
            rebuilds_running: rebuild_queue.running(),
            rebuilds_waiting: rebuild_queue.waiting(),
            rebuilds: metrics.rebuilds.get(),
            chunks_encoded: metrics.chunks_encoded.get(),
            chunks_sent: metrics.chunks_sent.get(),
            rollbacks: metrics.rollbacks.get(),
        }
    }

    /// The minimum time from one commit to the next.
    fn interval(&self) -> Duration {
        let Config { commit_interval, commit_interval_per_stream, .. } = &self.context.config;
        let streams = u32::try_from(self.context.streams.count()).unwrap_or(u32::MAX);
        *commit_interval + *commit_interval_per_stream * streams
    }

    /// Commits pending changes. Returns whether every kind of object has been listed; nothing is committed before.
    fn commit(&self) -> bool {
        let begun = Instant::now();
        let FrontendContext { cluster, streams, node_sources, metrics, .. } = &*self.context;
        let commit = cluster.commit(|changes| {
            streams.update_nodes(&changes.nodes);
            lock(node_sources).update_nodes(&changes.nodes);
        });
        let Some(Commit { revision, is_new, trigger, kind_versions }) = commit else { return false };
        if is_new {
            metrics.commits.observe(begun.elapsed().as_secs_f64());
            debug!(%revision, ?trigger, "committed");
        }
        cluster.publish(revision, kind_versions);
        true
    }
}
