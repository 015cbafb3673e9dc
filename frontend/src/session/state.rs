//! Where one stream stands, and what to say next.

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use proto::{
    digest::{Digest, DigestVector},
    model::{
        Ack, Batch, ClientMessage, Hello, Revision, ServerMessage, ServicePortFailure, SourceVersion, SyncMode, Welcome,
    },
};
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use crate::{
    engine::Shared,
    events::BackendStart,
    log::{CHUNK_BYTES, NodeUpdate},
    outgoing::OutgoingMessage,
    streams::StreamGuard,
};

use super::{MessageSink, SessionEnd, SessionError, StreamPermit, token_bucket::TokenBucket};

/// The base of what is sent to a client that was told no revision yet on this stream and does not resume.
const FROM_ANYTHING: Revision = Revision(0);

/// How long after a snapshot has been handed over its Ack is waited for before another client gets the place. An agent acks when
/// its kernel is programmed, which may take long; but what has not arrived by then is a client's own slowness.
const ARRIVAL: Duration = Duration::from_secs(1);

/// How much is kept of what a client could not program, in bytes: those who read it want to know what is wrong, not all of it.
const FAILURES: usize = 256 << 10;

/// One stream.
#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<Shared>,
    status: StreamGuard,
    permit: StreamPermit,
    /// What may be sent without waiting for another turn: that which the stream started with.
    turn: Option<Turn>,
    /// How often the last ack may yet be repeated.
    repeats: TokenBucket,
    node: Arc<str>,
    /// The client holds, or will hold once it has dealt with what is under way, what is right at this revision.
    cursor: Revision,
    /// The last revision that the client was told; behind `cursor` while nothing changes for its node.
    told: Revision,
    /// The last revision that the client has acknowledged on this stream.
    acked: Revision,
    expects: Awaiting,
    /// Whether the client computes digests at all.
    computes: bool,
    trust: DigestTrust,
    bookmark_at: Instant,
    /// When the oldest change in what is under way was committed; `None` when that is no difference.
    committed: Option<Instant>,
}

/// The right to ask once for a snapshot or a repair.
#[derive(Debug)]
struct Turn;

/// What the client has to answer before anything else is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    Nothing,
    /// An ack of `told`, with this digest.
    Ack(Digest),
    Digests,
}

/// What has been tried since the digests last agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DigestTrust {
    Agreed,
    Repaired,
    /// Everything was sent anew. If that does not help, the two sides compute differently, and going on without the check
    /// is better for the node than being sent everything again and again.
    Resent,
    GivenUp,
}

impl Session {
    /// Decides how the stream starts, and starts it.
    pub(super) async fn start(
        shared: Arc<Shared>,
        hello: Hello,
        permit: StreamPermit,
        output: &mut MessageSink,
    ) -> Result<Self, SessionEnd> {
        let node = hello.node.clone();
        let (epoch, resumed) = {
            let mut log = shared.log();
            let resume = hello.resume.filter(|(epoch, _)| *epoch == log.epoch());
            let resumed = resume.and_then(|(_, from)| Some((from, log.difference(&node, from)?)));
            (log.epoch(), resumed)
        };
        let (mode, base) = match (&resumed, &hello.digests) {
            (Some((from, _)), _) => (SyncMode::Resume, *from),
            (None, Some(_)) => (SyncMode::Repair, FROM_ANYTHING),
            (None, None) => (SyncMode::Snapshot, FROM_ANYTHING),
        };
        let status = shared.streams.register(&hello, mode);
        shared.metrics.started(mode);
        if let Some(start) = BackendStart::of(&hello).filter(|_| shared.streams.expects(&node)) {
            shared.events.started(start);
        }
        info!(backend = hello.backend, version = hello.backend_version, ?mode, "stream started");
        let mut session = Self {
            shared,
            status,
            permit,
            turn: Some(Turn),
            repeats: TokenBucket::full(Instant::now()),
            node,
            cursor: base,
            told: base,
            acked: FROM_ANYTHING,
            expects: Awaiting::Nothing,
            computes: hello.digests.is_some(),
            trust: DigestTrust::Agreed,
            bookmark_at: Instant::now(),
            committed: None,
        };
        session.holds(base);
        let source_version = *session.shared.known().borrow();
        output.send(OutgoingMessage::Event(ServerMessage::Welcome(Welcome { epoch, mode, source_version }))).await?;
        match (resumed, hello.digests) {
            // The client learns that it is up to date, and its digest is checked.
            (Some((_, update)), _) if update.chunks.is_empty() => {
                session.holds(update.target);
                session.send_bookmark(update.target, update.digest, output).await?;
            }
            (Some((_, update)), _) => {
                let since = session.shared.log().changed_since(base);
                session.owes(since.unwrap_or_else(Instant::now));
                session.send(update, output).await?;
            }
            (None, Some(held)) => session.repair(&held, output).await?,
            (None, None) => session.resend(output).await?,
        }
        Ok(session)
    }

    /// Whether the client has nothing to answer.
    pub(super) fn is_idle(&self) -> bool {
        self.expects == Awaiting::Nothing
    }

    /// When to send a bookmark if nothing else happens.
    pub(super) fn bookmark_at(&self) -> Instant {
        self.bookmark_at
    }

    /// Sends what has changed, if anything has and the client is ready for it.
    pub(super) async fn advance(&mut self, output: &mut MessageSink) -> Result<(), SessionEnd> {
        if !self.is_idle() {
            return Ok(());
        }
        let (committed, update) = {
            let mut log = self.shared.log();
            if log.revision() == self.cursor {
                return Ok(());
            }
            (log.changed_since(self.cursor), log.difference(&self.node, self.cursor))
        };
        match update {
            Some(update) if update.chunks.is_empty() => {
                self.cursor = update.target;
                self.holds(update.target);
                Ok(())
            }
            Some(update) => {
                self.committed = committed;
                self.owes(committed.unwrap_or_else(Instant::now));
                self.send(update, output).await
            }
            None => {
                info!(cursor = %self.cursor, "the way from where the node stands is not known any more, comparing");
                self.compare(output).await
            }
        }
    }

    /// Tells an idle client that it is up to date.
    pub(super) async fn bookmark(&mut self, output: &mut MessageSink) -> Result<(), SessionEnd> {
        let (revision, digest) = {
            let log = self.shared.log();
            (log.revision(), log.digest(&self.node))
        };
        if revision != self.cursor {
            // Something was committed just now; `advance` comes first.
            return Ok(());
        }
        self.send_bookmark(revision, digest, output).await
    }

    /// Deals with what the client says.
    pub(super) async fn on_event(&mut self, event: ClientMessage, output: &mut MessageSink) -> Result<(), SessionEnd> {
        match event {
            ClientMessage::Hello(_) => Err(SessionError::SecondHello.into()),
            ClientMessage::Ack(ack) => self.on_ack(ack, output).await,
            ClientMessage::DigestResponse(_, held) => self.on_digests(&held, output).await,
        }
    }

    async fn on_ack(&mut self, ack: Ack, output: &mut MessageSink) -> Result<(), SessionEnd> {
        let Ack { revision, digest, apply_time, failures } = ack;
        let expected = match self.expects {
            Awaiting::Ack(expected) if revision == self.told => Some(expected),
            // The last ack may be repeated at any time, to report that a failure has come or gone.
            _ if revision == self.acked && revision != FROM_ANYTHING => {
                let rate = self.shared.config.repeats;
                let taken = self.repeats.take(rate, Instant::now());
                taken.map_err(|_| SessionError::TooManyRepeats(rate))?;
                None
            }
            _ => return Err(SessionError::UnexpectedAck { acked: revision, sent: self.told }.into()),
        };
        self.acked = revision;
        let failures = kept(failures);
        let mut before = failures.clone();
        self.status.update(|status| {
            status.acked = revision;
            status.apply_time = apply_time;
            mem::swap(&mut status.failures, &mut before);
        });
        self.tell_new(&before, &failures);
        self.computes |= digest.is_some();
        let Some(expected) = expected else { return Ok(()) };
        self.expects = Awaiting::Nothing;
        output.release();
        self.status.recovered();
        if let Some(committed) = self.committed.take() {
            self.shared.metrics.acked(committed.elapsed());
        }
        if let Some(held) = digest {
            if held != expected && self.trust != DigestTrust::GivenUp {
                return self.on_mismatch(revision, held, expected, output).await;
            }
            if held == expected {
                self.trust = DigestTrust::Agreed;
            }
        }
        self.holds(revision);
        Ok(())
    }

    /// Tells of what the node could program, or had another reason, when it said so last.
    fn tell_new(&self, before: &[ServicePortFailure], failures: &[ServicePortFailure]) {
        let reason = |failure: &ServicePortFailure| (failure.key.clone(), failure.reason.clone(), failure.kind);
        if before == failures {
            return;
        }
        let before: BTreeSet<_> = before.iter().map(reason).collect();
        let log = self.shared.log();
        // What a node makes up is no Service of the cluster's.
        let is_new =
            |failure: &&ServicePortFailure| !before.contains(&reason(failure)) && log.view(&failure.key).is_some();
        for failure in failures.iter().filter(is_new) {
            self.shared.events.failed(&self.node, failure);
        }
    }

    async fn on_mismatch(
        &mut self,
        revision: Revision,
        held: Digest,
        expected: Digest,
        output: &mut MessageSink,
    ) -> Result<(), SessionEnd> {
        warn!(%revision, held = held.0, expected = expected.0, "the node does not hold what it should");
        self.shared.metrics.mismatched();
        self.status.update(|status| {
            status.repairs += 1;
            status.held = Revision(0);
        });
        self.owes(Instant::now());
        match self.trust {
            DigestTrust::Agreed => {
                self.trust = DigestTrust::Repaired;
                self.compare(output).await
            }
            DigestTrust::Repaired => {
                self.trust = DigestTrust::Resent;
                self.resend(output).await
            }
            DigestTrust::Resent | DigestTrust::GivenUp => {
                error!("digests differ even after a snapshot: going on without them on this stream");
                self.trust = DigestTrust::GivenUp;
                self.holds(revision);
                Ok(())
            }
        }
    }

    /// Finds out what the client holds; if it cannot say, sends everything.
    async fn compare(&mut self, output: &mut MessageSink) -> Result<(), SessionEnd> {
        if !self.computes {
            return self.resend(output).await;
        }
        self.expects = Awaiting::Digests;
        self.owes(Instant::now());
        output.send(OutgoingMessage::Event(ServerMessage::DigestRequest)).await
    }

    async fn on_digests(&mut self, held: &DigestVector, output: &mut MessageSink) -> Result<(), SessionEnd> {
        if self.expects != Awaiting::Digests {
            return Err(SessionError::UnexpectedDigests.into());
        }
        self.repair(held, output).await
    }

    /// Makes right what differs. A client with which nothing is wrong need not wait for others to hear that.
    async fn repair(&mut self, held: &DigestVector, output: &mut MessageSink) -> Result<(), SessionEnd> {
        self.turn(output).await?;
        let right = {
            let mut log = self.shared.log();
            let agrees = log.digests(&self.node).differing(held).next().is_none();
            agrees.then(|| log.rebuild(&self.node, BTreeSet::new()))
        };
        if let Some(update) = right {
            return self.send(update, output).await;
        }
        self.admitted(output).await?;
        let (differing, update) = {
            let mut log = self.shared.log();
            let differing: BTreeSet<_> = log.digests(&self.node).differing(held).collect();
            (differing.len(), log.rebuild(&self.node, differing))
        };
        info!(differing, revision = %update.target, "repairing");
        self.send(update, output).await?;
        output.release_within(ARRIVAL);
        Ok(())
    }

    async fn resend(&mut self, output: &mut MessageSink) -> Result<(), SessionEnd> {
        self.turn(output).await?;
        self.admitted(output).await?;
        let update = self.shared.log().snapshot(&self.node);
        debug!(revision = %update.target, "sending everything");
        self.send(update, output).await?;
        output.release_within(ARRIVAL);
        Ok(())
    }

    /// Waits until this node may ask again.
    async fn turn(&mut self, output: &mut MessageSink) -> Result<(), SessionEnd> {
        if self.turn.take().is_some() {
            return Ok(());
        }
        let turn = self.permit.turn();
        waiting(&self.shared, self.told, turn, output).await
    }

    /// Waits until this client may be sent what it misses, whatever that is.
    async fn admitted(&mut self, output: &mut MessageSink) -> Result<(), SessionEnd> {
        let slot = waiting(&self.shared, self.told, self.shared.admission.admit(), output).await?;
        output.occupy(slot);
        Ok(())
    }

    /// Sends an update in messages that are small enough, the last of which commits, even when there is nothing in it.
    async fn send(&mut self, update: NodeUpdate, output: &mut MessageSink) -> Result<(), SessionEnd> {
        let base = self.told;
        let NodeUpdate { target, chunks, oldest_trigger, digest, source_version } = update;
        let header = |commit| Batch {
            base,
            target,
            operations: Vec::new(),
            commit,
            oldest_trigger,
            source_version: if commit { source_version } else { SourceVersion::default() },
        };
        let (mut pending, mut size) = (Vec::new(), 0);
        for chunk in chunks {
            if size + chunk.size() > CHUNK_BYTES && !pending.is_empty() {
                let chunks = mem::take(&mut pending);
                output.send(OutgoingMessage::Batch { header: header(false), chunks }).await?;
                size = 0;
            }
            size += chunk.size();
            pending.push(chunk);
        }
        output.send(OutgoingMessage::Batch { header: header(true), chunks: pending }).await?;
        self.expect_ack(target, digest);
        Ok(())
    }

    async fn send_bookmark(
        &mut self,
        revision: Revision,
        digest: Digest,
        output: &mut MessageSink,
    ) -> Result<(), SessionEnd> {
        self.owes(Instant::now());
        output.send(OutgoingMessage::Event(ServerMessage::Bookmark(revision, digest))).await?;
        self.expect_ack(revision, digest);
        Ok(())
    }

    /// The client has everything that concerns its node up to this revision. In the status of one that starts from nothing that is
    /// not much, and it goes on owing.
    fn holds(&self, revision: Revision) {
        self.status.update(|status| {
            status.held = revision;
            if revision != FROM_ANYTHING {
                status.behind = None;
            }
        });
    }

    /// There is something, since then, that the client has to acknowledge.
    fn owes(&self, since: Instant) {
        self.status.update(|status| {
            status.behind.get_or_insert(since);
        });
    }

    fn expect_ack(&mut self, revision: Revision, digest: Digest) {
        self.cursor = revision;
        self.told = revision;
        self.expects = Awaiting::Ack(digest);
        self.bookmark_at = Instant::now() + self.shared.config.bookmark_interval;
    }
}

/// As many failures as are worth their memory.
fn kept(failures: Vec<ServicePortFailure>) -> Vec<ServicePortFailure> {
    let mut bytes = 0;
    let fits = failures.into_iter().take_while(|ServicePortFailure { key, reason, .. }| {
        bytes +=
            key.namespace.len() + key.name.len() + key.port_name.len() + reason.len() + size_of::<ServicePortFailure>();
        bytes <= FAILURES
    });
    fits.collect()
}

/// Waits for `awaited`. The client hears from time to time that it is not forgotten.
async fn waiting<T>(
    shared: &Shared,
    base: Revision,
    awaited: impl Future<Output = T>,
    output: &mut MessageSink,
) -> Result<T, SessionEnd> {
    let ended = output.ended();
    tokio::pin!(awaited, ended);
    loop {
        tokio::select! {
            biased;
            // First: those who stop make room, and that is for nobody any more.
            end = &mut ended => return Err(end),
            come = &mut awaited => return Ok(come),
            () = sleep(shared.config.bookmark_interval) => {
                let target = shared.log().revision();
                let source_version = SourceVersion::default();
                let part = Batch { base, target, operations: Vec::new(), commit: false, oldest_trigger: None, source_version };
                // Never waits: a client that does not read might be given what it waits for meanwhile, and nobody would notice.
                output.try_send(OutgoingMessage::Batch { header: part, chunks: Vec::new() })?;
            }
        }
    }
}
