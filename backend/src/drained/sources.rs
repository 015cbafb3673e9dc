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

/// How many places there are for questions that wait: pods of one node that end together.
const MAX_WAITING: i64 = 96;
/// How many questions of one pod wait, whose containers may each have a hook; when half of all places are taken, only
/// those that share one.
const MAX_OF_POD: usize = 8;
/// How often one address may ask.
const QUESTIONS: Rate = Rate { burst: 10, every: Duration::from_secs(1) };
/// How many addresses are remembered: far more than a node has pods.
const MAX_SOURCES: usize = 1024;

/// The questions that wait. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// The places that are taken.
    waiting: Gauge,
    by_address: Arc<Mutex<BTreeMap<IpAddr, Source>>>,
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
    has_place: bool,
}

impl Sources {
    /// Counts the questions that wait in this gauge.
    pub(super) fn counted(waiting: Gauge) -> Self {
        Self { waiting, ..Self::default() }
    }

    /// Admits a question of an address, which takes a place. An error says why it is refused.
    pub(super) fn admit(&self, source: IpAddr) -> Result<WaitPermit, String> {
        self.enter(source, true)
    }

    /// Admits a question of an address that shares the place of another one.
    pub(super) fn join(&self, source: IpAddr) -> Result<WaitPermit, String> {
        self.enter(source, false)
    }

    /// Whether half of all places are taken.
    fn is_scarce(&self) -> bool {
        self.waiting.get() >= MAX_WAITING / 2
    }

    fn enter(&self, source: IpAddr, has_place: bool) -> Result<WaitPermit, String> {
        let now = Instant::now();
        let mut sources = lock(&self.by_address);
        if sources.len() >= MAX_SOURCES {
            sources.retain(|_, source| source.waiting > 0 || !source.questions.is_full(now));
        }
        if has_place && self.waiting.get() >= MAX_WAITING {
            return Err(format!("{MAX_WAITING} questions wait on this node already: try again"));
        }
        if sources.len() >= MAX_SOURCES && !sources.contains_key(&source) {
            return Err("too many clients ask this node: try again".to_owned());
        }
        let is_scarce = has_place && self.is_scarce();
        let new = || Source { waiting: 0, questions: TokenBucket::full(now) };
        let Source { waiting, questions } = sources.entry(source).or_insert_with(new);
        let limit = if is_scarce { 1 } else { MAX_OF_POD };
        if *waiting >= limit {
            return Err(format!("{waiting} questions of {source} wait already: try again"));
        }
        if questions.take(QUESTIONS, now).is_err() {
            return Err(format!("{source} asks more than {} times in a row: try again in a second", QUESTIONS.burst));
        }
        *waiting += 1;
        self.waiting.inc_by(has_place.into());
        Ok(WaitPermit { sources: self.clone(), source, has_place })
    }
}

impl WaitPermit {
    /// Whether others may wait for the place.
    pub(super) fn is_scarce(&self) -> bool {
        self.sources.is_scarce()
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.sources.waiting.dec_by(self.has_place.into());
        if let Some(source) = lock(&self.sources.by_address).get_mut(&self.source) {
            source.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u16) -> IpAddr {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number])
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_one_prefix_do_not_take_the_questions_of_each_other() {
        let sources = Sources::default();
        let mut held: Vec<_> = (0..MAX_OF_POD).map(|_| sources.admit(pod(1)).unwrap()).collect();
        assert!(sources.admit(pod(1)).unwrap_err().contains("fd00::1"));
        held.extend((2..=6).flat_map(|number| [(); MAX_OF_POD].map(|()| sources.admit(pod(number)).unwrap())));
        // Half of all places are taken: the others are for one question of a pod each.
        held.push(sources.admit(pod(7)).unwrap());
        assert!(sources.admit(pod(7)).unwrap_err().contains("1 questions"));
        held.extend((8..=54).map(|number| sources.admit(pod(number)).unwrap()));
        assert!(sources.admit(pod(55)).unwrap_err().contains("96"));
        held.truncate(1);
        drop(sources.admit(pod(13)).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn questions_in_a_loop_are_refused() {
        let sources = Sources::default();
        let asked = |number| (0..100).filter(|_| sources.admit(pod(number)).is_ok()).count();
        assert_eq!((asked(1), asked(2)), (10, 10));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(asked(1), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_forgotten() {
        let sources = Sources::default();
        let asked = || (0..2000).filter(|number| sources.admit(pod(*number)).is_ok()).count();
        assert_eq!(asked(), MAX_SOURCES);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(asked(), MAX_SOURCES);
        assert!(lock(&sources.by_address).len() <= MAX_SOURCES);
    }
}
