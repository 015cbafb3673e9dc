//! Compares the commits that were received with what is programmed: which acks are due, and which propagation times are
//! measured. Only the newest commit is acked, because a frontend waits for an ack before it sends another commit, and a
//! frontend that does not wait must not make the node remember all its commits.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use proto::{
    digest::Digest,
    model::{Ack, ServicePortKey},
};
use runtime::{Rate, TokenBucket};
use tokio::time::Instant;

use super::Programmed;

/// For how long the ack of a commit waits until the commit is programmed: most are, and then need no second ack.
const ACK_DELAY: Duration = Duration::from_millis(100);

/// How often an ack is sent that differs only in failures: a tenant may switch failures on and off, and a frontend ends
/// the stream of a client that repeats its acks too often.
const REPEAT_RATE: Rate = Rate { burst: 1, every: Duration::from_millis(200) };

/// The most commits whose propagation time is measured, the oldest ones: while the backend fails, each new session adds
/// some.
const MAX_TRIGGERS: usize = 256;

/// The commits that wait for the kernel.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// The number of the last commit or bookmark before the session.
    before_session: u64,
    /// The newest commit or bookmark of the session, if it is not acked.
    waiting: Option<Received>,
    /// The last commit or bookmark that was acked in the session, and its ack.
    sent: Option<(Received, Ack)>,
    /// For acks that differ only in failures; `None`: there was none.
    repeats: Option<TokenBucket>,
    /// When the next such ack is to be sent.
    pub(super) repeat_at: Option<Instant>,
    /// The commits of any session whose propagation is to be measured.
    triggers: Vec<Trigger>,
}

/// A commit or bookmark.
#[derive(Clone, Copy, Debug)]
struct Received {
    number: u64,
    /// The number of the last commit or bookmark before its session.
    before_session: u64,
    /// Of the committed state.
    digest: Digest,
    at: Instant,
}

/// When the oldest change of a commit was made in the cluster.
#[derive(Debug)]
pub(super) struct Trigger {
    pub(super) number: u64,
    pub(super) time: SystemTime,
    /// The changes of the commit.
    pub(super) service_ports: BTreeSet<ServicePortKey>,
}

impl Acks {
    /// Records a commit or bookmark of the session.
    pub(super) fn received(&mut self, number: u64, digest: Digest) {
        let before_session = self.before_session;
        self.waiting = Some(Received { number, before_session, digest, at: Instant::now() });
    }

    pub(super) fn triggered(&mut self, trigger: Trigger) {
        if self.triggers.len() < MAX_TRIGGERS {
            self.triggers.push(trigger);
        }
    }

    /// The session has ended, and its acks are void. `newest`: the number of the newest commit or bookmark.
    pub(super) fn session_ended(&mut self, newest: u64) {
        self.before_session = newest;
        self.waiting = None;
        self.sent = None;
        self.repeat_at = None;
    }

    /// Whether the frontend waits for an ack.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether an ack of the session was sent, which is repeated when more is programmed.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.sent.is_some()
    }

    /// Takes the triggers of the commits that are programmed.
    pub(super) fn propagated(&mut self, programmed: &Programmed) -> Vec<SystemTime> {
        let is_programmed = |trigger: &mut Trigger| {
            trigger.number <= programmed.number && !programmed.backlog.has_any(&trigger.service_ports)
        };
        self.triggers.extract_if(.., is_programmed).map(|trigger| trigger.time).collect()
    }

    /// Takes the Ack that is due after a success of the backend. While it fails or hangs there is none.
    pub(super) fn due(&mut self, programmed: &Programmed) -> Option<Ack> {
        self.repeat_at = None;
        let Some(received) = self.waiting else { return self.again(programmed) };
        let is_finished = programmed.backlog.is_empty();
        // No ack is repeated while a newer one is owed, which will say the same and more.
        if programmed.number < received.number || !is_finished && received.at.elapsed() < ACK_DELAY {
            return None;
        }

        let ack = received.ack(programmed);
        self.waiting = None;
        self.sent = Some((received, ack.clone()));
        Some(ack)
    }

    /// The last ack again, if another part of the state is programmed now.
    fn again(&mut self, programmed: &Programmed) -> Option<Ack> {
        let (received, sent) = self.sent.as_mut()?;
        let mut ack = received.ack(programmed);
        if ack.programmed_number == sent.programmed_number {
            ack.apply_time = sent.apply_time;
            // Failures that change with each part of a large change wait for the last one. Namespaces that are finished
            // do not: their pods that end wait for that.
            let is_finished = programmed.backlog.is_empty();
            if ack == *sent || !is_finished && !names_fewer(&ack, sent) {
                return None;
            }
            let now = Instant::now();
            self.repeat_at = self.repeats.get_or_insert(TokenBucket::full(now)).take(REPEAT_RATE, now).err();
            if self.repeat_at.is_some() {
                return None;
            }
        }
        *sent = ack;
        Some(sent.clone())
    }
}

impl Received {
    fn ack(&self, programmed: &Programmed) -> Ack {
        let received = self.number;
        let complete = programmed.complete.number.min(received);
        let is_finished = complete == received;
        Ack {
            received_number: self.number_in_session(received),
            programmed_number: self.number_in_session(complete),
            unfinished_namespaces: if is_finished { BTreeSet::new() } else { programmed.unfinished_namespaces.clone() },
            digest: Some(self.digest),
            apply_time: self.at.elapsed(),
            failures: Ack::first_failures(&programmed.failures).to_vec(),
            degraded: programmed.degraded.clone(),
        }
    }

    /// The number that a commit or bookmark has in the session; 0: it was received before.
    fn number_in_session(&self, number: u64) -> u64 {
        number.saturating_sub(self.before_session)
    }
}

/// Whether an ack says that fewer namespaces are unfinished than another one. Both have some; if they are many, none is
/// named.
fn names_fewer(ack: &Ack, sent: &Ack) -> bool {
    let now = &ack.unfinished_namespaces;
    let before = &sent.unfinished_namespaces;
    !now.is_empty() && now != before && (before.is_empty() || now.is_subset(before))
}

#[cfg(test)]
mod tests {
    use proto::model::ServicePortFailure;

    use super::*;
    use crate::sync::Position;

    fn received(acks: &mut Acks, number: u64) -> Position {
        acks.received(number, Digest::default());
        Position { number, ..Position::default() }
    }

    fn acked(acks: &mut Acks, programmed: &Programmed) -> Vec<(u64, u64, usize)> {
        let acks = acks.due(programmed).into_iter();
        acks.map(|ack| (ack.received_number, ack.programmed_number, ack.failures.len())).collect()
    }

    /// The one that is owed says the same and more.
    #[test]
    fn no_ack_is_repeated_while_one_of_the_same_revision_is_owed() {
        let mut acks = Acks::default();
        let complete = received(&mut acks, 1);
        let mut programmed = Programmed { number: 1, complete, ..Programmed::default() };
        assert_eq!(acked(&mut acks, &programmed), [(1, 1, 0)]);
        let repair = received(&mut acks, 2);
        programmed.failures = vec![ServicePortFailure::rejected(crate::testing::mk_key("default/web"), "rejected")];
        assert_eq!(acked(&mut acks, &programmed), []);
        (programmed.number, programmed.complete) = (2, repair);
        assert_eq!(acked(&mut acks, &programmed), [(2, 2, 1)]);
        programmed.failures.clear();
        assert_eq!(acked(&mut acks, &programmed), [(2, 2, 0)]);
    }

    /// A frontend that does not wait is one that is broken, or an attacker.
    #[test]
    fn newest_of_many_commits_is_acked() {
        let mut acks = Acks::default();
        let mut programmed = Programmed::default();
        for number in 1..=1000 {
            programmed.complete = received(&mut acks, number);
        }
        programmed.number = 999;
        assert_eq!(acked(&mut acks, &programmed), []);
        programmed.number = 1000;
        assert_eq!(acked(&mut acks, &programmed), [(1000, 1000, 0)]);
        assert_eq!(acked(&mut acks, &programmed), []);
    }

    /// What an earlier session has had programmed is not of this one.
    #[test]
    fn numbers_in_acks_begin_anew_with_each_session() {
        let mut acks = Acks::default();
        let numbers = |acks: &mut Acks, number, complete| {
            let programmed = Programmed { number, complete, ..Programmed::default() };
            let ack = acks.due(&programmed).unwrap();
            (ack.received_number, ack.programmed_number)
        };
        let before = received(&mut acks, 1);
        let commit = received(&mut acks, 2);
        assert_eq!(numbers(&mut acks, 2, before), (2, 1));
        assert_eq!(numbers(&mut acks, 2, commit), (2, 2));

        acks.session_ended(2);
        let snapshot = received(&mut acks, 3);
        assert_eq!(numbers(&mut acks, 3, commit), (1, 0));
        assert_eq!(numbers(&mut acks, 3, snapshot), (1, 1));
    }

    /// A pod that ends waits for its own namespace only.
    #[tokio::test(start_paused = true)]
    async fn namespaces_that_are_finished_are_acked() {
        let mut acks = Acks::default();
        let before = received(&mut acks, 1);
        received(&mut acks, 2);
        let mut programmed = Programmed { number: 2, complete: before, ..Programmed::default() };
        programmed.backlog.service_ports = [(crate::testing::mk_key("default/web"), Default::default())].into();
        let mut sent = Vec::new();
        for unfinished in [&["a", "b", "c"][..], &["a", "b", "c"], &["a", "b", "d"], &["a", "b"], &["a"]] {
            programmed.unfinished_namespaces = unfinished.iter().map(|namespace| (*namespace).into()).collect();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let ack = acks.due(&programmed);
            sent.push(ack.map(|ack| ack.unfinished_namespaces.len()));
        }
        assert_eq!(sent, [Some(3), None, None, Some(2), Some(1)]);
    }

    /// A tenant may switch failures on and off. The newest ones are acked in the end.
    #[tokio::test(start_paused = true)]
    async fn failures_that_come_and_go_are_acked_a_few_times_a_second() {
        let mut acks = Acks::default();
        let complete = received(&mut acks, 1);
        let mut programmed = Programmed { number: 1, complete, ..Programmed::default() };
        acked(&mut acks, &programmed);
        let mut count = 0;
        for number in 0..400 {
            programmed.failures.clear();
            if number % 2 == 0 {
                programmed.failures =
                    vec![ServicePortFailure::rejected(crate::testing::mk_key("default/web"), "rejected")];
            }
            count += acked(&mut acks, &programmed).len();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!((5..=11).contains(&count), "{count}");
        programmed.failures = vec![ServicePortFailure::rejected(crate::testing::mk_key("default/web"), "the last one")];
        acked(&mut acks, &programmed);
        tokio::time::sleep_until(acks.repeat_at.unwrap()).await;
        assert_eq!(acked(&mut acks, &programmed), [(1, 1, 1)]);
        assert_eq!((acked(&mut acks, &programmed), acks.repeat_at), (vec![], None));
    }
}
