//! The state of one stream, and what it sends next.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use proto::{
    digest::{Digest, DigestVector},
    model::{
        Ack, Batch, Bookmark, ClientMessage, FailureKind, Hello, Revision, Role, ServerMessage, ServicePortFailure,
        ServicePortKey, SyncMode, Welcome,
    },
};
use runtime::TokenBucket;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use crate::{
    clients::StreamPermit,
    context::FrontendContext,
    events::{BackendStart, EventReport, MAX_FAILURES_OF_NODE},
    identity::Identity,
    log::{CHUNK_BYTES, NodeUpdate},
    object::ObjectName,
    streams::{PartlyProgrammed, StreamGuard, StreamStatus},
};

use super::{
    MessageSink, OutgoingMessage, SessionEnd, SessionError,
    digest_check::{DigestCheck, DigestMismatch, Remedy},
    progress::ClientProgress,
};

/// The base of the first batch to a client that does not resume.
pub(super) const NO_REVISION: Revision = Revision(0);

/// How often a client that is sent changes all the time is sent a bookmark if this frontend does not follow the API in
/// some kind of objects: only bookmarks tell that.
const FRESHNESS_INTERVAL: Duration = Duration::from_secs(60);

/// The target size of a message in bytes, before it is compressed; one chunk may be larger. Far below the size limit,
/// because the buffers of a client stay as large as its largest message, but large, because each message costs a
/// frontend as much as 50 KB in it.
const BATCH_BYTES: usize = 4 * CHUNK_BYTES;

/// How long after a snapshot or repair has been handed to the transport its permit is kept while there is no Ack. A
/// backend acknowledges when its kernel is programmed, which may take long; a transfer that takes longer than this is
/// the client's fault.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The most texts about what does not work on a node that are kept, because the status of all nodes has them.
const MAX_DEGRADED: usize = 8;

/// The most bytes of one of these texts.
const MAX_DEGRADED_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) output: &'a mut MessageSink,
    context: Arc<FrontendContext>,
    pub(super) status: StreamGuard,
    permit: StreamPermit,
    /// Whose share of the rebuild queue and of log lines the stream takes.
    counted_as: Identity,
    /// Whether the token with which the stream started is unused: it covers the first snapshot or repair.
    has_initial_token: bool,
    ack_repeats: TokenBucket,
    node: Arc<str>,
    /// The revision that the client is at, or will be at once it has applied what was sent.
    cursor: Revision,
    /// The last revision that was sent to the client. Lower than `cursor` while nothing changes for its node.
    sent: Revision,
    awaiting: Awaiting,
    progress: ClientProgress,
    digests: DigestCheck,
    /// When to send a bookmark if nothing else happens.
    pub(super) bookmark_at: Instant,
    /// When the client was last told whether this frontend follows the API, or need not be told because it does.
    freshness_told: Instant,
    /// When the oldest change that is not programmed yet was committed; `None` for anything but a difference.
    committed_at: Option<Instant>,
    /// The Services that the client cannot program, according to its last Ack, and since when.
    failing_services: Arc<BTreeMap<ObjectName, Instant>>,
}

/// The answer that the client owes before anything else is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    Nothing,
    /// An Ack of the next number, with this digest.
    Ack(Digest),
    Digests,
}

/// How a stream starts.
enum Start<'a> {
    /// With the changes since this revision, which the client has.
    Resume(Revision, NodeUpdate),
    /// With the buckets that differ from these digests of the client.
    Repair(&'a DigestVector),
    /// With everything.
    Snapshot,
}

/// What an Ack is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckKind {
    /// The commit or bookmark in flight, after which this digest is expected.
    Answer { expected: Digest },
    /// The same commit or bookmark as the last Ack: more is programmed, or failures have changed.
    Repeat,
}

/// What a client reports in an Ack besides its progress.
#[derive(Clone, Debug, Default)]
struct Reports {
    /// The first failures, up to a size.
    failures: Arc<[ServicePortFailure]>,
    /// All Services that fail, also those whose failures are left out, because a pod waits for all of them.
    failing_services: Arc<BTreeMap<ObjectName, Instant>>,
    /// The first texts, up to a size.
    degraded: Vec<String>,
}

impl<'a> Session<'a> {
    /// Decides how the stream starts, and sends Welcome and the first update.
    pub(super) async fn start(
        context: Arc<FrontendContext>,
        identity: &Identity,
        hello: Hello,
        permit: StreamPermit,
        output: &'a mut MessageSink,
    ) -> Result<Self, SessionEnd> {
        let start = Start::of(&context, &hello);
        let mode = start.mode();
        let status = context.streams.register(&hello, mode);
        report_start(&context, &hello, mode);

        let base = start.base();
        let mut session = Self {
            output,
            context,
            status,
            permit,
            counted_as: identity.counted_as(&hello.node),
            has_initial_token: true,
            ack_repeats: TokenBucket::full(Instant::now()),
            node: hello.node.clone(),
            cursor: base,
            sent: base,
            awaiting: Awaiting::Nothing,
            progress: ClientProgress::default(),
            digests: DigestCheck::new(hello.digests.is_some()),
            bookmark_at: Instant::now(),
            freshness_told: Instant::now(),
            committed_at: None,
            failing_services: Arc::default(),
        };

        session.send_welcome(mode).await?;
        match start {
            // Confirms that the client is up to date. The digest in its Ack is checked.
            Start::Resume(_, update) if update.chunks.is_empty() => {
                session.send_bookmark(update.target, update.digest).await?;
            }
            Start::Resume(_, update) => {
                session.set_pending(update.committed_at.unwrap_or_else(Instant::now));
                session.send(update).await?;
            }
            Start::Repair(digests) => session.repair(digests).await?,
            Start::Snapshot => session.send_snapshot().await?,
        }
        Ok(session)
    }

    async fn send_welcome(&mut self, mode: SyncMode) -> Result<(), SessionEnd> {
        let kind_versions = *self.context.cluster.kind_versions().borrow();
        let welcome = Welcome {
            epoch: self.context.cluster.epoch,
            mode,
            source_version: kind_versions.newest(),
            kind_versions,
            is_outdated: self.context.freshness.is_outdated(),
        };
        self.output.send(OutgoingMessage::Plain(ServerMessage::Welcome(welcome))).await
    }

    /// Whether the client owes no answer.
    pub(super) fn is_idle(&self) -> bool {
        self.awaiting == Awaiting::Nothing
    }

    /// Sends what has changed, unless the client still owes an answer.
    pub(super) async fn advance(&mut self) -> Result<(), SessionEnd> {
        if !self.is_idle() {
            return Ok(());
        }

        let since = {
            let log = self.context.cluster.log();
            if log.revision() == self.cursor {
                return Ok(());
            }
            log.commits_since(&self.node, self.cursor)
        };

        match since.and_then(|since| since.difference(&self.node)) {
            Some(update) if update.chunks.is_empty() => {
                self.cursor = update.target;
                if self.progress.is_complete() {
                    self.set_everything_programmed();
                }
                Ok(())
            }
            Some(update) => {
                self.committed_at = self.committed_at.or(update.committed_at);
                self.set_pending(update.committed_at.unwrap_or_else(Instant::now));
                self.send(update).await
            }
            None => {
                info!(revision = %self.cursor, "changes since the node's revision are unknown, comparing digests");
                self.compare().await
            }
        }
    }

    /// Sends an idle client a bookmark.
    pub(super) async fn bookmark(&mut self) -> Result<(), SessionEnd> {
        let (revision, digest) = {
            let log = self.context.cluster.log();
            (log.revision(), log.digest(&self.node))
        };
        if revision != self.cursor {
            // A commit came in between; `advance` sends it first.
            return Ok(());
        }
        self.send_bookmark(revision, digest).await
    }

    pub(super) async fn on_message(&mut self, message: ClientMessage) -> Result<(), SessionEnd> {
        match message {
            ClientMessage::Hello(_) => Err(SessionError::SecondHello.into()),
            ClientMessage::Ack(ack) => self.on_ack(ack).await,
            ClientMessage::DigestResponse(_, digests) => self.on_digests(&digests).await,
        }
    }

    async fn on_digests(&mut self, digests: &DigestVector) -> Result<(), SessionEnd> {
        if self.awaiting != Awaiting::Digests {
            return Err(SessionError::UnexpectedDigests.into());
        }
        self.status.update(|status| status.unanswered_since = Some(Instant::now()));
        self.repair(digests).await
    }

    async fn on_ack(&mut self, ack: Ack) -> Result<(), SessionEnd> {
        let Ack { received_number, programmed_number, digest, apply_time, failures, degraded, unfinished_namespaces } =
            ack;
        let kind = self.classify_ack(received_number)?;
        let is_answer = kind != AckKind::Repeat;
        if !is_answer {
            self.count_repeat(programmed_number)?;
        }

        self.progress.programmed(programmed_number, unfinished_namespaces);
        if is_answer {
            self.progress.acknowledged(self.sent);
        }
        self.digests.is_supported |= digest.is_some();

        let reports = Reports::new(failures, degraded, &self.failing_services);
        self.failing_services = reports.failing_services.clone();
        let new_reports = reports.clone();
        let acked = self.progress.acked_revision();
        let previous = self.status.update(|status| {
            if is_answer {
                status.unanswered_since = None;
            }
            status.acked = acked;
            status.apply_time = apply_time;
            new_reports.replace_in(status)
        });
        self.report_new_failures(&previous.failures, &reports.failures);
        self.report_degraded(&previous.degraded, reports.degraded);

        match kind {
            AckKind::Answer { expected } => self.on_answer(digest, expected).await,
            AckKind::Repeat => {
                self.set_programmed();
                Ok(())
            }
        }
    }

    fn classify_ack(&self, number: u64) -> Result<AckKind, SessionError> {
        if let Awaiting::Ack(expected) = self.awaiting
            && number == self.progress.next_number()
        {
            return Ok(AckKind::Answer { expected });
        }

        let acked = self.progress.acked();
        if number == acked {
            return Ok(AckKind::Repeat);
        }
        Err(SessionError::UnexpectedAck { number, acked })
    }

    /// Limits how often the client sends its last Ack again, when more is programmed or other failures are to be
    /// reported. The one that says that everything is programmed does not count: there is one for each commit at most.
    fn count_repeat(&mut self, programmed_number: u64) -> Result<(), SessionError> {
        if self.progress.is_completed_by(programmed_number) {
            return Ok(());
        }
        let rate = self.context.config.repeated_acks;
        self.ack_repeats.take(rate, Instant::now()).map_err(|_| SessionError::TooManyRepeats(rate))
    }

    /// The client has acknowledged the commit or bookmark in flight.
    async fn on_answer(&mut self, digest: Option<Digest>, expected: Digest) -> Result<(), SessionEnd> {
        self.awaiting = Awaiting::Nothing;
        self.output.permit = None;
        self.status.clear_error();

        if let Err(mismatch) = self.digests.check(digest, expected) {
            return self.on_mismatch(mismatch).await;
        }
        self.set_programmed();

        if self.freshness_told.elapsed() >= FRESHNESS_INTERVAL {
            self.freshness_told = Instant::now();
            if self.context.freshness.is_outdated() {
                return self.send_bookmark(self.sent, expected).await;
            }
        }
        Ok(())
    }

    /// Creates Kubernetes Events for failures that were not in the previous Ack, at most [`MAX_FAILURES_OF_NODE`].
    fn report_new_failures(&self, previous: &[ServicePortFailure], failures: &[ServicePortFailure]) {
        fn identity(failure: &ServicePortFailure) -> (&ServicePortKey, &str, FailureKind) {
            (&failure.key, &failure.reason, failure.kind)
        }
        if previous == failures {
            return;
        }

        let previous: BTreeSet<_> = previous.iter().map(identity).collect();
        let new = failures.iter().filter(|failure| !previous.contains(&identity(failure)));
        let mut new: Vec<_> = new.take(MAX_FAILURES_OF_NODE).collect();
        {
            // All streams wait for the log. A node may not create Events for Services that do not exist.
            let log = self.context.cluster.log();
            new.retain(|failure| log.view(&failure.key).is_some());
        }

        for failure in new {
            self.context.events.report(EventReport::Failed(self.node.clone(), failure.clone()));
        }
    }

    /// Creates a Kubernetes Event for the first text that was not in the previous Ack.
    fn report_degraded(&self, previous: &[String], degraded: Vec<String>) {
        let Some(text) = degraded.into_iter().find(|text| !previous.contains(text)) else { return };
        if self.context.streams.has_node(&self.node) {
            self.context.events.report(EventReport::Degraded(self.node.clone(), text));
        }
    }

    async fn on_mismatch(&mut self, mismatch: DigestMismatch) -> Result<(), SessionEnd> {
        self.report_mismatch(mismatch);
        self.progress.distrust();

        match mismatch.remedy {
            Remedy::Nothing => {
                // The client owes no answer.
                self.status.update(|status| {
                    status.pending_since.get_or_insert_with(Instant::now);
                });
                Ok(())
            }
            Remedy::Compare => {
                self.set_pending(Instant::now());
                self.compare().await
            }
            Remedy::Snapshot => {
                self.set_pending(Instant::now());
                self.send_snapshot().await
            }
            Remedy::StopChecking => {
                self.set_pending(Instant::now());
                // The snapshot counts, as digests do not any more.
                self.progress.trust_acked();
                self.set_programmed();
                Ok(())
            }
        }
    }

    /// Logs and counts a mismatch, and shows in the status that the state of the node is wrong.
    fn report_mismatch(&self, mismatch: DigestMismatch) {
        let revision = self.sent;
        let digest = mismatch.digest.0;
        let expected = mismatch.expected.0;
        let is_repaired = mismatch.remedy != Remedy::Nothing;
        match self.context.count_mismatch(&self.counted_as, mismatch.is_after_snapshot) {
            Some(count) if is_repaired => {
                warn!(%revision, digest, expected, count, "digest mismatch, the state of the node is wrong");
                if mismatch.remedy == Remedy::StopChecking {
                    error!(
                        count,
                        "digest mismatch right after a snapshot: client and frontend compute digests differently, \
                         no longer checking them on this stream; compare their versions"
                    );
                }
            }
            Some(count) => error!(
                %revision, digest, expected, count,
                "digest mismatch, the state of the node is wrong and is not repaired: there were too many on this \
                 stream; compare the versions"
            ),
            None => debug!(%revision, digest, expected, is_repaired, "digest mismatch, the state of the node is wrong"),
        }

        self.context.metrics.mismatches.inc();
        self.status.update(|status| {
            status.repairs += 1;
            status.programmed = NO_REVISION;
            status.partly = PartlyProgrammed::default();
        });
        self.status.differed();
    }

    /// Requests the client's digests; sends a snapshot to a client that computes none.
    async fn compare(&mut self) -> Result<(), SessionEnd> {
        if !self.digests.is_supported {
            return self.send_snapshot().await;
        }
        self.awaiting = Awaiting::Digests;
        self.set_pending(Instant::now());
        self.output.send(OutgoingMessage::Plain(ServerMessage::DigestRequest)).await
    }

    /// Sends the buckets that differ. When none does, the client does not have to wait for a rebuild permit.
    async fn repair(&mut self, digests: &DigestVector) -> Result<(), SessionEnd> {
        self.acquire_sync().await?;
        if let Some(update) = self.empty_repair(digests) {
            return self.send_rebuild(update).await;
        }

        self.acquire_rebuild_permit().await?;
        let (buckets, update) = {
            let mut log = self.context.cluster.log();
            let differing: BTreeSet<_> = log.digests(&self.node).differing(digests).collect();
            (differing.len(), log.rebuild(&self.node, differing))
        };
        info!(buckets, revision = %update.target, "sending a repair");
        self.send_rebuild(update).await
    }

    /// The repair of a client whose digests agree; `None` if some differ.
    fn empty_repair(&self, digests: &DigestVector) -> Option<NodeUpdate> {
        let mut log = self.context.cluster.log();
        if log.digests(&self.node).differing(digests).next().is_some() {
            return None;
        }
        Some(log.rebuild(&self.node, BTreeSet::new()))
    }

    async fn send_snapshot(&mut self) -> Result<(), SessionEnd> {
        self.acquire_sync().await?;
        self.acquire_rebuild_permit().await?;
        let update = self.context.cluster.log().snapshot(&self.node);
        debug!(revision = %update.target, "sending a snapshot");
        self.send_rebuild(update).await
    }

    /// Sends a snapshot or a repair.
    async fn send_rebuild(&mut self, update: NodeUpdate) -> Result<(), SessionEnd> {
        self.context.metrics.rebuilds.inc();
        self.send(update).await
    }

    /// Waits until the rate limit of the node allows another snapshot or repair.
    async fn acquire_sync(&mut self) -> Result<(), SessionEnd> {
        if mem::take(&mut self.has_initial_token) {
            return Ok(());
        }
        let token = self.permit.acquire_sync();
        wait_with_keepalive(&self.context, self.sent, token, self.output).await
    }

    async fn acquire_rebuild_permit(&mut self) -> Result<(), SessionEnd> {
        let permit = self.context.rebuild_queue.acquire(&self.counted_as);
        let permit = wait_with_keepalive(&self.context, self.sent, permit, self.output).await?;
        self.output.permit = Some(permit);
        Ok(())
    }

    /// Sends an update in messages of limited size, the last of which commits, even if it is empty.
    async fn send(&mut self, update: NodeUpdate) -> Result<(), SessionEnd> {
        let base = self.sent;
        let NodeUpdate { target, chunks, oldest_trigger, committed_at: _, digest, kind_versions } = update;
        let part = Batch { base, target, oldest_trigger, ..Batch::default() };

        let mut pending = Vec::new();
        let mut size = 0;
        for chunk in chunks {
            if size + chunk.size() > BATCH_BYTES && !pending.is_empty() {
                let chunks = mem::take(&mut pending);
                self.output.send(OutgoingMessage::Batch { header: part.clone(), chunks }).await?;
                size = 0;
            }
            size += chunk.size();
            pending.push(chunk);
        }

        let header = Batch { commit: true, source_version: kind_versions.newest(), kind_versions, ..part };
        self.output.send(OutgoingMessage::Batch { header, chunks: pending }).await?;

        // Messages in transit take memory, too.
        if let Some(permit) = &mut self.output.permit {
            permit.expires_at = permit.expires_at.min(Instant::now() + DELIVERY_TIMEOUT);
        }
        self.await_ack(target, digest);
        Ok(())
    }

    async fn send_bookmark(&mut self, revision: Revision, digest: Digest) -> Result<(), SessionEnd> {
        let now = Instant::now();
        self.set_pending(now);
        self.freshness_told = now;
        let bookmark = Bookmark { revision, digest, is_outdated: self.context.freshness.is_outdated() };
        self.output.send(OutgoingMessage::Plain(ServerMessage::Bookmark(bookmark))).await?;
        self.await_ack(revision, digest);
        Ok(())
    }

    /// Records in the status what the node has programmed.
    fn set_programmed(&mut self) {
        let programmed = self.progress.programmed_revision();
        if self.is_idle() && self.progress.is_complete() {
            return self.set_everything_programmed();
        }

        let since = self.context.cluster.log().changed_since(programmed);
        let had_everything = self.progress.had_everything();
        let partly = self.progress.partly_programmed();
        self.status.update(|status| {
            status.partly = partly;
            if had_everything && programmed > status.programmed {
                status.programmed = programmed;
                status.pending_since = since.or(status.pending_since);
            }
        });
    }

    /// Records in the status that the node has programmed everything that it was sent: nothing that concerns it is
    /// missing up to the cursor.
    fn set_everything_programmed(&mut self) {
        if let Some(committed_at) = self.committed_at.take() {
            self.context.metrics.acks.observe(committed_at.elapsed().as_secs_f64());
        }
        let cursor = self.cursor;
        self.status.update(|status| {
            status.programmed = cursor;
            status.pending_since = None;
            status.partly = PartlyProgrammed::default();
        });
    }

    /// Records that the client has something to acknowledge, since then.
    fn set_pending(&self, since: Instant) {
        self.status.update(|status| {
            status.pending_since.get_or_insert(since);
            status.unanswered_since.get_or_insert_with(Instant::now);
        });
    }

    fn await_ack(&mut self, revision: Revision, digest: Digest) {
        self.cursor = revision;
        self.sent = revision;
        self.progress.sent(revision);
        self.awaiting = Awaiting::Ack(digest);
        self.bookmark_at = Instant::now() + self.context.config.bookmark_interval;
    }
}

impl<'a> Start<'a> {
    fn of(context: &FrontendContext, hello: &'a Hello) -> Self {
        if let Some((from, update)) = resume(context, hello) {
            return Self::Resume(from, update);
        }
        match &hello.digests {
            Some(digests) => Self::Repair(digests),
            None => Self::Snapshot,
        }
    }

    fn mode(&self) -> SyncMode {
        match self {
            Self::Resume(..) => SyncMode::Resume,
            Self::Repair(_) => SyncMode::Repair,
            Self::Snapshot => SyncMode::Snapshot,
        }
    }

    /// The revision of the client.
    fn base(&self) -> Revision {
        match self {
            Self::Resume(from, _) => *from,
            Self::Repair(_) | Self::Snapshot => NO_REVISION,
        }
    }
}

/// The revision of a client and the changes since. `None` if it has none of this epoch, or the history does not reach
/// back to it.
fn resume(context: &FrontendContext, hello: &Hello) -> Option<(Revision, NodeUpdate)> {
    let (epoch, from) = hello.resume?;
    if epoch != context.cluster.epoch {
        return None;
    }
    let since = context.cluster.log().commits_since(&hello.node, from)?;
    Some((from, since.difference(&hello.node)?))
}

/// Counts and logs the start of a stream, and creates a Kubernetes Event for that of a backend.
fn report_start(context: &FrontendContext, hello: &Hello, mode: SyncMode) {
    context.metrics.started(mode);
    if let Some(start) = BackendStart::of(hello)
        && context.streams.has_node(&hello.node)
    {
        context.events.report(EventReport::Started(start));
    }

    info!(backend = hello.backend, version = hello.backend_version, ?mode, "stream started");
    if hello.role == Role::Backend && context.streams.lacks_node(&hello.node) {
        warn!("there is no Node object of this name: check --node-name of the backend, and whether it was deleted");
    }
}

impl Reports {
    /// `failing_before`: the Services that failed as of the last Ack.
    fn new(
        mut failures: Vec<ServicePortFailure>,
        degraded: Vec<String>,
        failing_before: &BTreeMap<ObjectName, Instant>,
    ) -> Self {
        let failing_services = Arc::new(failing_services(&failures, failing_before));
        failures.truncate(Ack::first_failures(&failures).len());
        Self { failures: failures.into(), failing_services, degraded: truncated_degraded(degraded) }
    }

    /// Replaces the reports in the status, and returns those that it had. The lock of all streams is held only for
    /// that.
    fn replace_in(self, status: &mut StreamStatus) -> Self {
        Self {
            failures: mem::replace(&mut status.failures, self.failures),
            failing_services: mem::replace(&mut status.failing_services, self.failing_services),
            degraded: mem::replace(&mut status.degraded, self.degraded),
        }
    }
}

/// The first texts, and the first bytes of each.
fn truncated_degraded(mut texts: Vec<String>) -> Vec<String> {
    texts.truncate(MAX_DEGRADED);
    for text in &mut texts {
        text.truncate(text.floor_char_boundary(MAX_DEGRADED_BYTES));
    }
    texts
}

/// The Services of which a port is not in the kernel, and since when. `before`: the same as of the last Ack.
fn failing_services(
    failures: &[ServicePortFailure],
    before: &BTreeMap<ObjectName, Instant>,
) -> BTreeMap<ObjectName, Instant> {
    let now = Instant::now();
    let failing = failures.iter().filter(|failure| failure.kind == FailureKind::Program);
    let services = failing.map(|failure| ObjectName::new(failure.key.namespace.clone(), failure.key.name.clone()));
    services.map(|service| (service.clone(), before.get(&service).copied().unwrap_or(now))).collect()
}

/// Waits for `awaited`, and sends empty batches meanwhile so that the client sees that the frontend is alive.
async fn wait_with_keepalive<T>(
    context: &FrontendContext,
    base: Revision,
    awaited: impl Future<Output = T>,
    output: &mut MessageSink,
) -> Result<T, SessionEnd> {
    let closed = output.closed();
    tokio::pin!(awaited, closed);
    loop {
        tokio::select! {
            biased;
            () = &mut closed => return Err(SessionEnd::Disconnected),
            result = &mut awaited => return Ok(result),
            () = sleep(context.config.bookmark_interval) => {
                let target = context.cluster.log().revision();
                let header = Batch { base, target, ..Batch::default() };
                // Does not wait for the client to read: a permit granted meanwhile would be lost.
                output.try_send(OutgoingMessage::Batch { header, chunks: Vec::new() })?;
            }
        }
    }
}
