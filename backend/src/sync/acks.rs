//! Which acks are due, and which propagation times are measured: the commits that were received, compared with what is
//! programmed.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, SystemTime},
};

use proto::{
    digest::Digest,
    model::{Ack, Revision, ServicePortFailure, ServicePortKey},
};
use tokio::time::Instant;

use super::{Position, Programmed};

/// For how long the ack of a commit waits until the commit is programmed: most are, and then need no second ack.
const ACK_DELAY: Duration = Duration::from_millis(100);

/// The most acks that wait while the backend fails. A later ack covers the earlier ones.
const MAX_WAITING: usize = 256;

/// The most commits whose propagation time is measured while the backend fails: the oldest ones.
const MAX_TRIGGERS: usize = 256;

/// The most bytes of failures in an ack; the status page and the metrics count all of them.
const MAX_FAILURE_BYTES: usize = 256 << 10;

/// The bytes of a failure in an ack without its texts, at most.
const FAILURE_OVERHEAD: usize = 32;

/// The commits that wait for the kernel.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// The number of sessions before this one.
    session: u64,
    /// The commits and bookmarks of the session that are not acked.
    waiting: VecDeque<Received>,
    /// The last one that was acked in the session, and how.
    sent: Option<(Received, Ack)>,
    /// The commits of any session whose propagation is to be measured.
    triggers: Vec<Trigger>,
}

/// A commit or bookmark.
#[derive(Clone, Copy, Debug)]
struct Received {
    position: Position,
    /// Of the committed state.
    digest: Digest,
    at: Instant,
}

/// When the oldest change of a commit was made in the cluster.
#[derive(Debug)]
pub(super) struct Trigger {
    pub(super) number: u64,
    pub(super) time: SystemTime,
    /// What the commit changed.
    pub(super) service_ports: BTreeSet<ServicePortKey>,
}

impl Acks {
    /// Records a commit or bookmark of the session.
    pub(super) fn received(&mut self, number: u64, revision: Revision, digest: Digest) -> Position {
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        let position = Position { number, session: self.session, revision };
        self.waiting.push_back(Received { position, digest, at: Instant::now() });
        position
    }

    pub(super) fn triggered(&mut self, trigger: Trigger) {
        if self.triggers.len() < MAX_TRIGGERS {
            self.triggers.push(trigger);
        }
    }

    /// The session has ended, and its acks are void.
    pub(super) fn lost(&mut self) {
        self.session += 1;
        self.waiting.clear();
        self.sent = None;
    }

    /// Whether the frontend waits for an ack, or for the last one again.
    pub(super) fn is_waiting(&self, programmed: &Programmed) -> bool {
        !self.waiting.is_empty() || !programmed.unfinished.is_empty()
    }

    /// Takes the triggers of the commits that are programmed.
    pub(super) fn propagated(&mut self, programmed: &Programmed) -> Vec<SystemTime> {
        let is_programmed = |trigger: &mut Trigger| {
            trigger.number <= programmed.number && trigger.service_ports.is_disjoint(&programmed.unfinished)
        };
        self.triggers.extract_if(.., is_programmed).map(|trigger| trigger.time).collect()
    }

    /// Takes the acks that are due after a success of the backend. While it fails or hangs there are none.
    pub(super) fn due(&mut self, programmed: &Programmed) -> Vec<Ack> {
        let is_finished = programmed.unfinished.is_empty();
        let accepted = self.waiting.partition_point(|received| received.position.number <= programmed.number);
        let Some(first) = self.waiting.front().filter(|_| accepted > 0) else {
            return self.again(programmed).into_iter().collect();
        };
        if !is_finished && first.at.elapsed() < ACK_DELAY {
            return Vec::new();
        }
        let failures = acked_failures(&programmed.failures);
        let ack = |received: Received| (received, received.ack(programmed, failures.clone()));
        let acks: Vec<_> = self.waiting.drain(..accepted).map(ack).collect();
        self.sent = acks.last().cloned();
        acks.into_iter().map(|(_, ack)| ack).collect()
    }

    /// The last ack with what is programmed now, if that differs.
    fn again(&mut self, programmed: &Programmed) -> Option<Ack> {
        let (received, sent) = self.sent.as_mut()?;
        let mut ack = received.ack(programmed, acked_failures(&programmed.failures));
        if ack.programmed == sent.programmed {
            ack.apply_time = sent.apply_time;
            // Failures that change with each part of a large change wait for the last one.
            if !programmed.unfinished.is_empty() || ack == *sent {
                return None;
            }
        }
        *sent = ack;
        Some(sent.clone())
    }
}

impl Received {
    fn ack(&self, programmed: &Programmed, failures: Vec<ServicePortFailure>) -> Ack {
        Ack {
            received: self.position.revision,
            programmed: self.programmed(programmed.complete),
            digest: Some(self.digest),
            apply_time: self.at.elapsed(),
            failures,
            degraded: programmed.degraded.clone(),
        }
    }

    /// The newest revision of the session, up to this one, that is programmed; 0: none.
    fn programmed(&self, complete: Position) -> Revision {
        let Position { number, session, revision } = self.position;
        match complete {
            _ if complete.session != session => Revision(0),
            _ if complete.number >= number => revision,
            // A repair may be of the revision that was programmed before.
            _ => complete.revision.min(Revision(revision.0.saturating_sub(1))),
        }
    }
}

/// The first failures, up to [`MAX_FAILURE_BYTES`].
fn acked_failures(failures: &[ServicePortFailure]) -> Vec<ServicePortFailure> {
    let mut bytes = 0;
    let fits = |failure: &&ServicePortFailure| {
        let ServicePortFailure { key, reason, .. } = failure;
        bytes += key.namespace.len() + key.name.len() + key.port_name.len() + reason.len() + FAILURE_OVERHEAD;
        bytes <= MAX_FAILURE_BYTES
    };
    failures.iter().take_while(fits).cloned().collect()
}
