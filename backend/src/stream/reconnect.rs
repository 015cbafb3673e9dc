//! The delay before the next attempt to establish a session.
//!
//! A delay is drawn between `min` and the time for which sessions have failed: nodes are connected again soon after a
//! short outage, and thousands of them are spread over seconds after a long one.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

/// The delays before connecting again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectDelays {
    /// The shortest delay. The first delay is at most twice as long.
    pub min: Duration,
    /// The longest delay while no frontend is reachable.
    pub max: Duration,
    /// The longest delay while frontends reject this client, which costs them a TLS handshake each time.
    pub max_rejected: Duration,
}

#[derive(Debug)]
pub(super) struct ReconnectTimer {
    pub(super) delays: ReconnectDelays,
    failing_since: Option<Instant>,
    rng: Rng,
}

impl Default for ReconnectDelays {
    fn default() -> Self {
        Self { min: Duration::from_millis(200), max: Duration::from_secs(3), max_rejected: Duration::from_secs(15) }
    }
}

impl ReconnectTimer {
    pub(super) fn new(delays: ReconnectDelays) -> Self {
        Self { delays, failing_since: None, rng: Rng::new() }
    }

    /// The delay after one more failure. `is_rejected` says whether a frontend ended the session before its first
    /// message; otherwise no frontend is reachable, or the last session has broken.
    pub(super) fn next_delay(&mut self, is_rejected: bool) -> Duration {
        let ReconnectDelays { min, max, max_rejected } = self.delays;
        let max = if is_rejected { max_rejected } else { max };
        let failing = self.failing_since.get_or_insert_with(Instant::now).elapsed();
        let longest = failing.max(2 * min).min(max);
        min + longest.saturating_sub(min).mul_f64(self.rng.f64())
    }

    /// Makes the next delay short again, after a session that has lasted.
    pub(super) fn reset(&mut self) {
        self.failing_since = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const NODES: u64 = 5000;
    const MILLISECOND: Duration = Duration::from_millis(1);
    const UNREACHABLE: bool = false;
    const REJECTED: bool = true;

    fn timer(seed: u64) -> ReconnectTimer {
        ReconnectTimer { rng: Rng::with_seed(seed), ..ReconnectTimer::new(ReconnectDelays::default()) }
    }

    /// The attempts of all nodes until they have connected, when the frontend is unreachable for this long.
    async fn attempts(outage: Duration, is_rejected: bool) -> Vec<Vec<Duration>> {
        let mut all = Vec::new();
        for seed in 0..NODES {
            let (mut timer, mut attempts, begin) = (timer(seed), Vec::new(), Instant::now());
            while attempts.last().is_none_or(|at| *at < outage) {
                advance(timer.next_delay(is_rejected)).await;
                attempts.push(begin.elapsed());
            }
            all.push(attempts);
        }
        all
    }

    /// The most attempts in a period of this length.
    fn most_within(all: &[Vec<Duration>], period: Duration) -> usize {
        let mut times: Vec<_> = all.iter().flatten().collect();
        times.sort();
        (0..times.len()).map(|first| times.partition_point(|at| **at < *times[first] + period) - first).max().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_connect_soon_after_an_outage() {
        // The length of the outage, and the longest time from its end to the connection of a node, in milliseconds.
        for (outage, longest) in [(0, 400), (100, 400), (400, 400), (1000, 1000), (2500, 2500), (15_000, 3000)] {
            let outage = MILLISECOND * outage;
            let all = attempts(outage, UNREACHABLE).await;
            let last = all.iter().map(|attempts| *attempts.last().unwrap() - outage).max().unwrap();
            assert!(last <= MILLISECOND * longest, "{last:?} after an outage of {outage:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_of_many_nodes_are_spread() {
        for outage in [1000, 5000, 15_000, 60_000] {
            let all = attempts(MILLISECOND * outage, UNREACHABLE).await;
            let most = most_within(&all, Duration::from_secs(1));
            // A few attempts of each node at first.
            assert!(most <= NODES as usize * 3, "{most} attempts in a second of an outage of {outage} ms");
            // Those that reach the frontend when it returns.
            let arrivals: Vec<_> = all.iter().map(|attempts| vec![*attempts.last().unwrap()]).collect();
            let most = most_within(&arrivals, Duration::from_millis(100));
            assert!(most <= NODES as usize / 4, "{most} connections in 100 ms after an outage of {outage} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_clients_return_less_often() {
        let all = attempts(Duration::from_secs(600), REJECTED).await;
        let last_minute = all.iter().flatten().filter(|at| (540..600).contains(&at.as_secs())).count() as u64;
        let each = last_minute / NODES;
        assert!((6..=10).contains(&each), "{each} attempts a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn delays_are_short_again_after_a_session() {
        let mut timer = timer(1);
        timer.next_delay(UNREACHABLE);
        advance(Duration::from_secs(60)).await;
        timer.reset();
        assert!(timer.next_delay(UNREACHABLE) <= MILLISECOND * 400);
    }
}
