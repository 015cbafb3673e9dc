//! The frontend as a whole: one writer that turns updates into revisions, and the state that all streams read.
//!
//! ```text
//!   source ──mpsc──▶ run ──▶ Index ──take_changes──▶ ChangeLog ──watch──▶ sessions: ChangeLog::difference
//! ```
//!
//! Two plain mutexes, each held for microseconds and never across an await. The one of the `ChangeLog` is taken by every session
//! for every commit; the one of the `Index` only by the writer and by `Status`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::Result;
use proto::model::{ClusterInfo, Epoch, Revision, SourceVersion};
use runtime::{ReadyGuard, Shutdown};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    change_history::ChangeHistory,
    events::EventQueue,
    index::Index,
    log::{ChangeLog, EncodingCounters, HistoryLimits},
    metrics::Metrics,
    object::SourceUpdate,
    server::{ConnectionLimits, ReloadingTls},
    session::{NodeLimits, Rate, RateLimiter, RebuildQueue},
    source::Freshness,
    streams::Streams,
};

/// How many updates are taken in at a time before the writer looks at the clock again.
const UPDATES_PER_COMMIT: usize = 4096;

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Config {
    /// The facts about the cluster that every node is told besides those that objects tell.
    pub cluster: ClusterInfo,
    /// Commits are at least this far apart. After a quiet time the first change is committed at once.
    pub commit_interval: Duration,
    /// And further apart by this much for each stream, so that telling everybody does not take all there is of the processors.
    pub commit_interval_per_stream: Duration,
    /// How long a stream is idle before its node is told that it is up to date.
    pub bookmark_interval: Duration,
    /// How long a client may take to say Hello.
    pub hello_deadline: Duration,
    /// On shutdown clients are asked to come back within this time, each after a random part of it.
    pub drain_delay: Duration,
    /// How long after that they may take to close their streams.
    pub drain_grace: Duration,
    /// So many clients at a time are sent everything, or what a comparison has shown to be missing. The others wait.
    pub max_concurrent_rebuilds: usize,
    /// A client that has not taken that within this time no longer keeps another one waiting.
    pub rebuild_timeout: Duration,
    /// How long a client that holds more of the cluster than is known here waits for that, before it is set back.
    pub catch_up_timeout: Duration,
    /// How much of the past is kept for nodes that come back.
    pub history: HistoryLimits,
    /// What one node may ask for.
    pub node_limits: NodeLimits,
    /// How often a client may repeat its last Ack on one stream.
    pub repeats: Rate,
    /// What one connection may do.
    pub connections: ConnectionLimits,
    /// A client whose stream is so old, give or take a fifth, is asked to connect anew, so that clients do not stay with one
    /// replica for ever. `None`: streams last as long as both sides do.
    pub max_stream_age: Option<Duration>,
}

/// A handle to the frontend; clones are the same one. Nothing runs before [`Self::run`] does.
#[derive(Clone, Debug)]
pub struct Frontend {
    pub(crate) shared: Arc<Shared>,
}

/// What the writer and all streams share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    index: Mutex<Index>,
    log: Mutex<ChangeLog>,
    recent: Mutex<ChangeHistory>,
    /// The present revision; `None` until every kind of object has been delivered.
    revision: watch::Sender<Option<Revision>>,
    /// Up to where the source would have told of changes.
    known: watch::Sender<SourceVersion>,
    pub(crate) streams: Streams,
    pub(crate) freshness: Freshness,
    /// The TLS of its listeners, where there are such.
    pub(crate) tls: OnceLock<ReloadingTls>,
    pub(crate) admission: RebuildQueue,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) encodings: EncodingCounters,
    /// Clients that held more of the cluster than was known here in time.
    pub(crate) set_back: AtomicU64,
    pub(crate) metrics: Metrics,
    pub(crate) events: EventQueue,
    pub(crate) started: SystemTime,
}

/// Counts of the work done for streams, and how many streams are waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// Streams that are being sent a snapshot or a repair.
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

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: ClusterInfo::default(),
            commit_interval: Duration::from_millis(10),
            // Telling one node takes 10 to 40 us of processor time.
            commit_interval_per_stream: Duration::from_micros(12),
            bookmark_interval: Duration::from_secs(10),
            hello_deadline: Duration::from_secs(10),
            drain_delay: Duration::from_secs(5),
            drain_grace: Duration::from_secs(10),
            max_concurrent_rebuilds: 16,
            rebuild_timeout: Duration::from_secs(10),
            catch_up_timeout: Duration::from_secs(5),
            // Hours of a busy cluster; a reconnect beyond that costs a comparison of digests.
            history: HistoryLimits { entries: 100_000, bytes: 64 << 20 },
            node_limits: NodeLimits { streams: 16, syncs: Rate { burst: 4, every: Duration::from_secs(1) } },
            repeats: Rate { burst: 64, every: Duration::from_millis(125) },
            connections: ConnectionLimits::default(),
            max_stream_age: None,
        }
    }
}

impl Frontend {
    /// A frontend without objects.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let epoch = Epoch(fastrand::u64(1..));
        let started = SystemTime::now();
        let index = Index::new(started, config.cluster.clone());
        let log = ChangeLog::new(epoch, config.history);
        let admission = RebuildQueue::new(config.max_concurrent_rebuilds, config.rebuild_timeout);
        let rate_limiter = RateLimiter::new(config.node_limits);
        Self {
            shared: Arc::new(Shared {
                config,
                index: Mutex::new(index),
                log: Mutex::new(log),
                recent: Mutex::default(),
                revision: watch::Sender::new(None),
                known: watch::Sender::default(),
                streams: Streams::default(),
                freshness: Freshness::default(),
                tls: OnceLock::new(),
                admission,
                rate_limiter,
                encodings: EncodingCounters::default(),
                set_back: AtomicU64::new(0),
                metrics: Metrics::default(),
                events: EventQueue::default(),
                started,
            }),
        }
    }

    /// How well the source hears from its API: given to the source, which writes it, and to whoever reports it.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.shared.freshness.clone()
    }

    /// Takes in what sources say and commits it, until the shutdown. There must be only one such writer.
    ///
    /// Drops `ready` when every kind of object has been delivered once; nobody is served before.
    ///
    /// # Errors
    /// None so far; the type is that of a task.
    pub async fn run(
        &self,
        updates: mpsc::Receiver<SourceUpdate>,
        ready: ReadyGuard,
        shutdown: Shutdown,
    ) -> Result<()> {
        self.take_in(updates, ready, shutdown).await;
        let StreamStats { rebuilds, chunks_encoded, chunks_sent, .. } = self.stream_stats();
        info!(rebuilds, chunks_encoded, chunks_sent, "nothing is committed any more");
        Ok(())
    }

    /// What the streams cost so far.
    #[must_use]
    pub fn stream_stats(&self) -> StreamStats {
        self.shared.stream_stats()
    }

    async fn take_in(&self, mut updates: mpsc::Receiver<SourceUpdate>, ready: ReadyGuard, mut shutdown: Shutdown) {
        let mut ready = Some(ready);
        let mut due = Instant::now();
        loop {
            let update = tokio::select! {
                () = shutdown.recv() => return,
                update = updates.recv() => update,
            };
            let Some(update) = update else {
                if shutdown.is_triggered() {
                    return;
                }
                warn!("the source has ended; what is known goes on being served");
                shutdown.recv().await;
                return;
            };
            self.apply(update);
            let timer = sleep_until(due);
            tokio::pin!(timer);
            // Empty when the last commit is long ago: then only what has already arrived is added.
            while !timer.is_elapsed() && Instant::now() < due {
                tokio::select! {
                    () = shutdown.recv() => return,
                    Some(update) = updates.recv() => self.apply(update),
                    () = &mut timer => {}
                }
            }
            for _ in 0..UPDATES_PER_COMMIT {
                let Ok(update) = updates.try_recv() else { break };
                self.apply(update);
            }
            if self.commit() {
                drop(ready.take());
            }
            due = Instant::now() + self.interval();
        }
    }

    /// How long after a commit the next one is due at the earliest.
    fn interval(&self) -> Duration {
        let Config { commit_interval, commit_interval_per_stream, .. } = &self.shared.config;
        let streams = u32::try_from(self.shared.streams.count()).unwrap_or(u32::MAX);
        *commit_interval + *commit_interval_per_stream * streams
    }

    fn apply(&self, update: SourceUpdate) {
        self.shared.index().apply(update);
    }

    /// Commits what is dirty. Says whether the cluster is complete.
    fn commit(&self) -> bool {
        let begun = Instant::now();
        let changes = {
            let mut index = self.shared.index();
            if !index.is_complete() {
                return false;
            }
            index.take_changes()
        };
        self.shared.streams.expect(&changes.nodes);
        let (ports, trigger, known) = (changes.ports.len(), changes.oldest_trigger, changes.confirmed);
        let first = self.shared.revision.borrow().is_none();
        let (committed, revision) = {
            let mut log = self.shared.log();
            let committed = log.commit(changes);
            if first {
                log.forget_past();
            } else if committed.is_some() {
                self.shared.recent().record(log.revision(), log.last());
            }
            (committed, log.revision())
        };
        if let Some(revision) = committed {
            self.shared.metrics.committed(begun.elapsed());
            debug!(%revision, ports, ?trigger, "committed");
        }
        self.shared.known.send_if_modified(|present| std::mem::replace(present, known) != known);
        self.shared.revision.send_if_modified(|known| {
            if known.is_none() {
                info!(%revision, "all objects are known, serving");
            }
            known.replace(revision) != Some(revision)
        });
        true
    }
}

impl Shared {
    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never held while waiting for another lock.
    pub(crate) fn recent(&self) -> MutexGuard<'_, ChangeHistory> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, ChangeLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to where the source would have told of changes, as it changes.
    pub(crate) fn known(&self) -> watch::Receiver<SourceVersion> {
        self.known.subscribe()
    }

    pub(crate) fn stream_stats(&self) -> StreamStats {
        let Self { admission, encodings, set_back, .. } = self;
        StreamStats {
            rebuilds_running: admission.admitted(),
            rebuilds_waiting: admission.waiting(),
            rebuilds: self.log().rebuilds(),
            chunks_encoded: encodings.encoded(),
            chunks_sent: encodings.sent(),
            rollbacks: set_back.load(Ordering::Relaxed),
        }
    }

    /// Whether every kind of object has been delivered.
    pub(crate) fn is_ready(&self) -> bool {
        self.revision.borrow().is_some()
    }

    /// The present revision, as it changes.
    pub(crate) fn revisions(&self) -> watch::Receiver<Option<Revision>> {
        self.revision.subscribe()
    }
}
