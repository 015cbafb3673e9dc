//! Metrics of all nodes together: bytes, streams, and the latency of each change at each node.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::cluster::{Reach, zone};

/// Resolution of latencies, in microseconds.
const STEP: u64 = 100;
/// Longer ones count as this many steps.
const STEPS: usize = 200_000;

/// Shared by all nodes and by the load.
#[derive(Debug)]
pub(crate) struct FleetMetrics {
    start: Instant,
    /// The same moment as a Unix time.
    epoch: Duration,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Commits that have arrived.
    pub(crate) commits: AtomicU64,
    /// Nodes that are up to date since their last connect.
    pub(crate) consistent: AtomicU64,
    /// Failed connection attempts.
    pub(crate) refused: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) repaired: AtomicU64,
    /// Streams that ended unexpectedly.
    pub(crate) broken: AtomicU64,
    departures: Mutex<Departures>,
    events: Mutex<Vec<Event>>,
    latencies: Mutex<Latencies>,
}

/// When each node was asked to reconnect, and when it disconnects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departures(Vec<(Instant, Instant)>);

/// A change that was announced.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: u64,
    reach: Reach,
}

/// A histogram.
#[derive(Debug)]
struct Latencies {
    steps: Vec<u32>,
    count: u64,
}

/// A node's position in the list of events. A commit carries the time of its oldest event, so earlier events came with
/// the previous commit.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    next: usize,
    /// When the last commit arrived.
    last: Option<u64>,
}

impl FleetMetrics {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            // With a clock before 1970 all times are equally wrong, and only differences count.
            epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            received: AtomicU64::default(),
            sent: AtomicU64::default(),
            commits: AtomicU64::default(),
            consistent: AtomicU64::default(),
            refused: AtomicU64::default(),
            resumed: AtomicU64::default(),
            repaired: AtomicU64::default(),
            broken: AtomicU64::default(),
            departures: Mutex::default(),
            events: Mutex::default(),
            latencies: Mutex::new(Latencies { steps: vec![0; STEPS + 1], count: 0 }),
        }
    }

    /// Microseconds since 1970 by a monotonic clock. Events carry this time.
    pub(crate) fn now(&self) -> u64 {
        (self.epoch + self.start.elapsed()).as_micros() as u64
    }

    /// Records that a node was asked to reconnect now, and disconnects after `delay`.
    pub(crate) fn depart(&self, delay: Duration) {
        let now = Instant::now();
        self.departures.lock().unwrap_or_else(PoisonError::into_inner).0.push((now, now + delay));
    }

    /// All departures so far.
    pub(crate) fn departures(&self) -> Departures {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records an event that is about to be sent. Returns its time.
    pub(crate) fn event(&self, reach: Reach) -> u64 {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.now().max(events.last().map_or(0, |event| event.at + 1));
        events.push(Event { at, reach });
        at
    }

    /// The position of a node that receives all later events.
    pub(crate) fn arrivals(&self) -> Arrivals {
        Arrivals { next: self.events.lock().unwrap_or_else(PoisonError::into_inner).len(), last: None }
    }

    /// Records the arrival of a commit whose oldest event has time `trigger`.
    pub(crate) fn commit(&self, node: u32, arrivals: &mut Arrivals, trigger: u64) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.arrived_before(node, arrivals, trigger);
        arrivals.last = Some(self.now());
    }

    /// Records that all events before `until` have arrived, with the last commit.
    pub(crate) fn arrived_before(&self, node: u32, arrivals: &mut Arrivals, until: u64) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Event { at, reach }) = events.get(arrivals.next).filter(|event| event.at < until) {
            arrivals.next += 1;
            let is_affected = match reach {
                Reach::Everyone => true,
                Reach::Zone(number) => *number == zone(node),
            };
            if let Some(last) = arrivals.last.filter(|_| is_affected) {
                let step = (last.saturating_sub(*at) / STEP) as usize;
                latencies.steps[step.min(STEPS)] += 1;
                latencies.count += 1;
            }
        }
    }

    /// The latency at this permille, over all nodes since the last call of [`Self::reset`].
    pub(crate) fn latency(&self, permille: u64) -> Duration {
        let latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rank = (latencies.count * permille).div_ceil(1_000);
        let found = latencies.steps.iter().position(|count| {
            let reached = u64::from(*count) >= rank;
            rank = rank.saturating_sub((*count).into());
            reached
        });
        Duration::from_micros((found.unwrap_or(STEPS) as u64 + 1) * STEP)
    }

    /// Resets all counters.
    pub(crate) fn reset(&self) {
        for count in [&self.received, &self.sent, &self.commits, &self.refused, &self.resumed, &self.repaired] {
            count.store(0, Ordering::Relaxed);
        }
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.steps.fill(0);
        latencies.count = 0;
    }
}

impl Departures {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How long after `start` each node was asked to reconnect.
    pub(crate) fn delays(&self, start: Instant) -> Vec<Duration> {
        self.0.iter().map(|(asked, _)| asked.saturating_duration_since(start)).collect()
    }

    /// The largest number of disconnects within one second.
    pub(crate) fn busiest(&self, start: Instant) -> usize {
        let mut seconds = std::collections::BTreeMap::new();
        for (_, gone) in &self.0 {
            *seconds.entry(gone.saturating_duration_since(start).as_secs()).or_default() += 1;
        }
        seconds.into_values().max().unwrap_or(0)
    }
}
