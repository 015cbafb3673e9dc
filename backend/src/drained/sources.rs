//! How many questions wait, in total and for each address, and how often an address may ask.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use runtime::{Rate, TokenBucket, lock};
use tokio::time::Instant;

/// How many places there are for questions that wait: pods of one node that end together. Those of the node itself have
/// some of their own beside them.
const MAX_WAITING: i64 = 96;
const MAX_WAITING_OF_NODE: i64 = 128;
/// How many questions of one pod wait, whose containers may each have a hook; when half of all places are taken, only
/// those that share one.
const MAX_OF_POD: usize = 8;
/// How often one address may ask.
const QUESTIONS: Rate = Rate { burst: 10, every: Duration::from_secs(1) };
/// How often all addresses together may ask over the network: a stranger may have many. Fewer than a frontend answers,
/// for a pod asks once per second while it waits.
const DIRECT_QUESTIONS: Rate = Rate { burst: 256, every: Duration::from_millis(10) };
/// How many addresses are remembered: far more than a node has pods.
const MAX_SOURCES: usize = 1024;

/// The questions that wait. Clones share the same state.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    /// The places that are taken.
    waiting: Gauge,
    state: Arc<Mutex<SourcesState>>,
}

#[derive(Debug)]
struct SourcesState {
    by_address: BTreeMap<IpAddr, Source>,
    direct: TokenBucket,
}

/// Who asks about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A process of the node, such as the kubelet.
    Node,
    /// The address itself.
    Address,
}

/// One address, of a pod or of another client. It is not its prefix: the pods of a node share one.
#[derive(Debug)]
struct Source {
    waiting: usize,
    questions: TokenBucket,
}

/// The right to wait, until it is dropped.
#[derive(Debug)]
pub(super) struct WaitPermit {
    sources: Sources,
    source: IpAddr,
    asker: Asker,
    has_place: bool,
}

impl Sources {
    /// Counts the questions that wait in this gauge.
    pub(super) fn counted(waiting: Gauge) -> Self {
        let state = SourcesState { by_address: BTreeMap::new(), direct: TokenBucket::full(Instant::now()) };
        Self { waiting, state: Arc::new(Mutex::new(state)) }
    }

    /// Admits a question about an address, which takes a place. An error says why it is refused.
    pub(super) fn admit(&self, source: IpAddr, asker: Asker) -> Result<WaitPermit, String> {
        self.enter(source, asker, true)
    }

    /// Admits a question about an address that shares the place of another one.
    pub(super) fn join(&self, source: IpAddr, asker: Asker) -> Result<WaitPermit, String> {
        self.enter(source, asker, false)
    }

    /// Whether half of all places are taken.
    fn is_scarce(&self) -> bool {
        self.waiting.get() >= MAX_WAITING / 2
    }

    fn enter(&self, source: IpAddr, asker: Asker, has_place: bool) -> Result<WaitPermit, String> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let SourcesState { by_address, direct } = &mut *state;
        if by_address.len() >= MAX_SOURCES {
            by_address.retain(|_, source| source.waiting > 0 || !source.questions.is_full(now));
        }
        let places = if asker == Asker::Node { MAX_WAITING_OF_NODE } else { MAX_WAITING };
        if has_place && self.waiting.get() >= places {
            return Err(format!("{places} questions wait on this node already: try again"));
        }
        if by_address.len() >= MAX_SOURCES && !by_address.contains_key(&source) {
            return Err("too many clients ask this node: try again".to_owned());
        }
        let is_scarce = has_place && self.is_scarce();
        let new = || Source { waiting: 0, questions: TokenBucket::full(now) };
        let Source { waiting, questions } = by_address.entry(source).or_insert_with(new);
        let limit = if is_scarce { 1 } else { MAX_OF_POD };
        if *waiting >= limit {
            return Err(format!("{waiting} questions of {source} wait already: try again"));
        }
        let mut own = *questions;
        if own.take(QUESTIONS, now).is_err() {
            return Err(format!("{source} asks more than {} times in a row: try again in a second", QUESTIONS.burst));
        }
        if asker == Asker::Address && direct.take(DIRECT_QUESTIONS, now).is_err() {
            return Err("clients ask this node too often: try again".to_owned());
        }
        // Only of those that are admitted: the others are not remembered.
        *questions = own;
        *waiting += 1;
        self.waiting.inc_by(has_place.into());
        Ok(WaitPermit { sources: self.clone(), source, asker, has_place })
    }
}

impl WaitPermit {
    /// Whether the place is to be left to others unless the address is that of a pod. What the node asks about is.
    pub(super) fn is_scarce(&self) -> bool {
        self.asker == Asker::Address && self.sources.is_scarce()
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.sources.waiting.dec_by(self.has_place.into());
        if let Some(source) = lock(&self.sources.state).by_address.get_mut(&self.source) {
            source.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kubelet asks.
    fn ask(sources: &Sources, number: u16) -> Result<WaitPermit, String> {
        sources.admit(pod(number), Asker::Node)
    }

    fn pod(number: u16) -> IpAddr {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number])
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_one_prefix_do_not_take_the_questions_of_each_other() {
        let sources = Sources::counted(Gauge::default());
        let mut held: Vec<_> = (0..MAX_OF_POD).map(|_| sources.admit(pod(1), Asker::Address).unwrap()).collect();
        assert!(sources.admit(pod(1), Asker::Address).unwrap_err().contains("fd00::1"));
        held.extend(
            (2..=6).flat_map(|number| [(); MAX_OF_POD].map(|()| sources.admit(pod(number), Asker::Address).unwrap())),
        );
        // Half of all places are taken: the others are for one question of a pod each.
        held.push(sources.admit(pod(7), Asker::Address).unwrap());
        assert!(sources.admit(pod(7), Asker::Address).unwrap_err().contains("1 questions"));
        held.extend((8..=54).map(|number| sources.admit(pod(number), Asker::Address).unwrap()));
        assert!(sources.admit(pod(55), Asker::Address).unwrap_err().contains("96"));
        drop(ask(&sources, 55).unwrap());
        held.truncate(1);
        drop(sources.admit(pod(13), Asker::Address).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn questions_in_a_loop_are_refused() {
        let sources = Sources::counted(Gauge::default());
        let asked = |number| (0..100).filter(|_| ask(&sources, number).is_ok()).count();
        assert_eq!((asked(1), asked(2)), (10, 10));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(asked(1), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_forgotten() {
        let sources = Sources::counted(Gauge::default());
        let asked = || (0..2000).filter(|number| ask(&sources, *number).is_ok()).count();
        assert_eq!(asked(), MAX_SOURCES);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(asked(), MAX_SOURCES);
        assert!(lock(&sources.state).by_address.len() <= MAX_SOURCES);
    }

    /// The attack: one address asks in a loop.
    #[tokio::test(start_paused = true)]
    async fn address_in_a_loop_leaves_questions_to_others() {
        let sources = Sources::counted(Gauge::default());
        let asked = |number| (0..1_000).filter(|_| sources.admit(pod(number), Asker::Address).is_ok()).count();
        assert_eq!((asked(1), asked(2)), (10, 10));
    }

    /// The attack: a stranger with many addresses asks in a loop.
    #[tokio::test(start_paused = true)]
    async fn strangers_leave_questions_to_the_kubelet() {
        let sources = Sources::counted(Gauge::default());
        let admitted = (0..10_000).filter(|number| sources.admit(pod(*number), Asker::Address).is_ok()).count();
        assert_eq!(admitted, DIRECT_QUESTIONS.burst as usize);
        assert!(lock(&sources.state).by_address.len() <= MAX_SOURCES);
        drop(ask(&sources, 20_000).unwrap());
    }
}
