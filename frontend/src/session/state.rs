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
use runtime::{Rate, TokenBucket};
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use crate::{
    clients::StreamPermit,
    context::FrontendContext,
    events::{BackendStart, EventReport, MAX_FAILURES_OF_NODE},
    identity::Identity,
    log::{CHUNK_BYTES, NodeUpdate},
    object::ObjectName,
    streams::{PartlyProgrammed, StreamGuard},
};

use super::{MessageSink, OutgoingMessage, SessionEnd, SessionError, truncated::truncated_degraded};

/// The base of the first batch to a client that does not resume.
const NO_REVISION: Revision = Revision(0);

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

/// How often digest mismatches of one stream are repaired. More of them have a cause that a repair does not remove,
/// such as an endpoint that comes and goes and that the backend ignores.
const MISMATCH_RATE: Rate = Rate { burst: 6, every: Duration::from_secs(600) };

/// The most commits and bookmarks whose revisions are kept until they are programmed. A node rarely lags more than one.
const MAX_REVISIONS: usize = 64;

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
    mismatches: TokenBucket,
    node: Arc<str>,
    /// The revision that the client is at, or will be at once it has applied what was sent.
    cursor: Revision,
    /// The last revision that was sent to the client. Lower than `cursor` while nothing changes for its node.
    sent: Revision,
    /// The number of the last commit or bookmark that the client has acknowledged; 0: none.
    acked: u64,
    awaiting: Awaiting,
    /// Whether the client computes digests at all.
    sends_digests: bool,
    digest_trust: DigestTrust,
    /// When to send a bookmark if nothing else happens.
    pub(super) bookmark_at: Instant,
    /// When the client was last told whether this frontend follows the API, or need not be told because it does.
    freshness_told: Instant,
    /// When the oldest change in the difference being sent was committed; `None` for anything but a difference.
    committed_at: Option<Instant>,
    /// The number of the newest commit or bookmark that the client has programmed, according to its last Ack.
    programmed: u64,
    /// The revisions of the commits and bookmarks by number, from the newest one that is programmed on.
    revisions: BTreeMap<u64, Revision>,
    /// What it has programmed beyond that, according to its last Ack.
    partly: PartlyProgrammed,
    /// The Services that it cannot program, according to its last Ack, and since when.
    failing_services: Arc<BTreeMap<ObjectName, Instant>>,
    /// Once the client has programmed the one with this number, it has had everything: the first that was sent on this
    /// stream, or since a mismatch. `None`: none was sent, so that a mismatch that is not repaired keeps the node from
    /// counting as programmed.
    first: Option<u64>,
}

/// The answer that the client owes before anything else is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    Nothing,
    /// An Ack of the number after `acked`, with this digest.
    Ack(Digest),
    Digests,
}

/// What has been tried since the digests last agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DigestTrust {
    Agreed,
    Repaired,
    /// A snapshot was sent. If digests still differ after it, the two sides compute them differently, and the stream
    /// goes on without the check: sending snapshots over and over would be worse for the node.
    Resent,
    Disabled,
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
        let node = hello.node.clone();
        let epoch = context.cluster.epoch;
        let resume = hello.resume.filter(|(of, _)| *of == epoch);
        let resumed = resume.and_then(|(_, from)| {
            let since = context.cluster.log().commits_since(&node, from)?;
            Some((from, since.difference(&node)?))
        });
        let (mode, base) = match (&resumed, &hello.digests) {
            (Some((from, _)), _) => (SyncMode::Resume, *from),
            (None, Some(_)) => (SyncMode::Repair, NO_REVISION),
            (None, None) => (SyncMode::Snapshot, NO_REVISION),
        };
        let status = context.streams.register(&hello, mode);
        context.metrics.started(mode);
        if let Some(start) = BackendStart::of(&hello).filter(|_| context.streams.has_node(&node)) {
            context.events.report(EventReport::Started(start));
        }
        info!(backend = hello.backend, version = hello.backend_version, ?mode, "stream started");
        if hello.role == Role::Backend && context.streams.lacks_node(&node) {
            warn!("there is no Node object of this name: check --node-name of the backend, and whether it was deleted");
        }
        let mut session = Self {
            output,
            context,
            status,
            permit,
            counted_as: identity.counted_as(&hello.node),
            has_initial_token: true,
            ack_repeats: TokenBucket::full(Instant::now()),
            mismatches: TokenBucket::full(Instant::now()),
            node,
            cursor: base,
            sent: base,
            acked: 0,
            awaiting: Awaiting::Nothing,
            sends_digests: hello.digests.is_some(),
            digest_trust: DigestTrust::Agreed,
            bookmark_at: Instant::now(),
            freshness_told: Instant::now(),
            committed_at: None,
            programmed: 0,
            revisions: BTreeMap::new(),
            partly: PartlyProgrammed::default(),
            failing_services: Arc::default(),
            first: None,
        };
        let kind_versions = *session.context.cluster.kind_versions().borrow();
        let is_outdated = session.context.freshness.is_outdated();
        let welcome = Welcome { epoch, mode, source_version: kind_versions.newest(), kind_versions, is_outdated };
        session.output.send(OutgoingMessage::Plain(ServerMessage::Welcome(welcome))).await?;
        match (resumed, hello.digests) {
            // Confirms that the client is up to date. The digest in its Ack is checked.
            (Some((_, update)), _) if update.chunks.is_empty() => {
                session.send_bookmark(update.target, update.digest).await?;
            }
            (Some((_, update)), _) => {
                session.set_pending(update.committed_at.unwrap_or_else(Instant::now));
                session.send(update).await?;
            }
            (None, Some(digests)) => session.repair(&digests).await?,
            (None, None) => session.send_snapshot().await?,
        }
        Ok(session)
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
                if self.programmed == self.acked {
                    self.set_programmed();
                }
                Ok(())
            }
            Some(update) => {
                // The oldest of those that are not programmed.
                self.committed_at = self.committed_at.or(update.committed_at);
                self.set_pending(update.committed_at.unwrap_or_else(Instant::now));
                self.send(update).await
            }
            None => {
                info!(revision = %self.cursor, "no difference for the node's revision, comparing digests");
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
            ClientMessage::DigestResponse(_, digests) if self.awaiting == Awaiting::Digests => {
                self.status.update(|status| status.unanswered_since = Some(Instant::now()));
                self.repair(&digests).await
            }
            ClientMessage::DigestResponse(..) => Err(SessionError::UnexpectedDigests.into()),
        }
    }

    async fn on_ack(&mut self, ack: Ack) -> Result<(), SessionEnd> {
        let Ack { received_number, programmed_number, digest, apply_time, mut failures, degraded, .. } = ack;
        let answered = match self.awaiting {
            Awaiting::Ack(expected) if received_number == self.acked + 1 => Some(expected),
            _ if received_number == self.acked => {
                self.count_repeat(programmed_number)?;
                None
            }
            _ => return Err(SessionError::UnexpectedAck { number: received_number, acked: self.acked }.into()),
        };

        self.programmed = programmed_number;
        self.partly.unfinished_namespaces = ack.unfinished_namespaces;
        if answered.is_some() {
            self.acked = received_number;
            self.partly.revision = self.sent;
        }

        // The lock of all streams is held only to exchange the failures. A pod waits for all Services that fail, also
        // for those that the list has no room for.
        self.failing_services = Arc::new(failing_services(&failures, &self.failing_services));
        let failing_services = self.failing_services.clone();
        failures.truncate(Ack::first_failures(&failures).len());
        let failures = Arc::<[_]>::from(failures);
        let degraded = truncated_degraded(degraded);
        let acked = self.partly.revision;
        let (previous, degraded_before, _) = self.status.update(|status| {
            if answered.is_some() {
                status.unanswered_since = None;
            }
            status.acked = acked;
            status.apply_time = apply_time;
            let previous = mem::replace(&mut status.failures, failures.clone());
            let degraded_before = mem::replace(&mut status.degraded, degraded.clone());
            (previous, degraded_before, mem::replace(&mut status.failing_services, failing_services))
        });
        self.report_new_failures(&previous, &failures);
        let is_new = |text: &String| !degraded_before.contains(text);
        if let Some(text) = degraded.into_iter().find(is_new).filter(|_| self.context.streams.has_node(&self.node)) {
            self.context.events.report(EventReport::Degraded(self.node.clone(), text));
        }
        self.sends_digests |= digest.is_some();
        if let Some(expected) = answered {
            return self.accept_ack(digest, expected).await;
        }
        self.set_programmed();
        Ok(())
    }

    /// Limits how often the client sends its last Ack again, when more is programmed or other failures are to be
    /// reported. The one that says that everything is programmed does not count: there is one for each commit at most.
    fn count_repeat(&mut self, programmed_number: u64) -> Result<(), SessionError> {
        if programmed_number == self.acked && self.programmed < self.acked {
            return Ok(());
        }
        let rate = self.context.config.repeated_acks;
        self.ack_repeats.take(rate, Instant::now()).map_err(|_| SessionError::TooManyRepeats(rate))
    }

    /// The client has acknowledged what was in flight.
    async fn accept_ack(&mut self, digest: Option<Digest>, expected: Digest) -> Result<(), SessionEnd> {
        self.awaiting = Awaiting::Nothing;
        self.output.permit = None;
        self.status.clear_error();
        match digest {
            Some(digest) if digest == expected => self.digest_trust = DigestTrust::Agreed,
            Some(digest) if self.digest_trust != DigestTrust::Disabled => {
                return self.on_mismatch(digest, expected).await;
            }
            _ => {}
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

    async fn on_mismatch(&mut self, digest: Digest, expected: Digest) -> Result<(), SessionEnd> {
        let (digest, expected) = (digest.0, expected.0);
        let revision = self.sent;
        let is_repaired = self.mismatches.take(MISMATCH_RATE, Instant::now()).is_ok();
        let count = self.context.count_mismatch(&self.counted_as, self.digest_trust == DigestTrust::Resent);
        match count {
            Some(count) if is_repaired => {
                warn!(%revision, digest, expected, count, "digest mismatch, the state of the node is wrong");
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
        self.first = None;
        if !is_repaired {
            // The client owes no answer.
            self.status.update(|status| {
                status.pending_since.get_or_insert_with(Instant::now);
            });
            return Ok(());
        }
        self.set_pending(Instant::now());
        match self.digest_trust {
            DigestTrust::Agreed => {
                self.digest_trust = DigestTrust::Repaired;
                self.compare().await
            }
            DigestTrust::Repaired => {
                self.digest_trust = DigestTrust::Resent;
                self.send_snapshot().await
            }
            DigestTrust::Resent | DigestTrust::Disabled => {
                if let Some(count) = count {
                    error!(
                        count,
                        "digest mismatch right after a snapshot: client and frontend compute digests differently, \
                         no longer checking them on this stream; compare their versions"
                    );
                }
                self.digest_trust = DigestTrust::Disabled;
                // The snapshot counts, as digests do not any more.
                self.first = Some(self.acked);
                self.set_programmed();
                Ok(())
            }
        }
    }

    /// Requests the client's digests; sends a snapshot to a client that computes none.
    async fn compare(&mut self) -> Result<(), SessionEnd> {
        if !self.sends_digests {
            return self.send_snapshot().await;
        }
        self.awaiting = Awaiting::Digests;
        self.set_pending(Instant::now());
        self.output.send(OutgoingMessage::Plain(ServerMessage::DigestRequest)).await
    }

    /// Sends the buckets that differ. When none does, the client does not have to wait for a rebuild permit.
    async fn repair(&mut self, digests: &DigestVector) -> Result<(), SessionEnd> {
        self.acquire_sync().await?;
        let empty = {
            let mut log = self.context.cluster.log();
            let agrees = log.digests(&self.node).differing(digests).next().is_none();
            agrees.then(|| log.rebuild(&self.node, BTreeSet::new()))
        };
        if let Some(update) = empty {
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
        let (mut pending, mut size) = (Vec::new(), 0);
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

    /// Records what the node has programmed: if everything that it was sent, what concerns it up to the cursor.
    fn set_programmed(&mut self) {
        let known = self.revisions.range(..=self.programmed).next_back();
        let (number, programmed) = known.map_or((0, NO_REVISION), |(number, revision)| (*number, *revision));
        self.revisions.retain(|kept, _| *kept >= number);
        if self.programmed == self.acked && self.is_idle() && self.first.is_some() {
            if let Some(committed_at) = self.committed_at.take() {
                self.context.metrics.acks.observe(committed_at.elapsed().as_secs_f64());
            }
            let cursor = self.cursor;
            return self.status.update(|status| {
                (status.programmed, status.pending_since) = (cursor, None);
                status.partly = PartlyProgrammed::default();
            });
        }
        let since = self.context.cluster.log().changed_since(programmed);
        let had_everything = self.first.is_some_and(|first| self.programmed >= first);
        let partly = self.first.filter(|first| self.acked >= *first).map(|_| self.partly.clone());
        self.status.update(|status| {
            status.partly = partly.unwrap_or_default();
            if had_everything && programmed > status.programmed {
                status.programmed = programmed;
                status.pending_since = since.or(status.pending_since);
            }
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
        let number = self.acked + 1;
        if self.revisions.len() == MAX_REVISIONS {
            // The node counts as having less, until it has programmed the new one.
            self.revisions.pop_last();
        }
        self.revisions.insert(number, revision);
        self.first.get_or_insert(number);
        self.awaiting = Awaiting::Ack(digest);
        self.bookmark_at = Instant::now() + self.context.config.bookmark_interval;
    }
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
