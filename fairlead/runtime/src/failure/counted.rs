//! Log lines about clients: the first occurrence of each, then one line with a count after a growing interval, for a
//! bounded number of clients.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// The shortest and the longest interval between two log lines about one client or object, so that what it does again
/// and again does not fill the log. It doubles with each line.
pub const LINE_INTERVALS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// How many keys have lines of their own. All others share one.
const MAX_KEYS: usize = 64;

/// Counts a condition that clients can cause as often as they like, and decides when to log it.
#[derive(Debug)]
pub struct CountedLog<K> {
    keys: BTreeMap<K, Counted>,
    others: Option<Counted>,
}

#[derive(Debug)]
struct Counted {
    unlogged: u64,
    interval: Duration,
    next_line: Instant,
}

impl<K: Ord> Default for CountedLog<K> {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), others: None }
    }
}

impl<K: Ord> CountedLog<K> {
    /// Counts an occurrence. `Some` when it should be logged: how many occurred since the last line, this one included.
    pub fn record(&mut self, key: K) -> Option<u64> {
        let now = Instant::now();
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
            self.keys.retain(|_, counted| now < counted.next_line + LINE_INTERVALS.1);
        }

        let counted = if self.keys.len() < MAX_KEYS || self.keys.contains_key(&key) {
            self.keys.entry(key).or_insert_with(|| Counted::new(now))
        } else {
            self.others.get_or_insert_with(|| Counted::new(now))
        };
        counted.record(now)
    }
}

impl Counted {
    fn new(now: Instant) -> Self {
        Self { unlogged: 0, interval: LINE_INTERVALS.0, next_line: now }
    }

    fn record(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if now < self.next_line {
            return None;
        }

        if now >= self.next_line + LINE_INTERVALS.1 {
            self.interval = LINE_INTERVALS.0;
        }
        self.next_line = now + self.interval;
        self.interval = (2 * self.interval).min(LINE_INTERVALS.1);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records an occurrence of each key every 10 ms for an hour. Returns the number of lines, and the sum of their
    /// counts.
    async fn hour(keys: u32) -> (u64, u64) {
        let mut log = CountedLog::default();
        let (mut lines, mut counted) = (0, 0);
        for number in 0..360_000_u32 {
            if let Some(count) = log.record(number % keys) {
                lines += 1;
                counted += count;
            }
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        (lines, counted)
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_occurrences_take_few_lines() {
        let (lines, counted) = hour(1).await;
        assert!(lines <= 13, "{lines}");
        assert!(counted > 200_000, "the lines have counts: {counted}");
    }

    #[tokio::test(start_paused = true)]
    async fn occurrences_of_many_keys_take_a_bounded_number_of_lines() {
        let (lines, _) = hour(10_000).await;
        assert!(lines <= 13 * (MAX_KEYS as u64 + 1), "{lines}");
    }

    #[tokio::test(start_paused = true)]
    async fn occurrence_after_a_quiet_time_is_logged_at_once() {
        let mut log = CountedLog::default();
        assert_eq!(log.record("client"), Some(1));
        assert_eq!(log.record("client"), None);
        tokio::time::advance(LINE_INTERVALS.0 + LINE_INTERVALS.1).await;
        assert_eq!(log.record("client"), Some(2));
        tokio::time::advance(LINE_INTERVALS.0).await;
        assert_eq!(log.record("client"), Some(1), "the interval starts again");
    }
}
